"""Runs chosen tests inside a virtual machine, and gives their reports as they come.

The tests in `tests/vm/guest` are ordinary ones. pytest collects them here, once per kernel, runs them there,
and what it reports there is reported here: so each claim is a test of its own, with its own name and fate,
and a kernel is booted once for all of them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .cache import cache_home
from .kernels import Bootable
from .machine import REPOSITORY, SHARE, Machine, Plan, booted

ITEMS = "items"
"""The file with the names of the tests to run."""
REPORTS = "reports"
"""The file with one report in JSON per line."""
MEASURED = "measured"
"""The file with one measurement in JSON per line."""
KERNEL = "GPUPLUG_VM_KERNEL"
"""Set inside the machine alone: the name of its kernel."""
SECONDS = 900.0
"""Deadline of one kernel's machine. On an idle computer it needs a small part of this."""
_PAUSE = 0.05


def pytest_command() -> list[str]:
    """Return the command that runs tests inside; their names are in a file, as there may be many."""
    options = ["-p", "no:cacheprovider", "-p", "no:pytest_cov", "-p", "no:hypothesispytest", "-o", "addopts="]
    options += ["--import-mode=importlib", "--strict-markers", "-p", "no:asyncio", "-v"]
    return [sys.executable, "-m", "pytest", "--rootdir", str(REPOSITORY), *options, f"@{SHARE}/{ITEMS}"]


class Run:
    """The tests of one kernel, in one machine that is booted when the first of them is asked for."""

    def __init__(self, config: pytest.Config, bootable: Bootable, items: Sequence[str], memory: str) -> None:
        self._config = config
        self._bootable = bootable
        self._items = items
        self._memory = memory
        self._stack = ExitStack()
        self._machine: Machine | None = None
        self.release = bootable.release
        self._measured: list[dict[str, Any]] = []
        self._read = 0
        self._told = False
        self.seconds = 0.0

    def reports(self, nodeid: str) -> Iterator[pytest.TestReport]:
        """Yield the reports on one test, the last of which is that of its teardown.

        If the machine ends before that, the test failed; the first such test tells all that is known.
        """
        machine = self._machine = self._machine or self._boot()
        while True:
            over = machine.over()
            for report in self._arrived(machine):
                if report.nodeid == nodeid:
                    yield report
                    if report.when == "teardown":
                        self.seconds = machine.age
                        return
            if over:
                story = "(see the first such test)" if self._told else machine.story()
                self._told = True
                text = f"the machine with kernel {self._bootable.release}: {over}\n{story}"
                yield pytest.TestReport(nodeid, (nodeid, None, nodeid), {}, "failed", text, "call")
                return
            time.sleep(_PAUSE)

    def measured(self) -> list[dict[str, Any]]:
        """Return what the tests measured."""
        return self._measured

    def end(self) -> None:
        """End the machine; what it measured is kept."""
        if self._machine is not None:
            self._measured += _lines(self._machine.share / MEASURED)
            self._machine = None
        self._stack.close()

    def _boot(self) -> Machine:
        environment = {KERNEL: self._bootable.kernel.name, "PYTHONPYCACHEPREFIX": str(bytecode())}
        files = {ITEMS: "\n".join(self._items)}
        plan = Plan(self._bootable, pytest_command(), SECONDS, environment, files, self._memory)
        return self._stack.enter_context(booted(plan))

    def _arrived(self, machine: Machine) -> Iterator[pytest.TestReport]:
        """Read the reports not read yet, one at a time: who asks stops at the one that it awaits."""
        path = machine.share / REPORTS
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            while (line := file.readline()).endswith(b"\n"):
                self._read = file.tell()
                report = self._config.hook.pytest_report_from_serializable(
                    config=self._config, data=json.loads(line)
                )
                if isinstance(report, pytest.TestReport):
                    yield report


def bytecode() -> Path:
    """Return the folder with all modules compiled, for this state of the checkout.

    Emulated, compiling is slow, and with PYTHONDONTWRITEBYTECODE no compiled modules lie about.
    """
    folder = cache_home() / f"bytecode-{sys.implementation.cache_tag}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder)}
    collect = [*pytest_command()[:-1], "--collect-only", "-q", "tests/vm/guest"]
    for command in (collect, [sys.executable, "-c", "import gpuplug.commands.serve"]):
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)
