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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .cache import cache_home
from .kernels import Bootable
from .kinds import Kind
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


_OPTIONS = ["-v", "--import-mode=importlib", "--strict-markers", "-o", "addopts="]
_OPTIONS += [
    "-o",
    "consider_namespace_packages=true",
]  # modules have the names that they import each other by
# What pytest does without inside starts sooner: the plugins of others, and what is shared by all other tests.
_OPTIONS += ["--rootdir", str(REPOSITORY), "--confcutdir", str(REPOSITORY / "tests/vm")]
_OPTIONS += ["-p", "anyio.pytest_plugin"]
_OPTIONS += [
    word
    for plugin in ("cacheprovider", "debugging", "doctest", "junitxml", "legacypath", "pastebin", "unittest")
    for word in ("-p", f"no:{plugin}")
]
_NO_OTHERS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class Run:
    """The tests of one machine, which is booted when the first of them is asked for, or one beside it."""

    def __init__(self, config: pytest.Config, bootable: Bootable, kind: Kind, items: Sequence[str]) -> None:
        self._config = config
        self._bootable = bootable
        self.kind = kind
        self._items = items
        self._stack = ExitStack()
        self._machine: Machine | None = None
        self.beside: Sequence[Run] = ()
        """The machines that are to run at the same time."""
        self.ended = False
        self.release = bootable.release
        self._measured: list[dict[str, Any]] = []
        self._read = 0
        self._told = False
        self.seconds = 0.0

    def boot(self) -> Machine:
        """Boot the machine, unless it was before."""
        if self._machine is None:
            options = {
                KERNEL: self._bootable.kernel.name,
                "PYTHONPYCACHEPREFIX": str(bytecode()),
                **_NO_OTHERS,
            }
            plan = Plan(
                self._bootable,
                [
                    sys.executable,
                    "-m",
                    "tests.vm.guest.run",
                    ",".join(self.kind.views),
                    *_OPTIONS,
                    f"@{SHARE}/{ITEMS}",
                ],
                SECONDS,
                options,
                files={ITEMS: "\n".join(self._items)},
                memory=self.kind.memory,
                pciehp=self.kind.pciehp,
                cpusets=self.kind.cpusets,
            )
            self._machine = self._stack.enter_context(booted(plan))
        return self._machine

    def reports(self, nodeid: str) -> Iterator[pytest.TestReport]:
        """Yield the reports on one test, the last of which is that of its teardown.

        If the machine ends before that, the test failed; the first such test tells all that is known.
        """
        machine = self.boot()
        for other in self.beside:
            if not other.ended:
                other.boot()
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
        self.ended = True
        if self._machine is not None:
            self._measured += _lines(self._machine.share / MEASURED)
            self._machine = None
        self._stack.close()

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


@cache
def bytecode() -> Path:
    """Return the folder with all modules compiled, for this state of the checkout.

    Emulated, compiling is slow, and with PYTHONDONTWRITEBYTECODE no compiled modules lie about.
    """
    folder = cache_home() / f"bytecode-{sys.implementation.cache_tag}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder), **_NO_OTHERS}
    collect = [sys.executable, "-m", "pytest", *_OPTIONS, "--collect-only", "-q", "tests/vm/guest"]
    serve = [sys.executable, "-c", "import gpuplug.commands.serve, tests.vm.guest.run"]
    for command in (collect, serve):
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def side_by_side(runs: Iterable[Run]) -> None:
    """Have machines run two at a time, in the order of their tests: each keeps one processor busy."""
    waiting: Run | None = None
    for run in runs:
        if run.kind.alone:
            continue
        if waiting is None:
            waiting = run
        else:
            waiting.beside, run.beside, waiting = [run], [waiting], None


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)
