"""A child process that cannot outlive its test, and whose log can be shown when one fails."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process as Running


@dataclass(frozen=True, slots=True)
class Process:
    """One running program. Its standard error (and, unless it is talked to, its output) is `log`."""

    name: str
    running: Running
    log: Path

    @property
    def pid(self) -> int:
        """The process id, in the machine's own process namespace."""
        return self.running.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.running.returncode is None

    async def ended(self, within: float) -> int:
        """Wait for its end and give its exit code (negative: the signal that killed it)."""
        with anyio.move_on_after(within):
            return await self.running.wait()
        raise AssertionError(f"{self.name} is still running after {within:g} s")

    async def kill(self) -> None:
        """End it as a crash would: it gets no chance to tidy up."""
        if self.alive:
            self.running.send_signal(signal.SIGKILL)
        await self.ended(within=10)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it do nothing for a while: what happens in the block, it can only find out later."""
        self.running.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.running.send_signal(signal.SIGCONT)

    async def terminate(self, within: float) -> Ended:
        """Ask it to end, as the kubelet asks a container, and say how that went."""
        begin = time.monotonic()
        self.running.send_signal(signal.SIGTERM)
        code = await self.ended(within)
        return Ended(code, time.monotonic() - begin)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and how long it took over it."""

    code: int
    seconds: float


@asynccontextmanager
async def started(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    talk: bool,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Process]:
    """Run a program; `talk` gives it pipes for input and output. It is killed at the block's end.

    Whatever it writes goes to a file and not into a pipe, which would stop it when full.
    """
    with log.open("ab") as file:
        running = await anyio.open_process(
            command,
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else file,
            stderr=file,
            env=environment,
        )
    try:
        yield Process(name, running, log)
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await running.aclose()


def tail(log: Path, lines: int = 40) -> str:
    """Return the end of a log, for a failure's message."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"
