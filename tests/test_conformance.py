"""The conformance kit: a sound driver passes, and each fault is found by a check, in words that teach."""

# ruff: noqa: ARG001, ARG005 - hooks of made-up drivers have arguments that they do not use

from __future__ import annotations

import inspect
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuplug import Declined, DeviceSpec, DriverOption, Gpu, Mount, Settings, Verdict, hookimpl
from gpuplug.testing import Machine, make_gpu
from gpuplug.testing.conformance import Conformance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplug import Device
    from gpuplug.testing.conformance.base import Checked

ANY: Any = None
OWN = make_gpu("foogpu", attributes={"foo_memory": "8"}, companions=["/dev/foo"], numa_node=1)
NOT_OFFERED = make_gpu("foogpu", "0000:09:00.0", attributes={"foo_memory": "0"})
CHECKS = [name for name, _ in inspect.getmembers(Conformance, callable) if name.startswith("test_")]


class Foogpu:
    """A driver that does all that a driver may do, as it should."""

    GPUPLUG_HOOKS = 1

    @hookimpl
    def gpuplug_options(self) -> list[DriverOption]:
        return [
            DriverOption("tier", str, "", "a part of the resource's name"),
            DriverOption("limit", int, 4, "how much"),
        ]

    @hookimpl
    def gpuplug_sysfs_attributes(self) -> list[str]:
        return ["foo_memory", "drm/card*/foo_state"]

    @hookimpl
    def gpuplug_companion_nodes(self) -> list[str]:
        return ["/dev/foo"]

    @hookimpl
    def gpuplug_resource_name(self, gpu: Gpu, settings: Settings) -> str | Declined | None:
        if gpu.kernel_driver != "foogpu":
            return None
        if gpu.attributes.get("foo_memory") == "0":
            return Declined("it has no memory of its own")
        tier = settings.options["tier"]
        return f"foo.com/{tier}" if tier else "foo.com/gpu"

    @hookimpl
    def gpuplug_device_specs(self, gpu: Gpu) -> list[DeviceSpec]:
        return [DeviceSpec(node.path, node.host_path) for node in gpu.nodes] + [
            DeviceSpec(node.path, node.host_path) for node in gpu.companions.values()
        ]

    @hookimpl
    def gpuplug_mounts(self, gpu: Gpu) -> list[Mount]:
        return [
            Mount("/usr/lib/foogpu", "/usr/lib/foogpu"),
            Mount(f"/run/foogpu/{gpu.address}", f"/run/foogpu/{gpu.address}"),
        ]

    @hookimpl
    def gpuplug_envs(self, devices: Sequence[Device]) -> dict[str, str]:
        return {"FOOGPU_DEVICES": ",".join(sorted({device.gpu.address for device in devices}))}

    @hookimpl
    def gpuplug_health(self, gpu: Gpu) -> Verdict:
        state = gpu.attributes.get("drm/card0/foo_state", "on")
        return Verdict(state == "on", "" if state == "on" else f"its state is {state!r}")


class Kit(Conformance):
    """The kit as an author would use it; its name keeps pytest from collecting it here."""

    name = "foogpu"
    gpus = (OWN, make_gpu("foogpu", "fd000000.gpu", bus="platform", nodes=["renderD130"]))
    declined = (NOT_OFFERED,)


class TestFoogpu(Kit):
    """A sound driver, through pytest, as an author sees it."""

    driver = Foogpu()
    options = {"tier": "gold"}  # noqa: RUF012 - as an author would write it


def kit_for(driver: object, **attributes: object) -> Kit:
    kit = Kit()
    for name, value in {"driver": driver, **attributes}.items():
        setattr(kit, name, value)
    return kit


def complaints(kit: Checked) -> dict[str, str]:
    """Run every check; give what those that fail say."""
    found = {}
    for check in CHECKS:
        try:
            getattr(kit, check)()
        except AssertionError as error:
            found[check] = str(error)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                raise
    return found


def test_there_are_some_twenty_checks_and_each_says_what_it_is_for() -> None:
    assert 20 <= len(CHECKS) <= 30
    for name in CHECKS:
        assert inspect.getdoc(getattr(Conformance, name))


def test_a_sound_driver_has_no_complaint() -> None:
    assert complaints(kit_for(Foogpu())) == {}


def wrong(hook: str, function: Callable[..., Any]) -> object:
    """Make a driver that is sound but for one hook."""
    return type("Wrong", (Foogpu,), {hook: hookimpl(function)})()


def spec(container_path: str, host_path: str | None = None) -> Callable[..., list[DeviceSpec]]:
    def device_specs(self: object, gpu: Gpu) -> list[DeviceSpec]:
        return [*Foogpu().gpuplug_device_specs(gpu), DeviceSpec(container_path, host_path or container_path)]

    return device_specs


def may_make_nodes(self: object, gpu: Gpu) -> list[DeviceSpec]:
    return [DeviceSpec(node.path, node.host_path, "rwm") for node in gpu.nodes]


def mount(host_path: str) -> Callable[..., list[Mount]]:
    return lambda self: [Mount("/mnt/foogpu", host_path)]


def name(text: str) -> Callable[..., str | None]:
    def resource_name(self: object, gpu: Gpu) -> str | None:
        return text if gpu.kernel_driver == "foogpu" else None

    return resource_name


def envs(given: dict[str, str]) -> Callable[..., dict[str, str]]:
    return lambda self: given


def health(act: Callable[[Gpu], object]) -> Callable[..., Verdict]:
    def gpuplug_health(self: object, gpu: Gpu) -> Verdict:
        act(gpu)
        return Verdict(healthy=True)

    return gpuplug_health


def change(gpu: Gpu) -> None:
    gpu.attributes["seen"] = "1"  # type: ignore[index]


def counted() -> Callable[..., dict[str, str]]:
    numbers = itertools.count()
    return lambda self: {"FOOGPU_COUNT": str(next(numbers))}


def first_of(self: object, devices: Sequence[Device]) -> dict[str, str]:
    return {"FOOGPU_FIRST": devices[0].gpu.address}


def slow(gpu: Gpu) -> None:
    until = time.perf_counter() + 0.008
    while time.perf_counter() < until:
        pass


def neighbour(self: object, gpu: Gpu) -> list[DeviceSpec]:
    """Compute the render node from the card's number, as many do."""
    render = next((f"/dev/dri/renderD{128 + node.minor}" for node in gpu.nodes if not node.is_render), "")
    return [DeviceSpec(render or gpu.nodes[0].path, render or gpu.nodes[0].host_path)]


def without_prefix(self: object, gpu: Gpu) -> list[DeviceSpec]:
    return [DeviceSpec(node.path, node.path) for node in gpu.nodes]


def also_missing(self: object, gpu: Gpu) -> list[DeviceSpec]:
    names = [*(node.name for node in gpu.nodes), *gpu.missing]
    prefix = gpu.nodes[0].host_path.removesuffix(gpu.nodes[0].path)
    return [DeviceSpec(f"/dev/dri/{name}", f"{prefix}/dev/dri/{name}") for name in names]


def renders_only(self: object, gpu: Gpu) -> list[DeviceSpec]:
    return [DeviceSpec(node.path, node.host_path) for node in gpu.nodes if node.is_render]


def claims_all(self: object) -> str:
    return "foo.com/gpu"


def declines_nothing(self: object, gpu: Gpu) -> str | None:
    return "foo.com/gpu" if gpu.kernel_driver == "foogpu" else None


def claims_nothing(self: object) -> None:
    return None


def needs_its_attribute(self: object, gpu: Gpu) -> Verdict:
    return Verdict(int(gpu.attributes["foo_memory"]) >= 0)


def a_number_at_best(self: object, gpu: Gpu) -> Verdict:
    return Verdict(int(gpu.attributes.get("foo_memory", "0")) >= 0, "less than nothing")


def sick(reason: str) -> Callable[..., Verdict]:
    return lambda self: Verdict(healthy=False, reason=reason)


def one_place(self: object, gpu: Gpu) -> list[Mount]:
    return [Mount("/run/foogpu", f"/run/foogpu/{gpu.address}")]


def node_as_mount(self: object, gpu: Gpu) -> list[Mount]:
    return [Mount(gpu.nodes[0].path, gpu.nodes[0].host_path)]


HOOK = "gpuplug_"
FAULTS: list[tuple[str, Callable[..., Any], str, str]] = [
    (f"{HOOK}resource_name", claims_all, "test_it_leaves_every_other_gpu_alone", "look at gpu.kernel_driver"),
    (f"{HOOK}resource_name", claims_nothing, "test_it_claims_each_of_its_gpus", "does not claim"),
    (f"{HOOK}resource_name", declines_nothing, "test_it_claims_each_of_its_gpus", "return Declined('why')"),
    (f"{HOOK}resource_name", name("gpu"), "test_its_resource_names_are_ones_that_kubernetes_takes",
     "'gpu' is no name of an extended resource"),
    (f"{HOOK}resource_name", name("foo.com/" + "g" * 64),
     "test_its_resource_names_are_ones_that_kubernetes_takes", "up to 63 letters"),
    (f"{HOOK}resource_name", lambda self, gpu: 5, "test_every_gpu_has_an_answer_of_the_right_type",
     "gpuplug_resource_name returned int, not str"),
    (f"{HOOK}health", needs_its_attribute, "test_a_gpu_without_its_attributes_has_an_answer",
     "raised KeyError: 'foo_memory'"),
    (f"{HOOK}health", a_number_at_best, "test_attributes_of_any_text_have_an_answer",
     "an attribute may be missing or hold any text"),
    (f"{HOOK}health", sick(""), "test_every_verdict_has_its_reason", "in one line of at most 200 characters"),
    (f"{HOOK}health", sick("hot\n99"), "test_every_verdict_has_its_reason", "put it in with !r"),
    (f"{HOOK}health", sick("x" * 201), "test_every_verdict_has_its_reason", "has the reason 'xxx"),
    (f"{HOOK}health", health(change), "test_it_changes_nothing_that_it_is_given", "make a new value: dict("),
    (f"{HOOK}health", health(lambda gpu: Path("/dev/null").read_bytes()),
     "test_it_opens_no_file_and_starts_nothing", "did this: open '/dev/null'"),
    (f"{HOOK}health", health(lambda gpu: list(Path("/dev").iterdir())),
     "test_it_opens_no_file_and_starts_nothing", "did this: os.listdir '/dev'"),
    (f"{HOOK}health", health(lambda gpu: subprocess.run(["true"], check=True)),
     "test_it_opens_no_file_and_starts_nothing", "subprocess.Popen"),
    (f"{HOOK}health", health(lambda gpu: Path("/dev/kfd").exists()),
     "test_it_looks_at_nothing_but_what_it_is_given", "os.stat("),
    (f"{HOOK}health", health(lambda gpu: os.environ.get("HOME")),
     "test_it_looks_at_nothing_but_what_it_is_given", "asked for this: os.environ.get('HOME')"),
    (f"{HOOK}health", health(lambda gpu: os.environ["PATH"]),
     "test_it_looks_at_nothing_but_what_it_is_given", "asked for this: os.environ['PATH']"),
    (f"{HOOK}health", health(lambda gpu: time.time()),
     "test_it_looks_at_nothing_but_what_it_is_given", "asked for this: time.time()"),
    (f"{HOOK}health", health(lambda gpu: random.random()),
     "test_it_looks_at_nothing_but_what_it_is_given", "asked for this: random.random()"),
    (f"{HOOK}health", health(lambda gpu: print("looking at", gpu.address)),
     "test_it_prints_nothing", "printed 'looking at 0000:03:00.0\\n'"),
    (f"{HOOK}health", health(slow), "test_it_answers_at_once", "the limit is 5 ms"),
    (f"{HOOK}device_specs", neighbour, "test_it_gives_no_node_of_another_gpu", "never compute a number"),
    (f"{HOOK}device_specs", spec("/dev/dri"), "test_every_gpu_has_an_answer_of_the_right_type",
     "'/dev/dri' holds what is not of this GPU"),
    (f"{HOOK}device_specs", spec("/dev/char/226:129"), "test_it_gives_nothing_but_the_gpu",
     "name it in gpuplug_companion_nodes"),
    (f"{HOOK}device_specs", spec("/dev/kfd"), "test_it_gives_nothing_but_the_gpu", "gives /dev/kfd, "),
    (f"{HOOK}device_specs", may_make_nodes, "test_it_gives_nothing_but_the_gpu", "with 'rwm'"),
    (f"{HOOK}mounts", mount("/run/containerd/containerd.sock"), "test_it_gives_nothing_but_the_gpu",
     "take over the node"),
    (f"{HOOK}mounts", mount("/run"), "test_it_gives_nothing_but_the_gpu", "mounts /run,"),
    (f"{HOOK}mounts", mount("/dev/shm"), "test_it_gives_nothing_but_the_gpu", "mounts /dev/shm,"),
    (f"{HOOK}device_specs", also_missing, "test_it_gives_no_node_that_is_not_there", "does not have"),
    (f"{HOOK}device_specs", spec("/dev/foo"), "test_it_gives_no_node_that_is_not_there", "gives /dev/foo"),
    (f"{HOOK}device_specs", renders_only, "test_it_gives_no_node_that_is_not_there", "gives no node"),
    (f"{HOOK}device_specs", without_prefix, "test_it_gives_nodes_from_where_they_are",
     "DeviceSpec(node.path, node.host_path)"),
    (f"{HOOK}device_specs", spec("/dev/a/./b"), "test_every_path_can_be_mounted", "in its simplest form"),
    (f"{HOOK}device_specs", spec("/dev/" + "a" * 256), "test_every_path_can_be_mounted", "255 bytes"),
    (f"{HOOK}device_specs", spec("/dev" + "/abc" * 1100), "test_every_path_can_be_mounted", "4095 bytes"),
    (f"{HOOK}device_specs", spec("/dev/a\nb"), "test_every_path_can_be_mounted", "cannot be printed"),
    (f"{HOOK}device_specs", spec("/usr/lib/foogpu/"), "test_it_gives_no_container_path_twice",
     "by gpuplug_device_specs and by gpuplug_mounts"),
    (f"{HOOK}mounts", node_as_mount, "test_it_gives_no_container_path_twice", "not into gpuplug_mounts"),
    (f"{HOOK}mounts", one_place, "test_two_of_its_gpus_fit_into_one_container", "what all GPUs share"),
    (f"{HOOK}envs", envs({"1ST": "x"}), "test_its_environment_variables_can_be_set", "a shell takes"),
    (f"{HOOK}envs", envs({"GPUPLUG_GPUS": "x"}), "test_its_environment_variables_can_be_set",
     "begin the name with that of your GPU"),
    (f"{HOOK}envs", envs({"FOO": "x" * 2**17}), "test_its_environment_variables_can_be_set", "32 pages"),
    (f"{HOOK}envs", counted(), "test_the_same_question_has_the_same_answer", "no counter"),
    (f"{HOOK}envs", first_of, "test_its_environment_variables_do_not_depend_on_the_order_of_devices",
     "sort by device.gpu.address"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "function", "check", "words"),
    FAULTS,
    ids=[f"{check}-{words[:20]}" for _, _, check, words in FAULTS],
)
def test_a_fault_is_found_by_its_check_which_says_what_it_costs_and_what_to_do(
    hook: str, function: Callable[..., Any], check: str, words: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        getattr(kit_for(wrong(hook, function)), check)()
    said = str(caught.value)
    assert words in said
    assert re.search(r"\n  why it matters: \S.*\n  what to do: \S", said, re.DOTALL)


def test_a_missing_version_a_bad_option_and_a_wrong_hook_are_found() -> None:
    class Unversioned(Foogpu):
        GPUPLUG_HOOKS = ANY

    assert (
        "have `GPUPLUG_HOOKS = 1`"
        in complaints(kit_for(Unversioned()))["test_it_states_the_hooks_that_it_was_written_for"]
    )
    options = [DriverOption("mode", lambda text: text.upper(), "all", "a mode"),
               DriverOption("tier", str, "", "a tier")]  # fmt: skip
    said = complaints(kit_for(wrong("gpuplug_options", lambda self: options)))
    assert said.keys() == {"test_its_options_can_be_typed"}
    assert "its default 'all' is shown as 'all', and that is read as 'ALL'" in said.popitem()[1]
    options[0] = DriverOption("mode", int, 1, "a mode")
    options[0] = replace(options[0], type=lambda text: [][int(text)], default=None)
    assert complaints(kit_for(wrong("gpuplug_options", lambda self: options)))

    class Misspelt(Foogpu):
        @hookimpl
        def gpuplug_heatlh(self) -> None:
            return None

    said = complaints(kit_for(Misspelt()))
    assert {text.partition(": unknown")[0] for text in said.values()} == {
        "gpuplug does not load it: driver foogpu"
    }
    assert "test_it_is_loaded" in said


def test_what_the_author_left_out_is_asked_for() -> None:
    assert "`driver = gpuplug_foogpu`" in complaints(Kit())["test_it_is_loaded"]
    assert "set `gpus`" in complaints(kit_for(Foogpu(), gpus=()))["test_it_claims_each_of_its_gpus"]
    said = complaints(kit_for(Foogpu(), options={"teir": "gold"}))["test_it_is_loaded"]
    assert "'teir', which is no option of the driver" in said
    assert "choose from those that gpuplug_options declares: tier, limit" in said
    said = complaints(kit_for(Foogpu(), name=""))["test_it_is_installed_under_an_entry_point"]
    assert '`foogpu = "gpuplug_foogpu"` in pyproject.toml' in said


def test_an_import_from_below_gpuplug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gpuplug_too_deep.py").write_text(
        "from gpuplug.model import Gpu\nfrom gpuplug import hookimpl\n"
        "GPUPLUG_HOOKS = 1\n@hookimpl\ndef gpuplug_resource_name(gpu): return None\n"
    )
    module = __import__("gpuplug_too_deep")
    said = complaints(kit_for(module))["test_it_imports_only_the_top_of_gpuplug"]
    assert said.startswith("gpuplug_too_deep imports gpuplug.model\n")
    sys.modules.pop("gpuplug_too_deep")


def test_a_failure_shows_the_check_and_the_gpu_and_not_how_it_was_made(tmp_path: Path) -> None:
    """The whole way, as an author runs it: one short file, pytest, and the plugin's fixtures."""
    (tmp_path / "foogpu.py").write_text(
        "from gpuplug import hookimpl\nGPUPLUG_HOOKS = 1\n"
        "@hookimpl\ndef gpuplug_resource_name(gpu):\n"
        "    return 'foo.com/' + gpu.attributes['x'] if gpu.kernel_driver == 'foogpu' else None\n"
        "@hookimpl\ndef gpuplug_sysfs_attributes(): return ['x']\n"
    )
    (tmp_path / "test_foogpu.py").write_text(
        "import foogpu\nfrom gpuplug.testing import make_gpu\n"
        "from gpuplug.testing.conformance import Conformance\n"
        "class TestFoogpu(Conformance):\n"
        "    driver = foogpu\n    name = 'foogpu'\n"
        "    gpus = [make_gpu('foogpu', attributes={'x': 'gpu'})]\n"
        "def test_on_a_machine(gpuplug_machine, gpuplug_report):\n"
        "    gpuplug_machine.add_gpu('0000:03:00.0', driver='foogpu')\n"
        "    gpuplug_machine.write_attribute('0000:03:00.0', 'x', 'gold')\n"
        "    (resource,) = gpuplug_report(foogpu=foogpu).resources\n"
        "    assert resource.name == 'foo.com/gold'\n"
    )
    Machine(tmp_path / "made-up").add_gpu(driver="foogpu")  # pytest must not follow the links in it
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""},
        timeout=60,
    )
    assert ended.returncode == 1, ended.stdout
    assert "test_on_a_machine" not in ended.stdout
    said = ended.stdout
    assert "driver foogpu: gpuplug_resource_name raised KeyError: 'x'" in said
    assert "asking.py" not in said
    assert "rules.py" not in said
    assert "def fail" not in said
    assert not (tmp_path / ".hypothesis").exists()
    failed = set(re.findall(r"^FAILED .*::(\w+)", said, re.MULTILINE))
    assert failed == {  # one fault is not told of by every check
        "test_every_gpu_has_an_answer_of_the_right_type",
        "test_the_same_question_has_the_same_answer",
        "test_a_gpu_without_its_attributes_has_an_answer",
        "test_its_resource_names_are_ones_that_kubernetes_takes",
    }


def modules_after(code: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys, json; print(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout))


def test_the_plugin_costs_next_to_nothing_where_it_is_not_used() -> None:
    without = modules_after("import pytest")
    added = modules_after("import pytest, gpuplug.testing.plugin") - without
    assert not {"hypothesis", "grpclib", "loguru", "anyio", "rich"} & added
    assert not any(name.startswith(("gpuplug.kubelet", "gpuplug.testing.conformance")) for name in added)


def test_serving_brings_in_no_test_tools() -> None:
    served = modules_after("import gpuplug.commands.serve")
    assert not {"pytest", "hypothesis", "gpuplug.testing", "unittest.mock"} & served
