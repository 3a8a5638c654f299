"""Runs the tests below `guest` in virtual machines, once per kernel, and all others here.

The suite never skips: where this machine lacks something it stops at once, with one line that says what.
Inside a virtual machine, the same file writes down what pytest reports there.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .harness.kernels import KERNELS, Bootable, Kernel, bootable
from .harness.kinds import GUEST, KINDS
from .harness.machine import tail
from .harness.needs import MissingRequirementError, check_machine
from .harness.remote import KERNEL, REPORTS, Run, side_by_side
from .harness.table import latency_table

_INSIDE = os.environ.get(KERNEL, "")
_SHARE = Path(os.environ.get("GPUPLUG_VM_SHARE", "/nonexistent"))


@dataclass(frozen=True, slots=True)
class _Needs:
    """The machine that a test of the guest runs in."""

    kernel: Kernel
    folder: Path
    """That of its tests; it stands for the kind of machine."""


_RUNS = pytest.StashKey[dict[_Needs, Run]]()


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Name the kernel that a test is for, and get ready what boots it."""
    found: Kernel = request.param
    return found


@pytest.fixture(scope="session")
def machine_kernel(kernel: Kernel, pytestconfig: pytest.Config) -> Bootable:
    """Get a kernel ready, for a test that boots machines of its own."""
    with _one_line():
        return bootable(kernel, _teller(pytestconfig))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shorter", action="store_true", help="run what takes a minute on the first kernel alone (tests/vm)"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have every test of the guest once per kernel."""
    in_guest = metafunc.definition.path.is_relative_to(GUEST)
    if in_guest and "kernel" not in metafunc.fixturenames:
        metafunc.fixturenames.append("kernel")
    if "kernel" in metafunc.fixturenames:
        wanted = [kernel for kernel in KERNELS if _INSIDE in {"", kernel.name}]
        markers = ["one_kernel", *(["long"] if metafunc.config.getoption("shorter") else [])]
        if any(metafunc.definition.get_closest_marker(marker) for marker in markers):
            wanted = wanted[:1]
        metafunc.parametrize("kernel", wanted, ids=str, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_kernel: on the first kernel alone, as others would show the same")
    config.addinivalue_line("markers", "long: takes a minute; with --shorter on the first kernel alone")
    config.addinivalue_line(
        "markers", "kernel_warns(function): the kernel has a fault of its own there, and may warn of it"
    )
    config.stash[_RUNS] = {}
    if _INSIDE:
        config.pluginmanager.register(_Scribe(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have all that runs in one machine come in one piece, the machines of one kernel after one another."""
    machines = [_Needs(kernel, folder) for kernel in KERNELS for folder in KINDS if not KINDS[folder].alone]
    machines += [_Needs(kernel, folder) for kernel in KERNELS for folder in KINDS if KINDS[folder].alone]
    # What is measured comes last, when the machine beside it has done most of its work.
    order: dict[_Needs | None, int] = {needs: number for number, needs in enumerate(machines)}
    if not _INSIDE:
        items.sort(key=lambda item: (order.get(_needs(item), -1), item.path.name == "test_latency.py"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop here where this machine can't run any, and note who runs in which machine."""
    ours = [item for item in session.items if item.path.is_relative_to(GUEST.parent)]
    if _INSIDE or not ours or session.config.option.collectonly:
        return
    with _one_line():
        check_machine()
    wanted: dict[_Needs, list[str]] = {}
    for item in ours:
        if (needs := _needs(item)) is not None:
            wanted.setdefault(needs, []).append(item.nodeid)
    tell = _teller(session.config)
    with _one_line():
        for needs, names in wanted.items():
            if needs.folder == GUEST / "whole":
                _build_node(tell)
            ready = bootable(needs.kernel, tell)
            session.config.stash[_RUNS][needs] = Run(session.config, ready, KINDS[needs.folder], names)
    side_by_side(session.config.stash[_RUNS].values())


def _needs(item: pytest.Item | None) -> _Needs | None:
    """Say which machine a test runs in; None for one that does not run in any."""
    if item is None or not item.path.is_relative_to(GUEST):
        return None
    return _Needs(item.callspec.params["kernel"], item.path.parent)  # type: ignore[attr-defined]


def _build_node(tell: Callable[[str], object]) -> None:
    """Have the kubelet and containerd in the cache of the node suite, as none could be built inside."""
    # Only here: inside a machine each import takes its time.
    from tests.node.harness.needs import MissingRequirementError as NodeLacksError  # noqa: PLC0415
    from tests.node.harness.node import build  # noqa: PLC0415
    from tests.node.harness.releases import RELEASES  # noqa: PLC0415

    tell("building a kubelet and containerd, unless tests/node has done so: minutes, once")
    try:
        build(RELEASES[1])
    except NodeLacksError as missing:
        raise MissingRequirementError(f"what tests/node needs: {missing}") from missing


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have a test of the guest run there, and report what was reported."""
    needs = _needs(item)
    if _INSIDE or needs is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    run = item.config.stash[_RUNS][needs]
    for report in run.reports(item.nodeid):
        report.location = item.location
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if _needs(nextitem) != needs:
        run.end()
    return True


class _Scribe:
    """Inside a machine, writes each report down for the tests outside."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with (_SHARE / REPORTS).open("a") as file:
            file.write(json.dumps(data) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a failure inside a machine come with what every gpuplug there said last."""
    report = yield
    if _INSIDE and report.failed:
        report.sections += [(log.name, tail(log)) for log in sorted(_SHARE.glob("gpuplug-*.log"))]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what an interrupted run left running."""
    for run in session.config.stash[_RUNS].values():
        run.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    runs = config.stash[_RUNS].values()
    for title, lines in latency_table(run for run in runs if run.seconds):
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@contextmanager
def _one_line() -> Iterator[None]:
    """End the whole run with the message of a missing requirement, and nothing around it."""
    try:
        yield
    except MissingRequirementError as missing:
        pytest.exit(str(missing), returncode=1)


def _teller(config: pytest.Config) -> Callable[[str], object]:
    """Say what takes long while it does."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.write_line if reporter is not None else lambda _: None
