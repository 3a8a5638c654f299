"""``gpuplug inspect`` on every layout of tests/machines: text, JSON, exit codes, and the page of symptoms."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from gpuplug import app
from gpuplug.cli import main
from gpuplug.commands.inspect import NOTHING, driver_reports, look, look_up
from gpuplug.commands.layout import WIDTH
from gpuplug.commands.tables import headline, show
from gpuplug.core.inventory import build as decide
from gpuplug.host.attributes import Roots
from gpuplug.host.pci import survey
from gpuplug.host.sysfs import scan
from gpuplug.model import Inventory, RefusalCode
from gpuplug.observe.changes import around, changes
from gpuplug.observe.document import Details, document
from gpuplug.observe.refusals import ALL_MODULES
from gpuplug.observe.report import DriverReport, ServingState
from gpuplug.plugins.loader import BrokenDriver, Loaded
from gpuplug.settings import Settings, spelt
from gpuplug.testing import Lie, Machine, break_node
from gpuplug.testing.lies import put_fifo
from tests.machines.layouts import INTEL, LAYOUTS, PCI_IDS, Layout, build
from tests.machines.views import SNAPSHOTS, printed, see, views
from tests.running import eventually, heard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplug.observe.report import Report

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "examples/why-zero/README.md").read_text()
README = (ROOT / "README.md").read_text()
SCHEMA = (ROOT / "gpuplug/observe/README.md").read_text().partition("## The JSON of `gpuplug status")[0]
BY_NAME = {layout.name: layout for layout in LAYOUTS}
UNHEALTHY = "unhealthy"
A, B = "0000:03:00.0", "0000:04:00.0"


@cache
def seen(name: str) -> tuple[Report, str, dict[str, Any]]:
    """Look at a layout: its Report, the text and the JSON."""
    with TemporaryDirectory(prefix="gp-") as folder:
        report, details = see(BY_NAME[name], Path(folder))
    made = printed(BY_NAME[name], report, details)
    return report, made[f"{name}.txt"], json.loads(made[f"{name}.json"])


def codes(report: Report) -> set[str]:
    found = {gpu.refusal.code.value for gpu in report.gpus if gpu.refusal is not None}
    sick = {UNHEALTHY for gpu in report.gpus if gpu.offer is not None and not gpu.offer.verdict.healthy}
    return found | sick | ({report.nothing.code.value} if report.nothing else set())


def inspect(
    capsys: pytest.CaptureFixture[str], machine: Machine, *arguments: str, **environ: str
) -> tuple[int, str]:
    code = main(["inspect", "--prefix", str(machine.root), *arguments], environ)
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


# the layouts


@pytest.mark.parametrize(
    "layout", [layout for layout in LAYOUTS if layout.snapshot], ids=lambda one: one.name
)
def test_what_is_printed_is_what_was_reviewed(layout: Layout, short_path: Path) -> None:
    for name, content in views(layout, short_path).items():
        assert content == (SNAPSHOTS / name).read_text(), "python -m tests.machines.views writes it anew"


def test_there_is_no_snapshot_of_a_layout_that_is_gone() -> None:
    kept = {path.stem for path in SNAPSHOTS.iterdir()}
    assert kept == {layout.name for layout in LAYOUTS if layout.snapshot}
    assert len(kept) >= 15
    assert len(BY_NAME) == len(LAYOUTS)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_gpu_is_advertised_or_refused_with_a_reason_and_advice(name: str) -> None:
    report, _, made = seen(name)
    assert len({gpu.address for gpu in report.gpus}) == len(report.gpus)
    for gpu in report.gpus:
        assert (gpu.offer is None) != (gpu.refusal is None)
        if gpu.refusal is not None:
            assert gpu.refusal.reason
            assert gpu.refusal.advice
    assert (report.nothing is None) == bool(report.gpus)
    assert made["advertised"] == bool(report.advertised)
    assert len(report.advertised) + len(report.refused) == len(report.gpus)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_first_screen_says_why_it_is_less_than_all(name: str) -> None:
    report, text, _ = seen(name)
    screen = "\n".join(text.splitlines()[2:26])
    assert headline(report) in " ".join(screen.split())
    reasons = [gpu.refusal.reason for gpu in report.refused if gpu.refusal is not None]
    for reason in reasons[:2]:
        assert reason[:60] in screen
    assert bool(report.resources) == ("Advertised: " in screen)


@pytest.mark.parametrize("name", [layout.name for layout in LAYOUTS if layout.snapshot])
def test_no_line_of_the_text_is_wider_than_the_page_or_ends_in_blanks(name: str) -> None:
    lines = seen(name)[1].splitlines()[2:]
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in {"crowd", "unlisted", "wsl-vmbus"}])
def test_the_log_gives_the_same_reasons(name: str, short_path: Path) -> None:
    """Left out are two layouts with what only ``inspect`` looks for, and the one that takes seconds."""
    layout = BY_NAME[name]
    build(layout, Machine(short_path, nodes="links"))
    settings, roots = replace(layout.settings, prefix=str(short_path)), Roots(str(short_path))
    snapshot = scan(roots, layout.loaded.sysfs_attributes, layout.loaded.companion_nodes)
    inventory = decide(snapshot, layout.loaded.drivers, settings, Inventory())
    lines = [line.text for line in changes(None, inventory)]
    lines += [line.text for line in around(None, survey(roots, ALL_MODULES))]
    for gpu in look(settings, layout.loaded).refused:
        assert gpu.refusal is not None
        node = re.match(r"(card|renderD)[0-9]+(?=: its)", gpu.refusal.reason)
        named, reason = (node[0], gpu.refusal.reason.removeprefix(f"{node[0]}: ")) if node else (
            gpu.address,
            gpu.refusal.reason,
        )  # fmt: skip
        assert [one for one in lines if one.startswith(named) and one.endswith(f"not advertised: {reason}")]


# kinds of refusals


def test_every_kind_of_refusal_has_a_layout_that_shows_it() -> None:
    assert set().union(*(codes(seen(name)[0]) for name in BY_NAME)) == {*RefusalCode, UNHEALTHY}


def sections() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Read the page: code, layout, arguments and printed lines of each section."""
    pattern = (
        r"^## `(?P<code>[a-z-]+)`\n\n(?P<symptom>[^\n#<]+)\n\n<!-- machine: (?P<machine>[a-z0-9-]+) -->\n"
        r"```console\n\$ (?P<command>[^\n]+)\n(?P<printed>.*?)```\n\n(?P<todo>[^#\s].*?)\n(?=\n## |\Z)"
    )
    for match in re.finditer(pattern, PAGE, re.MULTILINE | re.DOTALL):
        yield match["code"], match["machine"], match["command"].split(), match["printed"].splitlines()


def test_the_page_has_one_section_for_each_kind() -> None:
    found = [code for code, *_ in sections()]
    assert sorted(found) == sorted({*RefusalCode, UNHEALTHY})
    assert len(found) == PAGE.count("\n## ")


@pytest.mark.parametrize("section", list(sections()), ids=lambda section: section[0])
def test_each_command_on_the_page_prints_what_the_page_says(
    section: tuple[str, str, list[str], list[str]], short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, name, command, lines = section
    layout = BY_NAME[name]
    report, text, _ = seen(name)
    assert code in codes(report)
    assert command[:2] == ["gpuplug", "inspect"]
    assert command[2:] == spelt(layout.settings).replace("=", " ").split()
    if layout.loaded is INTEL and layout.snapshot:  # the packages that are installed here
        machine = Machine(short_path, nodes="links")
        build(layout, machine)
        ended, text = inspect(capsys, machine, *command[2:])
        assert ended == (0 if report.advertised else NOTHING)
    words = " ".join(text.replace(str(short_path), "").split())  # the folder's name moves line breaks
    for line in lines:
        wanted = " ".join(line.replace("…", "").split())
        at = words.find(wanted)
        assert at >= 0, f"not printed, or not in this order: {line}"
        words = words[at + len(wanted) :]
    assert lines[-1].split() == ["Kind", code]


def test_the_readme_shows_what_is_printed() -> None:
    (shown,) = re.findall(r"```console\n\$ gpuplug inspect\n(.*?)```", README, re.DOTALL)
    assert shown in seen("comet-lake")[1]


# the command


def test_it_ends_with_0_if_something_is_advertised_and_with_3_if_not(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = inspect(capsys, machine)
    assert code == NOTHING == 3
    assert text.startswith("Nothing is advertised: this machine has no GPU.\n")
    machine.add_gpu(A)
    code, text = inspect(capsys, machine)
    assert code == 0
    assert text.startswith("Advertised: gpu.intel.com/i915: 1.\n")


def test_shares_are_a_range_and_not_a_list(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.add_gpu(A)
    _, text = inspect(capsys, machine, "--shared-dev-num", "100")
    assert f"  Devices        100 shares: {A}, {A}::1 to ::99\n" in text
    _, text = inspect(capsys, machine, GPUPLUG_SHARED_DEV_NUM="2")
    assert f"  Devices        2 shares: {A}, {A}::1\n" in text
    _, text = inspect(capsys, machine, "--json", "--shared-dev-num=764")
    advertised = json.loads(text)["gpus"][0]["advertised"]
    assert (advertised["first_device"], advertised["last_device"]) == (A, f"{A}::763")
    assert advertised["package"].startswith("gpuplug-intel ")


def test_many_gpus_of_one_fate_share_a_paragraph(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        machine.add_gpu(f"0000:{number + 3:02x}:00.0", driver="vfio-pci", card=False, render=False)
    _, text = inspect(capsys, machine)
    assert text.count("Kind            kept-for-vms") == 1
    assert "0000:0a:00.0 and 4 more\n" in text


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--prefix", "/nowhere"], {}, "--prefix: '/nowhere' is not there"),
        ([], {"GPUPLUG_PREFIX": "/nowhere"}, "GPUPLUG_PREFIX: '/nowhere' is not there"),
        (["--shared-dev-num", "0"], {}, "--shared-dev-num: '0' is not from 1 to"),
        (["--resync", "1"], {}, "unknown option or argument: '--resync'"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environ: dict[str, str], words: str
) -> None:
    assert main(["inspect", *arguments], environ) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_help_has_examples_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", "--help"], {})
    text = capsys.readouterr().out
    assert "--json" in text
    assert "gpuplug inspect --prefix /host" in text
    assert "   3  nothing is\n" in text


def test_without_a_prefix_it_looks_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json"], {}) in {0, NOTHING}
    assert json.loads(capsys.readouterr().out)["schema"] == "gpuplug.report/v1"


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
    show(seen("mixed-vendors")[0], Details(), stream, {"COLUMNS": "80", **environ})
    text = stream.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", text)) == coloured
    assert "gpu.intel.com/i915" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize("name", ["mixed-vendors", "sriov", "comet-lake", "half-there"])
def test_a_narrow_terminal_gets_narrow_lines(name: str, columns: int) -> None:
    text = io.StringIO()
    show(seen(name)[0], Details(), text, {"COLUMNS": str(columns)})
    assert max(map(len, text.getvalue().splitlines())) <= columns


def test_what_a_name_or_a_driver_says_cannot_control_the_terminal(short_path: Path) -> None:
    machine = Machine(short_path)
    machine.add_gpu(A, driver="evil")
    loaded = Loaded(broken=(BrokenDriver("evil", "driver evil: \x1b]0;owned\x07\nAdvertised: all"),))
    settings = Settings(prefix=str(short_path))
    text = io.StringIO()
    show(look(settings, loaded), Details(), text, {})
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text.getvalue())
    assert r"\x1b]0;owned\x07\nAdvertised: all" in text.getvalue()


def test_a_reader_that_has_seen_enough_is_no_error(machine: Machine) -> None:
    machine.add_gpus(30)
    command = [sys.executable, "-m", "gpuplug", "inspect", "--prefix", str(machine.root)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_any_locale_will_do(machine: Machine, encoding: str) -> None:
    machine.add_gpu(A)
    (machine.root / "usr/share/misc").mkdir(parents=True)
    (machine.root / "usr/share/misc/pci.ids").write_text("8086  Intel®\n\t56a0  Große Karte ✓\n")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    settings = Settings(prefix=str(machine.root))
    report = look(settings, INTEL)
    show(report, look_up(settings, report), stream, {})
    text = raw.getvalue().decode(encoding)
    assert "gpu.intel.com/i915" in text
    assert {"ascii": r"Intel\xae Gro\xdfe Karte \u2713", "utf-8": "Intel® Große Karte ✓"}.get(
        encoding, r"Intel® Große Karte \u2713"
    ) in text


async def test_serve_tells_in_its_log_of_a_gpu_that_has_no_drm_device(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B, driver=None, device=0x9BC8, card=False, render=False)
    settings = Settings(prefix=str(machine.root), kubelet_dir=str(kubelet_dir), resync=1)
    with heard() as lines:

        def told(words: str) -> int:
            return sum(line.startswith(("INFO", "WARNING")) and words in line for line in lines)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app.serve, settings, INTEL)
            text = f"{B} (no kernel driver 8086:9bc8): not advertised: it is bound to no kernel driver, and"
            await eventually(lambda: told(text) > 0, lambda: "\n".join(lines))
            machine.bind(B, "vfio-pci", card=False, render=False)
            await eventually(
                lambda: told(f"{B} (vfio-pci 8086:9bc8): not advertised") > 0, lambda: "\n".join(lines)
            )
            tasks.cancel_scope.cancel()
        assert told(text) == 1


def imported_by(script: str) -> set[str]:
    code = f"import sys\n{script}\nprint('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stdout.rpartition("modules:")[2].split()}


def test_serve_imports_no_rich_and_neither_does_the_json(machine: Machine) -> None:
    machine.add_gpu(A)
    call = f"from gpuplug.cli import main; main(['inspect', '--prefix', {str(machine.root)!r}{{}}], {{{{}}}})"
    assert "rich" not in imported_by("import gpuplug.commands.serve")
    assert not {"rich", "grpclib", "betterproto2"} & imported_by(call.format(", '--json'"))
    assert "rich" in imported_by(call.format(""))


def test_it_opens_no_node(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A FIFO that nobody writes to would hold whoever opens it for ever."""
    machine.add_gpu(A)
    machine.add_gpu(B)
    break_node(machine, "card0", Lie.NODE_IS_FIFO)
    put_fifo(machine.dev / "dxg")
    code, text = inspect(capsys, machine)
    assert code == 0
    assert "card0 is a file of another kind, not a character device" in " ".join(text.split())


# the schema


def fields(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from fields(inner, f"{path}[]")
    else:
        yield path


def test_every_field_of_the_json_is_in_the_description_of_the_schema() -> None:
    rows = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", SCHEMA, re.MULTILINE))
    found = {path for name in BY_NAME for path in fields(seen(name)[2])}
    found |= set(fields(seen_with_kubelet()))
    described = {row.removesuffix("[]") for row in rows} | rows
    assert {path for path in found if not path.startswith("nothing.")} <= described
    leaves = {row for row in rows if not any(other.startswith((f"{row}.", f"{row}[]")) for other in rows)}
    assert {row for row in leaves if not row.endswith("[]")} <= found


def seen_with_kubelet() -> dict[str, Any]:
    report = seen("card1")[0]
    (resource,) = report.resources
    state = ServingState(streaming=False, phase="not registered", reason="the kubelet did not answer")
    drivers = (DriverReport("foo", options=(("--foo-mode", "all"),)),)
    resources = (replace(resource, serving=state),)
    return document(replace(report, resources=resources, drivers=drivers), Details())


def test_how_a_resource_stands_with_the_kubelet_is_shown_where_it_is_known() -> None:
    report = seen("card1")[0]
    (resource,) = report.resources
    state = ServingState(streaming=False, phase="not registered", reason="no answer")
    text = io.StringIO()
    show(replace(report, resources=(replace(resource, serving=state), resource)), Details(), text, {})
    assert re.search(r"Resource +GPUs +Devices +Healthy +Kubelet\n", text.getvalue())
    assert re.search(r"gpu.intel.com/i915 +1 +1 +1 +not registered: no answer\n", text.getvalue())


def test_broken_and_loaded_drivers_are_told_apart() -> None:
    loaded = replace(INTEL, broken=(BrokenDriver("amd", "driver amd cannot be imported"),))
    assert [(one.name, one.package, one.problem) for one in driver_reports(loaded)] == [
        ("i915", "gpuplug-intel 0.1.0", ""),
        ("xe", "gpuplug-intel 0.1.0", ""),
        ("amd", "", "driver amd cannot be imported"),
    ]


def test_names_of_ids_are_those_of_the_machine_that_is_looked_at(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.add_gpu(A)
    _, text = inspect(capsys, machine)
    assert "  Model          8086:56a0, class 0300\n" in text
    (machine.root / "usr/share/hwdata").mkdir(parents=True)
    (machine.root / "usr/share/hwdata/pci.ids").write_text(PCI_IDS)
    _, text = inspect(capsys, machine)
    assert "  Model          8086:56a0 Intel Corporation DG2 [Arc A770], class 0300\n" in text
