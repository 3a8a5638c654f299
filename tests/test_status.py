"""``gpuplug status``: who holds what, what is free, and where the kubelet and the machine differ."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplug.cli import main
from gpuplug.commands.status import DIFFERENT, FAILED, NOTHING, Screen, exit_code, join, seconds
from gpuplug.commands.status_tables import lines
from gpuplug.core.belief import Belief, Holder
from gpuplug.errors import KubeletError, SettingError
from gpuplug.model import Inventory, Rejected, Resource, ResourceName, Surroundings, Verdict
from gpuplug.observe.disagreements import ADVICE, DisagreementCode
from gpuplug.observe.report import Report, build_report
from gpuplug.observe.status import StatusReport, build_status, shares_told
from gpuplug.observe.status_document import status_document
from gpuplug.settings import Settings
from gpuplug.testing import FakePodResources, Lie, Machine, break_node
from tests.machines.beliefs import SCENES, Scene, held, offered, see
from tests.machines.layouts import INTEL
from tests.test_inspect import fields, imported_by
from tests.values import make_gpu, make_offer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Run = Callable[..., Awaitable[tuple[int, str, str]]]

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "examples/why-zero/kubelet.md").read_text()
README = (ROOT / "README.md").read_text()
SCHEMA = (ROOT / "gpuplug/observe/README.md").read_text()
A, B, C, D = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "fd000000.gpu"
I915, XE, WIDGET = "gpu.intel.com/i915", "gpu.intel.com/xe", "example.com/widget"
NONE: frozenset[int] = frozenset()


def see_scene(scene: Scene) -> StatusReport:
    with TemporaryDirectory(prefix="gp-") as folder:
        return see(scene, Path(folder))


def text_of(status: StatusReport, columns: int = 100) -> str:
    return "\n".join(lines(status, io.StringIO(), {"COLUMNS": str(columns)})) + "\n"


# the join, on everything


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Draw a machine: GPUs on up to two resources, some unhealthy, some refused."""
    resources: dict[ResourceName, Resource] = {}
    rejected: list[Rejected] = []
    shares = draw(st.integers(1, 3))
    for address in draw(st.lists(st.sampled_from([A, B, C, D]), unique=True)):
        fate = draw(st.sampled_from([I915, I915, XE, None]))
        gpu = make_gpu(address, numa_node=draw(st.sampled_from([None, 0, 1])))
        if fate is None:
            rejected.append(Rejected(address, "it lies"))
            continue
        verdict = Verdict(draw(st.sampled_from([True, True, False])), "too hot")
        name = ResourceName(fate)
        before = resources.get(name, Resource(name))
        resources[name] = Resource(name, (*before.offers, make_offer(gpu, shares=shares, verdict=verdict)))
    return build_report(Inventory(dict(sorted(resources.items())), tuple(rejected)), (), Surroundings())


ids = st.builds(
    lambda address, share: f"{address}::{share}" if share else address,
    st.sampled_from([A, B, C, D, "0000:99:00.0", "card0-1"]),
    st.integers(0, 3),
)
names = st.sampled_from([I915, XE, WIDGET, "intel.com/nic"])
holders = st.builds(
    Holder,
    st.sampled_from(["default", "media"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["main", "side"]),
    names,
    st.frozensets(ids, min_size=1, max_size=3).map(lambda some: tuple(sorted(some))),
)
beliefs = st.builds(
    Belief,
    st.none()
    | st.dictionaries(
        names, st.dictionaries(ids, st.frozensets(st.integers(0, 1), max_size=2), min_size=1, max_size=5)
    ),
    st.lists(
        holders, max_size=5, unique_by=lambda one: (one.namespace, one.pod, one.container, one.resource)
    ).map(lambda some: tuple(sorted(some))),
)


@st.composite
def truths(draw: st.DrawFn) -> tuple[Report, Belief]:
    """Draw a machine, and a kubelet that knows exactly what is there, of which pods hold a part."""
    report = draw(reports())
    allocatable: dict[str, dict[str, frozenset[int]]] = {}
    given_out: list[Holder] = []
    for gpu in report.advertised:
        assert gpu.offer is not None
        if not gpu.offer.verdict.healthy:
            continue
        nodes = NONE if gpu.numa_node is None else frozenset({gpu.numa_node})
        for id_ in gpu.offer.ids():
            allocatable.setdefault(str(gpu.resource), {})[id_] = nodes
            if draw(st.booleans()):
                given_out.append(Holder("default", f"pod-of-{id_}", "main", str(gpu.resource), (id_,)))
    allocatable[WIDGET] = {"w1": NONE}
    return report, Belief(allocatable, tuple(sorted(given_out)))


@given(truth=truths())
def test_a_kubelet_that_knows_what_is_there_is_agreed_with(truth: tuple[Report, Belief]) -> None:
    report, belief = truth
    status = build_status(report, belief, {gpu.address for gpu in report.gpus})
    assert status.disagreements == ()
    assert [other.name for other in status.others] == [WIDGET]
    for resource, one in zip(status.resources, report.resources, strict=True):
        assert (resource.name, resource.devices, resource.healthy) == (one.name, one.devices, one.healthy)
        assert resource.offered == one.healthy
        assert resource.free == one.healthy - resource.held
    assert exit_code(status) == (0 if report.resources else NOTHING)


@given(report=reports(), belief=beliefs)
def test_all_that_the_kubelet_says_is_accounted_for(report: Report, belief: Belief) -> None:
    status = build_status(report, belief, {"0000:99:00.0"})
    ours = {resource.name for resource in status.resources}
    others = {other.name for other in status.others}
    said = {*(belief.allocatable or {}), *(holder.resource for holder in belief.holders)}
    assert not ours & others
    assert said <= ours | others
    assert {str(resource.name) for resource in report.resources} <= ours

    holding = {
        (holder.resource, id_, holder.namespace, holder.pod, holder.container)
        for holder in belief.holders
        if holder.resource in ours
        for id_ in holder.devices
    }
    shown = [
        (gpu.resource, one.device, one.namespace, one.pod, one.container)
        for gpu in status.gpus
        for one in gpu.held
    ]
    assert sorted(shown) == sorted(holding)
    assert status.told == (belief.allocatable is not None)
    for resource in status.resources:
        devices = None if belief.allocatable is None else belief.allocatable.get(resource.name, {})
        assert resource.offered == (None if devices is None else len(devices))
        taken = {id_ for name, id_, *_ in holding if name == resource.name}
        assert resource.held == len(taken)
        assert resource.free == (None if devices is None else len(devices.keys() - taken))
    # Every GPU of the machine is there once for its resource, or among those that are left out.
    rows = [(gpu.resource, gpu.address) for gpu in status.gpus]
    assert rows == sorted(set(rows))
    assert {(str(gpu.resource), gpu.address) for gpu in report.advertised} <= set(rows)
    in_rows = {address for _, address in rows}
    assert {gpu.address for gpu in status.refused} == {gpu.address for gpu in report.refused} - in_rows


@given(report=reports(), belief=beliefs)
def test_what_is_in_another_state_than_it_should_be_is_a_disagreement(report: Report, belief: Belief) -> None:
    status = build_status(report, belief, ())
    about = {(one.resource, name) for one in status.disagreements for name in one.about}
    for gpu in status.gpus:
        if gpu.state != "healthy":
            assert not gpu.offered or (gpu.resource, gpu.address) in about
            assert all((gpu.resource, one.device) in about for one in gpu.held)
        elif gpu.offered == 0:
            assert (gpu.resource, gpu.address) in about or (gpu.resource, gpu.resource) in about
    for one in status.disagreements:
        assert one.reason
        assert one.advice
        assert list(one.about) == sorted(set(one.about))
    assert status.agree == (not status.disagreements)
    assert exit_code(status) == (DIFFERENT if status.disagreements else 0 if status.resources else NOTHING)


@given(report=reports(), belief=beliefs, data=st.data())
def test_the_order_in_which_the_kubelet_lists_things_does_not_matter(
    report: Report, belief: Belief, data: st.DataObject
) -> None:
    shuffled = Belief(
        None
        if belief.allocatable is None
        else {
            name: dict(data.draw(st.permutations(list(devices.items()))))
            for name, devices in data.draw(st.permutations(list(belief.allocatable.items())))
        },
        tuple(data.draw(st.permutations(belief.holders))),
    )
    assert build_status(report, shuffled, ()) == build_status(report, belief, ())


@settings(max_examples=30)
@given(report=reports(), belief=beliefs)
def test_text_and_json_say_the_same(report: Report, belief: Belief) -> None:
    status = build_status(report, belief, ())
    made = json.loads(json.dumps(status_document(status)))
    text = text_of(status, 400)
    assert [one["code"] for one in made["disagreements"]] == [one.code for one in status.disagreements]
    for code in DisagreementCode:
        count = sum(one["code"] == code for one in made["disagreements"])
        assert len(re.findall(f"^  Kind +{code}$", text, re.MULTILINE)) == count
    for gpu in made["gpus"]:
        assert gpu["address"] in text
        for one in gpu["held"]:
            assert f"{one['namespace']}/{one['pod']}, {one['container']}" in text
    assert made["agree"] == status.agree


# what counts as ours, and what is said of it


def joined(machine: Machine, belief: Belief) -> StatusReport:
    return join(belief, Settings(prefix=str(machine.root)), INTEL, shares_chosen=False)


def differences(status: StatusReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.code.value, one.about) for one in status.disagreements]


def test_a_pod_that_outlived_the_last_gpu_is_told_of_though_nothing_else_names_the_resource(
    machine: Machine,
) -> None:
    status = joined(machine, Belief({WIDGET: {"w1": NONE}}, (held(A), held("w1", resource=WIDGET))))
    assert differences(status) == [("held-in-vain", (A,))]
    assert [resource.name for resource in status.resources] == [I915]
    assert [(other.name, other.held) for other in status.others] == [(WIDGET, 1)]


def test_a_network_card_with_an_address_on_the_bus_is_not_taken_for_a_gpu(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_gpu("0000:5e:00.1", pci_class=0x020000, driver=None, card=False, render=False)
    nic = offered("0000:5e:00.1", resource="intel.com/nic")
    status = joined(machine, Belief({**offered(A), **nic}))
    assert status.agree
    assert [other.name for other in status.others] == ["intel.com/nic"]


def test_a_gpu_that_another_plugin_gives_out_by_its_address_is_left_to_that(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B, driver="amdgpu", vendor=0x1002)
    amd = offered(B, resource="amd.com/gpu")
    status = joined(machine, Belief({**offered(A), **amd}, (held(B, resource="amd.com/gpu"),)))
    assert status.agree
    assert [(other.name, other.held) for other in status.others] == [("amd.com/gpu", 1)]


def test_a_gpu_on_another_kernel_driver_is_told_to_have_moved(machine: Machine) -> None:
    machine.add_gpu(A, driver="xe")
    status = joined(machine, Belief(offered(A), (held(A),)))
    assert [(one.code.value, one.resource) for one in status.disagreements] == [
        ("not-registered", XE),
        ("offered-in-vain", I915),
        ("held-in-vain", I915),
    ]
    assert "it is advertised as gpu.intel.com/xe now" in status.disagreements[2].reason


def test_another_plugin_under_the_same_name_is_told_by_its_ids(machine: Machine) -> None:
    machine.add_gpu(A)
    status = joined(machine, Belief(offered("card0-0", "card0-1")))
    assert [one.code.value for one in status.disagreements] == ["gpu-unknown", "offered-in-vain"]
    assert status.disagreements[1].about == ("card0-0", "card0-1")
    assert "another device plugin that serves this resource name" in status.disagreements[1].advice


def test_an_unhealthy_gpu_that_is_held_is_told_with_its_reason(machine: Machine) -> None:
    machine.add_gpu(A)
    break_node(machine, "card0", Lie.NODE_MISSING)
    status = joined(machine, Belief({}, (held(A),)))
    ((code, about),) = differences(status)
    assert (code, about) == ("held-in-vain", (A,))
    assert "it is unhealthy: /dev/dri lacks card0" in status.disagreements[0].reason
    assert "the pod goes on" in status.disagreements[0].advice


def test_a_gpu_that_is_refused_and_held_is_told_with_the_reason_that_inspect_gives(machine: Machine) -> None:
    machine.add_gpu(A, driver="vfio-pci", card=False, render=False)
    status = joined(machine, Belief({}, (held(A),)))
    assert "it is not advertised: it is bound to vfio-pci" in status.disagreements[0].reason
    assert status.refused == ()


def test_two_containers_of_one_pod_may_hold_one_device(machine: Machine) -> None:
    machine.add_gpu(A)
    assert joined(machine, Belief(offered(A), (held(A), held(A, container="side")))).agree


def test_a_monitoring_resource_holds_no_gpu_back(machine: Machine) -> None:
    machine.add_gpu(A)
    name = f"{I915}_monitoring"
    belief = Belief(
        {**offered(A), **offered("all", resource=name)}, (held("all", pod="exporter", resource=name),)
    )
    for chosen in (Settings(), Settings(enable_monitoring=True)):
        status = join(belief, replace(chosen, prefix=str(machine.root)), INTEL, shares_chosen=False)
        assert status.agree
        assert [(one.name, one.free) for one in status.resources] == [(I915, 1)]
        assert status.others == ()
        assert f"  Monitoring    {name}: held by default/exporter, main\n" in text_of(status)


def test_a_monitoring_resource_that_should_be_there_is_missed(machine: Machine) -> None:
    machine.add_gpu(A)
    chosen = Settings(prefix=str(machine.root), enable_monitoring=True)
    name = f"{I915}_monitoring"
    assert differences(join(Belief(offered(A)), chosen, INTEL, shares_chosen=False)) == [
        ("not-registered", (name,))
    ]


def test_an_old_kubelet_that_says_only_who_holds_what_is_not_contradicted(machine: Machine) -> None:
    machine.add_gpu(A)
    status = joined(machine, Belief(None, (held(f"{A}::1"),)))
    assert status.agree
    assert [(one.offered, one.free, one.held) for one in status.resources] == [(None, None, 1)]
    text = text_of(status)
    assert "this kubelet does not say what it can give out" in text
    assert "share 1: default/web, main" in text


def test_the_number_of_shares_is_the_one_that_the_kubelet_was_told() -> None:
    mine = {A, B}
    assert shares_told(Belief({}), mine) == 1
    assert shares_told(Belief(offered(A, f"{A}::1", f"{C}::7", "x::9")), mine) == 2
    assert shares_told(Belief(offered(A), (held(f"{A}::4"),)), mine) == 1
    assert shares_told(Belief(None, (held(f"{A}::4"),)), mine) == 5


def test_gpus_of_one_fate_share_a_paragraph(machine: Machine) -> None:
    machine.add_gpus(12)
    every = [f"0000:03:{number:02x}.0" for number in range(12)]
    status = joined(machine, Belief(offered("0000:03:1f.0"), ()))
    (unknown,) = [one for one in status.disagreements if one.code is DisagreementCode.GPU_UNKNOWN]
    assert unknown.about == tuple(every)
    assert "and 4 more\n" in text_of(status)


# the page


def sections() -> dict[str, list[str]]:
    """Read the page: the printed lines of each section, by its kind."""
    pattern = r"^## `([a-z-]+)`\n\n[^\n#<]+\n\n```console\n# gpuplug status[^\n]*\n(.*?)```\n\n[^#\s]"
    return {match[1]: match[2].splitlines() for match in re.finditer(pattern, PAGE, re.MULTILINE | re.DOTALL)}


def test_every_kind_of_disagreement_has_a_scene_an_advice_and_a_section() -> None:
    assert {scene.code for scene in SCENES} == {None, *DisagreementCode}
    assert set(ADVICE) == set(DisagreementCode)
    assert set(sections()) == set(DisagreementCode)
    assert len(sections()) == PAGE.count("\n## `")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.code))
def test_each_scene_is_what_it_is_called_and_prints_what_the_page_says(scene: Scene) -> None:
    status = see_scene(scene)
    codes = [one.code for one in status.disagreements]
    assert codes == ([] if scene.code is None else [scene.code])
    text = text_of(status)
    assert max(map(len, text.splitlines())) <= 100
    if scene.code is not None:
        shown = sections()[scene.code]
        assert shown[-1].split() == ["Kind", scene.code]
        assert "\n".join(shown) in text


def test_the_readme_shows_what_is_printed() -> None:
    (shown,) = re.findall(r"```console\n# gpuplug status\n(.*?)```", README, re.DOTALL)
    assert shown.strip() == text_of(see_scene(SCENES[0])).strip()


# the schema


def test_every_field_of_the_json_is_in_the_description_of_the_schema() -> None:
    part = SCHEMA.partition("## The JSON of `gpuplug status --json`")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", part, re.MULTILINE))
    found = {path for scene in SCENES for path in fields(status_document(see_scene(scene)))}
    found |= {path.replace("monitoring[].held[].", "gpus[].held[].") for path in fields(everything())}
    described = rows | {row.removesuffix("[]") for row in rows}
    assert found <= described
    leaves = {row for row in rows if not any(other.startswith((f"{row}.", f"{row}[]")) for other in rows)}
    assert {row for row in leaves if not row.endswith("[]")} <= found
    for code in DisagreementCode:
        assert f"`{code}`" in PAGE


def everything() -> dict[str, Any]:
    report = build_report(Inventory({}, (Rejected(B, "it lies"),)), (), Surroundings())
    watched = offered("all", resource=f"{I915}_monitoring")
    watching = held("all", resource=f"{I915}_monitoring")
    return status_document(
        build_status(report, Belief({WIDGET: {"w": NONE}, **watched}, (held(A), watching)), ())
    )


# the command


@pytest.fixture
def socket_path(short_path: Path) -> Path:
    return short_path / "kubelet.sock"


def arguments(machine: Machine, socket_path: Path, *more: str) -> list[str]:
    return ["status", "--prefix", str(machine.root), "--pod-resources-socket", str(socket_path), *more]


@pytest.fixture
def status(machine: Machine, socket_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    async def run(*more: str) -> tuple[int, str, str]:
        """Run the command in a thread: it has an event loop of its own."""
        code = await anyio.to_thread.run_sync(main, arguments(machine, socket_path, *more), {})
        return code, *capsys.readouterr()

    return run


async def test_the_command_asks_the_kubelet_and_ends_with_0_3_or_4(
    machine: Machine, socket_path: Path, status: Run
) -> None:
    async with FakePodResources(socket_path) as kubelet:
        code, out, err = await status()
        assert (code, err) == (NOTHING, "")
        assert out == "There is nothing: no GPU is advertised, and none is held.\n"

        machine.add_gpu(A, numa_node=0)
        kubelet.offer(I915, A, f"{A}::1", numa_nodes=[0])
        kubelet.give("default", "web", "main", I915, A)
        kubelet.give("default", "idle", "main", I915)
        code, out, err = await status()
        assert (code, err) == (0, "")
        assert out.startswith("Kubelet and machine agree. gpu.intel.com/i915: 1 held, 1 free.\n")

        kubelet.withdraw(I915)
        code, out, err = await status("--json")
        assert (code, err) == (DIFFERENT, "")
        made = json.loads(out)
        assert made["schema"] == "gpuplug.status/v1"
        assert [one["code"] for one in made["disagreements"]] == ["not-registered"]
        assert made["gpus"][0]["held"][0]["pod"] == "web"


async def test_a_number_of_shares_that_was_chosen_is_compared(
    machine: Machine, socket_path: Path, status: Run
) -> None:
    machine.add_gpu(A)
    async with FakePodResources(socket_path) as kubelet:
        kubelet.offer(I915, A)
        code, out, _ = await status("--json", "--shared-dev-num", "2")
    assert code == DIFFERENT
    assert json.loads(out)["disagreements"][0]["code"] == "shares-differ"


async def test_no_kubelet_is_one_line_and_exit_1(socket_path: Path, status: Run) -> None:
    code, out, err = await status()
    assert (code, out) == (FAILED, "")
    assert err.startswith(f"gpuplug: {socket_path}: No such file or directory: start the kubelet;")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "environ", "words"),
    [
        (["--watch", "0"], {}, "--watch: '0' is not a number of seconds from 0.1 to 86400"),
        (["--watch=soon"], {}, "--watch: 'soon' is not a number"),
        (["--pod-resources-socket", "here"], {}, "--pod-resources-socket: 'here' is not an absolute path"),
        (["--pod-resources-socket", "/" + 120 * "x"], {}, "is longer than 107 bytes"),
        ([], {"GPUPLUG_POD_RESOURCES_SOCKET": "x"}, "GPUPLUG_POD_RESOURCES_SOCKET: 'x' is not an absolute"),
        (["--prefix", "/nowhere"], {}, "--prefix: '/nowhere' is not there"),
        (["--kubelet-dir", "/x"], {}, "unknown option or argument: '--kubelet-dir'"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_2(
    more: list[str], environ: Mapping[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *more], environ) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@given(text=st.text(max_size=12))
def test_any_text_is_a_number_of_seconds_or_an_error(text: str) -> None:
    try:
        number = seconds(text)
    except SettingError as error:
        number, told = 1, str(error)
        assert told.startswith(f"--watch: {text!r} is not")
    assert 0.1 <= number <= 86_400


# --watch


def screen(out: io.StringIO, err: io.StringIO, *, as_json: bool = False) -> Screen:
    return Screen(out, err, {}, as_json=as_json, stays=True)


def raising(text: str) -> Callable[[], StatusReport]:
    def look() -> StatusReport:
        raise KubeletError(text)

    return look


def test_watching_tells_what_changed_and_nothing_else() -> None:
    first, other = see_scene(SCENES[0]), see_scene(SCENES[1])
    out, err = io.StringIO(), io.StringIO()
    watching = screen(out, err)
    codes = []
    for look in (lambda: first, lambda: first, raising("k: gone"), raising("k: gone"), lambda: other):
        watching.show(look)
        codes.append(watching.code)
    watching.show(lambda: first)
    assert codes == [0, 0, FAILED, FAILED, DIFFERENT]
    assert err.getvalue() == "gpuplug: k: gone\n"
    heads = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n(\S+ \S+ \S+ \S+)", out.getvalue(), re.MULTILINE)
    assert heads == ["Kubelet and machine agree.", "Kubelet and machine differ", "Kubelet and machine agree."]
    assert "\x1b" not in out.getvalue()


def test_watching_for_scripts_gives_a_line_of_json_per_change() -> None:
    first, other = see_scene(SCENES[0]), see_scene(SCENES[1])
    out, err = io.StringIO(), io.StringIO()
    watching = screen(out, err, as_json=True)
    for one in (first, first, other):
        watching.show(lambda one=one: one)  # type: ignore[misc]
    made = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["agree"] for each in made] == [True, False]


async def test_watching_follows_the_kubelet_through_its_absence_until_interrupted(
    machine: Machine, socket_path: Path
) -> None:
    machine.add_gpu(A)
    command = [sys.executable, "-m", "gpuplug", *arguments(machine, socket_path, "--watch", "0.1", "--json")]
    async with FakePodResources(socket_path) as kubelet:
        kubelet.offer(I915, A)
        async with await anyio.open_process(command) as process:
            assert process.stdout is not None
            assert process.stderr is not None

            async def line() -> dict[str, Any]:
                told = b""
                with anyio.fail_after(10):
                    while not told.endswith(b"\n"):
                        told += await process.stdout.receive()  # type: ignore[union-attr]
                made: dict[str, Any] = json.loads(told)
                return made

            try:
                assert (await line())["resources"][0]["free"] == 1
                kubelet.give("default", "web", "main", I915, A)
                assert (await line())["resources"][0]["free"] == 0
                await kubelet.stop()
                with anyio.fail_after(10):
                    assert b"gpuplug: " in await process.stderr.receive()
                await kubelet.start()
                assert (await line())["resources"][0]["free"] == 0
                process.send_signal(signal.SIGINT)
                with anyio.fail_after(10):
                    assert await process.wait() == 0
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def test_interrupted_while_it_waits_for_the_kubelet_it_ends_without_a_word(
    machine: Machine, socket_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(socket_path))
        silent.listen()
        command = [sys.executable, "-m", "gpuplug", *arguments(machine, socket_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            silent.settimeout(20)
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            said, code = process.stdout.read(), process.wait(20)
            connection.close()
    assert (code, said) == (130, b"")


def all_of(leader: int) -> str:
    """Read what was written to a terminal that nobody has open any more, and close it."""
    told = b""
    with contextlib.suppress(OSError), open(leader, "rb", buffering=0) as terminal:  # EIO is its end
        while piece := terminal.read(65536):
            told += piece
    return told.decode()


@pytest.mark.parametrize(("height", "shown"), [(8, 5), (100, 10), (0, 10)])
def test_what_has_no_room_on_a_terminal_is_counted(height: int, shown: int) -> None:
    leader, follower = pty.openpty()
    try:
        termios.tcsetwinsize(follower, (height, 100))
        with open(follower, "w", closefd=False) as terminal:
            watching = Screen(terminal, io.StringIO(), {"TERM": "xterm"}, as_json=False, stays=True)
            watching._print([f"line {number}" for number in range(10)], terminal)
    finally:
        os.close(follower)
        text = all_of(leader)
    assert text.count("line ") == shown
    assert (f"… {10 - shown} more lines" in text) == (shown < 10)


def test_on_a_terminal_each_look_takes_the_place_of_the_one_before() -> None:
    leader, follower = pty.openpty()
    try:
        with open(follower, "w", closefd=False) as terminal:
            environ = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
            watching = Screen(terminal, io.StringIO(), environ, as_json=False, stays=True)
            looked = see_scene(SCENES[0])
            watching.show(lambda: looked)
            watching.show(lambda: looked)
            watching.show(raising("k: gone"))
    finally:
        os.close(follower)
        shown = all_of(leader)
    assert shown.count("\x1b[H\x1b[2J") == 3
    assert shown.count("Kubelet and machine agree") == 2
    assert "gpuplug: k: gone" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)


# terminals


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_there_are_colours_only_on_a_terminal_that_wants_them(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    text = "\n".join(lines(see_scene(SCENES[1]), stream, {"COLUMNS": "80", **environ}))
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", text)) == coloured


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_gets_narrow_lines(columns: int) -> None:
    for scene in SCENES:
        assert max(map(len, text_of(see_scene(scene), columns).splitlines())) <= columns


def test_names_from_the_kubelet_cannot_control_the_terminal(machine: Machine) -> None:
    machine.add_gpu(A)
    evil = Holder("\x1b]0;owned\x07", "p\nq", "c", I915, (A, "\x1b[2J"))
    text = text_of(joined(machine, Belief(offered(A), (evil, replace(evil, resource="\x1b[1m/x")))))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_it_imports_no_rich_before_it_prints_a_table() -> None:
    assert "rich" not in imported_by("import gpuplug.commands.status")


def test_a_reader_that_has_seen_enough_is_no_error(machine: Machine, socket_path: Path) -> None:
    async def run() -> tuple[int | None, bytes]:
        machine.add_gpus(30)
        async with FakePodResources(socket_path):
            command = [sys.executable, "-m", "gpuplug", *arguments(machine, socket_path)]
            reader, writer = os.pipe()
            os.close(reader)
            try:
                done = await anyio.run_process(command, stdout=writer, stderr=subprocess.PIPE, check=False)
            finally:
                os.close(writer)
            return done.returncode, done.stderr

    assert anyio.run(run) == (DIFFERENT, b"")
