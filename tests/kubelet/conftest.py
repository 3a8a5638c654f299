"""What every test of the suite is given, and what is shown when one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubelet import build
from tests.kubelet.node import Node, running_node
from tests.kubelet.process import tail
from tests.kubelet.sandbox import missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path


@pytest.fixture(scope="session")
def device_manager_program(request: pytest.FixtureRequest) -> Path:
    """Build the kubelet's device manager, or end the run with one line that says what is missing.

    To skip would be to say that all is well on a machine that has shown nothing.
    """
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    try:
        lack = missing()
        program = None if lack else build.device_manager(tell)
    except build.BuildError as error:
        lack, program = str(error), None
    if program is None:
        pytest.exit(f"tests/kubelet cannot run: {lack}", returncode=1)
    return program


@pytest.fixture
async def node(device_manager_program: Path, tmp_path: Path) -> AsyncIterator[Node]:
    """Give a test its node, and look for faults that gpuplug has only logged."""
    async with running_node(device_manager_program, tmp_path) as running:
        yield running
        faults = [fault for serving in running.servings for fault in serving.faults()]
    assert not faults, f"gpuplug logged what no correct program logs: {faults}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every log of a test that fails: its message says what, they say why."""
    report = yield
    running = getattr(item, "funcargs", {}).get("node")
    if report.failed and isinstance(running, Node):
        for log in sorted(running.logs.iterdir()):
            report.sections.append((f"end of {log.name}", tail(log)))
    return report
