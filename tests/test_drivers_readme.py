"""drivers/README.md is what the code is, and all that it shows can be typed."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
import types
from dataclasses import fields
from pathlib import Path

import pytest

import gpuplug
from gpuplug.plugins import hookspecs
from gpuplug.plugins.loader import LoadedDriver
from gpuplug.settings import Settings
from gpuplug.testing import make_gpu
from gpuplug.testing.conformance import Conformance
from tests.distributions import Distribution, Site

README = (Path(__file__).parent.parent / "drivers/README.md").read_text()
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("gpuplug_")}
PUBLIC = {
    "CompanionNode", "Declined", "Device", "DeviceId", "DeviceSpec", "DriverError", "DriverOption", "DrmNode",
    "Gpu", "GpuplugError", "Mount", "Settings", "Verdict", "hookimpl", "is_resource_name",
}  # fmt: skip


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def file(name: str) -> str:
    """Give the content of a file that the README shows: the block after its name."""
    found = re.search(rf"`{re.escape(name)}`\n\n```[a-z]+\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


# the reference


SUBSECTIONS = dict(
    re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", section("The hooks"), re.MULTILINE | re.DOTALL)
)


def test_each_hook_has_its_heading_and_each_heading_its_hook_in_one_order() -> None:
    assert list(SUBSECTIONS) == sorted(HOOKS, key=list(SUBSECTIONS).index)
    assert set(SUBSECTIONS) == set(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_the_signature_of_a_hook_is_that_of_its_specification(hook: str) -> None:
    (shown,) = blocks(SUBSECTIONS[hook], "text")
    assert shown.strip() == f"{hook}{inspect.signature(HOOKS[hook])}".replace("'", "")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_told_of_when_it_is_called_what_a_wrong_answer_costs_and_by_an_example(hook: str) -> None:
    text = SUBSECTIONS[hook]
    assert "- **Called** " in text
    assert "- **A wrong answer**" in text
    (example,) = blocks(text, "python")
    assert f"@hookimpl\ndef {hook}(" in example


def example_driver() -> types.ModuleType:
    """Put the examples of all hooks together."""
    module = types.ModuleType("gpuplug_readme_example")
    for source in blocks(section("The hooks"), "python"):
        exec(compile(source, "drivers/README.md", "exec"), vars(module))
    return module


EXAMPLE = example_driver()


class TestTheExamples(Conformance):
    """The examples together are one driver, and a good one."""

    driver = EXAMPLE
    name = "foogpu"
    gpus = (
        make_gpu(
            "foogpu", attributes={"foo_memory": "8192", "foo_wedged": "0"}, companions=["/dev/foogpu_ctl"]
        ),
        make_gpu("foogpu", "fd000000.gpu", bus="platform", nodes=["card1"]),
    )
    declined = (make_gpu("foogpu", "0000:09:00.0", attributes={"foo_memory": "512"}),)
    options = {"min-memory": "1024", "nodes": "render"}  # noqa: RUF012 - as an author would write it


def test_the_examples_do_what_the_text_says() -> None:
    driver = LoadedDriver("foogpu", EXAMPLE)
    driver.choose({"nodes": "render"})
    gpu = make_gpu("foogpu", attributes={"foo_wedged": "1"}, companions=["/dev/foogpu_ctl"])
    assert driver.resource_name(gpu, Settings()) == "foo.com/gpu"
    specs = driver.device_specs(gpu, Settings())
    assert [spec.container_path for spec in specs] == ["/dev/dri/renderD128", "/dev/foogpu_ctl"]
    verdict = driver.health(gpu, Settings())
    assert (verdict.healthy, verdict.reason) == (False, "the kernel driver says that it is wedged")


def test_every_field_of_the_values_is_told_of() -> None:
    text = section("The values")
    for kind in (
        gpuplug.Gpu,
        gpuplug.DrmNode,
        gpuplug.CompanionNode,
        gpuplug.Device,
        gpuplug.DeviceSpec,
        gpuplug.Mount,
        gpuplug.Verdict,
        gpuplug.Declined,
        gpuplug.DriverOption,
    ):
        if kind is gpuplug.Gpu:
            rows = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
            named = set(re.findall(r"`(\w+)`", rows))
        else:
            (row,) = re.findall(rf"^\| `{kind.__name__}` \|(.*)$", text, re.MULTILINE)
            named = set(re.findall(r"`(\w+)`", row))
        assert {field.name for field in fields(kind)} <= named, kind


# the promise


def test_what_is_public_is_what_the_readme_says_and_stays_so() -> None:
    """A name that is taken away breaks drivers: see OLDEST in plugins/hookspecs.py before changing this."""
    assert set(gpuplug.__all__) == PUBLIC
    listed = re.search(r"for tests:\n\n((?:`\w+`\s+)+)", section("What is promised"))
    assert listed
    assert set(re.findall(r"\w+", listed[1])) == PUBLIC
    assert all(hasattr(gpuplug, name) for name in PUBLIC)


def test_the_version_of_the_hooks_is_the_one_that_the_readme_names() -> None:
    assert f"The hooks have a version, which is {hookspecs.VERSION}." in " ".join(README.split())
    assert f"\nGPUPLUG_HOOKS = {hookspecs.VERSION}\n" in file("gpuplug_foogpu.py")


def test_each_link_leads_somewhere() -> None:
    folder = Path(__file__).parent.parent / "drivers"
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
               for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)}  # fmt: skip
    for link in re.findall(r"\]\(([^)]+)\)", README):
        path, _, anchor = link.partition("#")
        assert (folder / path).exists(), link
        assert not anchor or anchor in anchors, link


# from an empty folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a folder with the files that the README shows, and the package installed."""
    folder = tmp_path / "foogpu"
    folder.mkdir()
    for name in ("pyproject.toml", "gpuplug_foogpu.py", "test_foogpu.py", "serve_foogpu.py"):
        (folder / name).write_text(file(name))
    said = tomllib.loads(file("pyproject.toml"))
    (entry_points,) = said["project"]["entry-points"].values()
    assert list(said["project"]["entry-points"]) == ["gpuplug"]
    distribution = Distribution(
        said["project"]["name"], file("gpuplug_foogpu.py"), entry_points, said["project"]["version"]
    )
    Site(tmp_path / "site").install(distribution)
    return folder


def typed(project: Path, command: list[str]) -> str:
    environ = Site(project.parent / "site").environ(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    ended = subprocess.run(
        command, cwd=project, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_what_the_readme_shows_is_a_driver_that_is_tested_inspected_and_served(project: Path) -> None:
    commands = [line.removeprefix("$ ") for block in blocks(README, "console") for line in block.splitlines()]
    (venv, gpuplug_, install, pytest_, drivers, demo, target) = commands
    assert venv == "python3 -m venv .venv && . .venv/bin/activate"  # that of these tests is used instead
    assert gpuplug_ == "pip install ~/gpuplug"
    assert install == "pip install -e '.[test]'"  # done by hand: it would ask an index for what gpuplug needs
    assert target == "pip install --no-deps --target site ."  # the same as in examples/01-third-party-driver
    said = typed(project, ["bash", "-c", f"python -m {pytest_} -q -p no:cacheprovider"])
    assert re.search(r"[0-9]{2} passed", said)
    assert "skipped" not in said
    listed = typed(project, ["bash", "-c", drivers])
    assert re.search(r"\nfoogpu +gpuplug-foogpu 1.0 +resource_name\b", listed), listed
    shown = typed(project, ["bash", "-c", demo])
    assert "Driver foogpu (gpuplug-foogpu 1.0) claims it as foo.com/gpu." in shown
    assert "A container with `limits: {foo.com/gpu: 1}` gets:" in shown
    assert typed(project, [sys.executable, "serve_foogpu.py"]) == (
        "/dev/dri/card0 rw\n/dev/dri/renderD128 rw\n"
    )


def test_the_image_of_the_readme_is_that_of_the_example() -> None:
    example = (Path(__file__).parent.parent / "examples/01-third-party-driver/Containerfile").read_text()
    (shown,) = blocks(README, "dockerfile")
    assert shown == "".join(line for line in example.splitlines(True) if not line.startswith("#"))
