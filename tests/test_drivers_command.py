"""``gpuplug drivers``: what is installed, what it claims here, and what is wrong."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuplug.cli import main
from gpuplug.commands.driver_tables import headline, show
from gpuplug.observe.drivers import ChosenOption, InstalledDriver, about, drivers_document
from tests.values import I915, A, B

if TYPE_CHECKING:
    from gpuplug.testing import Machine

SCHEMA = (
    (Path(__file__).parent.parent / "gpuplug/observe/README.md").read_text().partition("drivers --json")[2]
)
FOO = InstalledDriver(
    "foo",
    "gpuplug-foo",
    "1.0",
    hooks=("gpuplug_health", "gpuplug_resource_name"),
    fallback=True,
    options=(ChosenOption("--foo-x", "GPUPLUG_FOO_X", "2", "1", "a number"),),
    resources=("foo.com/gpu",),
    gpus=(A, B),
)
BAR = InstalledDriver("bar", loaded=False, problems=("driver bar cannot be imported: \x1b[31m",))


def drivers(capsys: pytest.CaptureFixture[str], machine: Machine, *arguments: str) -> tuple[int, str]:
    code = main(["drivers", f"--prefix={machine.root}", *arguments], {})
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def test_each_driver_is_listed_with_its_package_its_hooks_and_its_gpus(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B, driver="virtio_gpu")
    code, text = drivers(capsys, machine, "--drm-kernel-drivers=virtio_gpu")
    assert code == 0
    assert re.search(rf"^i915 +gpuplug-intel \S+ +resource_name +{I915} +{A}$", text, re.MULTILINE)
    assert re.search(rf"^drm +gpuplug-drm .* gpuplug.dev/virtio_gpu +{B}$", text, re.MULTILINE)
    assert re.search(r"^xe +gpuplug-intel \S+ +resource_name +none$", text, re.MULTILINE)
    assert "--drm-kernel-drivers=virtio_gpu (default: none): " in text
    assert "Problems" not in text


def test_what_is_left_out_is_listed_and_where_nothing_is_left_the_code_is_3(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = drivers(capsys, machine, "--json", "--driver=xe")
    assert code == 0
    by_name = {driver["name"]: driver for driver in json.loads(text)["drivers"]}
    assert [by_name["i915"][key] for key in ("loaded", "left_out", "hooks")] == [False, True, []]
    everything = ",".join(by_name)
    code, text = drivers(capsys, machine, f"--no-driver={everything}")
    assert code == 3
    assert "it is left out by --driver or --no-driver" in " ".join(text.split())


def test_a_folder_that_is_not_there_is_a_bad_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drivers", "--prefix=/no/such/folder"], {}) == 2
    assert capsys.readouterr().err == "gpuplug: --prefix: '/no/such/folder' is not there\n"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ((), "No driver is installed: install one, such as gpuplug-intel, where gpuplug is."),
        ((FOO,), "1 driver is installed."),
        ((BAR,), "1 driver is installed; 1 has a problem."),
        ((BAR, BAR, FOO), "3 drivers are installed; 2 have problems."),
    ],
)
def test_the_first_line_says_how_it_stands(known: tuple[InstalledDriver, ...], words: str) -> None:
    assert headline(known) == words
    text = io.StringIO()
    show(known, text, {})
    assert text.getvalue().splitlines()[0] == words


def test_problems_and_options_follow_and_no_control_character_reaches_the_terminal() -> None:
    text = io.StringIO()
    show((FOO, BAR), text, {"COLUMNS": "200"})
    shown = " ".join(text.getvalue().split())
    assert "health, resource_name (a fallback)" in shown
    assert "not loaded" in shown
    assert r"Problems bar driver bar cannot be imported: \x1b[31m" in shown
    assert "Options foo --foo-x=2 (default: 1): a number" in shown
    assert "\x1b" not in text.getvalue()


def test_a_problem_belongs_to_the_drivers_that_its_first_words_name() -> None:
    problems = [
        "driver foo: gpuplug_health raised ValueError: bar: baz",
        "drivers bar and foo both claim 0000:03:00.0: bar has it",
        "driver foobar: x",
        "option --foo-x is not used, for its driver is not loaded",
    ]
    assert about("foo", problems) == (problems[0], problems[1])
    assert about("bar", problems) == (problems[1],)


def fields(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {found for key, inner in value.items() for found in fields(inner, f"{path}.{key}".lstrip("."))}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {found for inner in value for found in fields(inner, f"{path}[]")}
    return {path}


def test_the_description_of_the_schema_has_each_field_and_no_other() -> None:
    described = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", SCHEMA, re.MULTILINE))
    assert fields(drivers_document((FOO, BAR))) - {"drivers[].options"} == described
