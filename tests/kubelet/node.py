"""One node, put together: a made-up machine, the kubelet's device manager, and gpuplug."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from gpuplug.testing import Machine
from tests.kubelet.devicemanager import PATIENCE, POLL, DeviceManager, device_manager
from tests.kubelet.sandbox import Sandbox, sandbox
from tests.kubelet.serving import Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.kubelet.devicemanager import End

I915: Final = "gpu.intel.com/i915"
XE: Final = "gpu.intel.com/xe"


@dataclass(frozen=True, slots=True)
class Node:
    """What a test acts on. The kubelet is running; gpuplug runs once `serve` is called."""

    folder: Path
    logs: Path
    machine: Machine
    sandbox: Sandbox
    kubelet: DeviceManager
    servings: list[Serving] = field(default_factory=list)
    _life: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def serve(
        self, machine: Machine | None = None, *, shares: int = 1, trace: Path | None = None
    ) -> Serving:
        """Start gpuplug for this machine, or for another one on the same node."""
        log = self.logs / f"gpuplug-{len(self.servings) + 1}.log"
        root = (machine or self.machine).root
        started = await self._life.enter_async_context(
            serving(self.sandbox, root, log, shares=shares, trace=trace)
        )
        self.servings.append(started)
        return started

    async def end_held(self, end: End) -> None:
        """End a kubelet in the middle of a registration that is held.

        A process that is killed takes the held step with it. One that is stopped goes on from
        there with all its connections closed, as a real one does in its last moments.
        """
        if end == "kill":
            await self.kubelet.kill()
        else:
            await self.kubelet.stop()
            await self.kubelet.release()

    async def until(self, what: str, true: Callable[[], bool], within: float = PATIENCE) -> None:
        """Wait for something that can be seen without asking the kubelet."""
        end = time.monotonic() + within
        while not true():
            assert time.monotonic() < end, f"not within {within:g} s: {what}"
            await anyio.sleep(POLL)

    def another_machine(self) -> Machine:
        """Make a second machine without GPUs, for a second gpuplug."""
        return new_machine(self.folder / "another")


def new_machine(root: Path) -> Machine:
    """Make a machine with real device nodes: what gpuplug refuses to count as one, it refuses here."""
    root.mkdir()
    return Machine(root, nodes="mknod")


@asynccontextmanager
async def running_node(program: Path, folder: Path) -> AsyncIterator[Node]:
    """Make a node with a running kubelet, no GPU and no gpuplug."""
    logs = folder / "logs"
    logs.mkdir()
    machine = new_machine(folder / "machine")
    async with (
        sandbox(logs) as box,
        device_manager(box, program, logs / "kubelet.log") as kubelet,
        AsyncExitStack() as life,
    ):
        await kubelet.start()
        yield Node(folder, logs, machine, box, kubelet, _life=life)
