"""Fixtures of the node suite, and the tables at the end of a run.

The suite never skips: where the machine lacks something it stops at once, with one line that says what.
"""

import platform
import subprocess
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager

import pytest

from gpuplug.testing import Machine

from .harness.cache import build_seconds
from .harness.cgroups import cgroups
from .harness.ledger import Ledger
from .harness.needs import MissingRequirementError, check_machine
from .harness.node import Binaries, Node, booted, build
from .harness.releases import CONTAINERD, RELEASES, Release

_LEDGER = pytest.StashKey[Ledger]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(title): the row of the final table that this test counts for")
    config.stash[_LEDGER] = Ledger()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of one release before the next, and stop here where the machine can't run any."""
    ours = [item for item in items if item.get_closest_marker("case")]
    if ours:
        with _one_line():
            check_machine()
            cgroups()


@contextmanager
def _one_line() -> Iterator[None]:
    """End the whole run with the message of a missing requirement, and nothing around it."""
    try:
        yield
    except MissingRequirementError as missing:
        pytest.exit(str(missing), returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    marker = item.get_closest_marker("case")
    callspec = getattr(item, "callspec", None)
    if marker and callspec and (report.when == "call" or report.failed):
        release = str(callspec.params["release"])
        item.config.stash[_LEDGER].case(marker.args[0], release, passed=report.passed)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tables = config.stash[_LEDGER].tables()
    if tables:
        runc = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
        version = 2 if cgroups().unified else 1
        linux = f"Linux {platform.release()} with cgroup v{version}"
        tables.append(("beside the kubelets", [f"containerd {CONTAINERD}, {runc.splitlines()[0]}, {linux}"]))
    for title, lines in tables:
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", params=RELEASES, ids=str)
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = request.param
    return found


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return pytestconfig.stash[_LEDGER]


@pytest.fixture(scope="session")
def binaries(release: Release, ledger: Ledger) -> Binaries:
    with _one_line():
        built = build(release)
    ledger.measured("building the kubelet, when it was built", release, build_seconds(built.kubelet))
    ledger.measured("building containerd, when it was built", release, build_seconds(built.containerd))
    return built


@pytest.fixture
async def node(release: Release, binaries: Binaries) -> AsyncIterator[Node]:
    async with booted(release, binaries) as running:
        yield running


@pytest.fixture
def machine(node: Node) -> Machine:
    """Give the made-up machine whose GPUs gpuplug sees on the node; its device nodes are real ones."""
    return Machine(node.machine_root, nodes="mknod")
