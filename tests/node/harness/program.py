"""A program of the node (the kubelet, containerd, a device plugin), run inside its namespaces."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .cgroups import cgroups
from .waiting import eventually

_ENTER = ("--mount", "--pid", "--net", "--cgroup", "--ipc", "--uts")
_TAIL = 25


class Program:
    """One process inside a node, and its output in a file outside."""

    def __init__(
        self,
        node: int,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start the program.

        :param node: the process id of the node's process 1
        """
        self.name = name
        self.log = log
        join = "; ".join([*(f"echo 0 > {path}" for path in cgroups().joined), 'exec "$@"'])
        entered = ["nsenter", "--target", str(node), *_ENTER, f"--wd={cwd or '/'}"]
        with log.open("ab") as out:
            self._entered = subprocess.Popen(
                [*entered, "--", "sh", "-c", join, name, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.started = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._entered.poll() is None

    @property
    def pid(self) -> int:
        """Its process id, seen from outside the node.

        :raises ProcessLookupError: when it has ended, or nsenter has not started it yet
        """
        enterer = self._entered.pid
        children = Path(f"/proc/{enterer}/task/{enterer}/children")
        try:
            return int(children.read_text().split()[0])
        except (FileNotFoundError, IndexError) as error:
            raise ProcessLookupError(f"{self.name} is not running:\n{self.tail()}") from error

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started

    async def wrote(self, text: str, *, seconds: float = 20) -> None:
        """Wait until its output contains a text."""

        async def look() -> str:
            return self.log.read_text(errors="replace")

        await eventually(f"{self.name} to say {text!r}", look, lambda output: text in output, seconds=seconds)

    async def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20) -> int:
        """Send a signal and wait for the end; the answer is the exit code, negative for a signal."""
        if self.running:
            os.kill(self.pid, number)
        return await self.ended(seconds=seconds)

    async def ended(self, *, seconds: float = 20) -> int:
        """Wait until it has ended by itself; the answer is as for `stop`."""

        async def look() -> int | None:
            return self._entered.poll()

        code = await eventually(f"{self.name} to end", look, lambda code: code is not None, seconds=seconds)
        assert code is not None
        return code

    def abandon(self) -> None:
        """Reap what entered the node, once the node itself is gone."""
        self._entered.kill()
        self._entered.wait()

    def tail(self) -> str:
        """Return the last lines of its output."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL:]
        return "\n".join(f"  {self.name}: {line}" for line in lines)
