"""Run the real `gpuplug serve` as its container does: a process of its own, with no capability."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.kubelet.process import started
from tests.kubelet.sandbox import KUBELET_DIR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kubelet.process import Process
    from tests.kubelet.sandbox import Sandbox

RESYNC: Final = 300
"""Seconds between two looks without a reason: too long for a test to be saved by one."""

FAULTS: Final = ("Traceback (most recent call last)", "never retrieved", "never awaited", "Warning:")
"""What Python says about a fault that nobody caught."""


def command(machine: Path, shares: int) -> tuple[str, ...]:
    """Return the command line of a plugin that serves the GPUs of a made-up machine."""
    options = {
        "--prefix": machine,
        "--kubelet-dir": KUBELET_DIR,
        "--shared-dev-num": shares,
        "--resync": RESYNC,
        "--log-level": "debug",
    }
    words = [str(word) for option in options.items() for word in option]
    return (sys.executable, "-m", "gpuplug", "serve", *words)


@dataclass(frozen=True, slots=True)
class Serving:
    """A `gpuplug serve` that has been started."""

    process: Process

    def text(self) -> str:
        """Return all that it has logged so far."""
        return self.process.log.read_text(errors="replace")

    def faults(self) -> list[str]:
        """Return the lines of its log that no correct program writes."""
        lines = self.text().splitlines()
        return [line for line in lines if any(fault in line for fault in FAULTS)]


@asynccontextmanager
async def serving(
    sandbox: Sandbox, machine: Path, log: Path, *, shares: int = 1, trace: Path | None = None
) -> AsyncIterator[Serving]:
    """Start gpuplug for one machine. With `trace`, every file that it opens is written there."""
    line = sandbox.unprivileged(*command(machine, shares))
    if trace is not None:
        # -D: the tracer is the child, so the process that we signal is gpuplug itself.
        watch = (
            "strace",
            "-D",
            "-f",
            "--seccomp-bpf",
            "-y",
            "-qq",
            "-s",
            "4096",
            "-e",
            "trace=open,openat,openat2",
        )
        line = (*watch, "-o", str(trace), *line)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLUG_")}
    async with started("gpuplug", line, log, talk=False, environment=clean) as process:
        yield Serving(process)
