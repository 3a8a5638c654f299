"""``gpuplug serve`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

from tests.running import eventually

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpuplug.testing import Machine

IN_TIME = 5.0
"""Seconds that an orderly end may take; it takes a tenth of one on a quiet machine."""


class Serving:
    """A running ``gpuplug serve``."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def said(self, words: str) -> None:
        await eventually(lambda: words in self.log, lambda: f"{words!r} in: {self.log}", within=20)

    async def ended(self, number: signal.Signals | None, within: float = IN_TIME) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        began = time.monotonic()
        if number is not None:
            self.process.send_signal(number)
        code = await anyio.to_thread.run_sync(lambda: self.process.wait(within))
        print(f"ended {time.monotonic() - began:.3f} s after {number!r}")
        return code


@asynccontextmanager
async def serving(
    machine: Machine,
    kubelet_dir: Path,
    *arguments: str,
    packages: Path | None = None,
    level: str = "info",
) -> AsyncIterator[Serving]:
    """Start ``gpuplug serve``; kill it in the end if it still runs.

    :param arguments: further options.
    :param packages: a folder with driver packages to find besides those that are installed.
    """
    log = machine.root / f"log-{time.monotonic_ns()}"
    environ = {**os.environ, "PYTHONPATH": str(packages or "")}
    command = [sys.executable, "-m", "gpuplug", "serve", "--log-level", level]
    command += ["--prefix", str(machine.root), "--kubelet-dir", str(kubelet_dir), *arguments]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=environ) as process:
        serve = Serving(process, log)
        try:
            yield serve
        except BaseException:
            print(f"exit code {process.poll()}; the log:\n{serve.log}")
            raise
        finally:
            process.kill()
