"""The gpuplugs at work in this machine, each with a kubelet that hears what it sees."""

import errno
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from gpuplug.testing import FakeKubelet

from .launch import EARLY, Launched, launch
from .waiting import SECONDS, until

I915: Final = "gpu.intel.com/i915"
XE: Final = "gpu.intel.com/xe"
AMD: Final = "amd.com/gpu"
VIRTIO: Final = "gpuplug.dev/virtio_gpu"
"""By way of gpuplug-drm, which is told to serve this kernel driver."""

_READS: Final = 10
_FAULTS: Final = ("Traceback (most recent call last)", "never retrieved", "never awaited", "Warning:")


@dataclass(frozen=True, slots=True)
class Witness:
    """A gpuplug, and the kubelet that hears what it sees."""

    view: str
    kubelet: FakeKubelet
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """All that gpuplug has logged."""
        for _ in range(_READS):
            try:
                return self.log.read_text(errors="replace")
            except OSError as error:  # the log is shared with the host: the 9p of kernel 7.3 says so
                if error.errno != errno.ENODATA:  # at times of a file that grows while it is read
                    raise
        raise TimeoutError(f"{self.log} could not be read {_READS} times in a row")

    def faults(self) -> list[str]:
        """Return the lines of its log that no correct program writes."""
        return [line for line in self.said().splitlines() if any(fault in line for fault in _FAULTS)]

    def has(self, resource: str) -> frozenset[str]:
        """Return the healthy Devices of a resource."""
        return self.kubelet.resource(resource).healthy

    async def logged(self, text: str, times: int = 1) -> None:
        """Wait until gpuplug has logged a text so often."""
        await until(f"{self.view} to log {text!r}", lambda: self.said().count(text) >= times)

    async def comes_to_have(self, resource: str, addresses: set[str], within: float = SECONDS) -> None:
        """Wait until these are the healthy Devices of a resource; one never heard of has none."""

        def there(kubelet: FakeKubelet) -> bool:
            state = kubelet.resource(resource)
            known = state.connected and state.latest is not None
            return state.healthy == addresses and (known or not addresses)

        await self.kubelet.wait_for(there, f"{self.view}: {resource} with {sorted(addresses)}", within=within)

    async def allocated(self, resource: str, address: str) -> dict[str, str]:
        """Ask for one GPU; return what a container would get: path in the container → path on the host."""
        answer = await self.kubelet.allocate(resource, [[address]], within=SECONDS)
        return {spec.container_path: spec.host_path for spec in answer.container_responses[0].devices}


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The same machine, seen through every mount that has to work."""

    each: tuple[Witness, ...]

    async def come_to_have(self, resource: str, addresses: set[str], within: float = SECONDS) -> None:
        """Wait until all of them have exactly these healthy Devices of a resource."""
        for witness in self.each:
            await witness.comes_to_have(resource, addresses, within)

    async def logged(self, text: str) -> None:
        """Wait until all of them have logged a text."""
        for witness in self.each:
            await witness.logged(text)


@asynccontextmanager
async def witness(view: str, mounts: tuple[str, ...], *, seconds: float = 60) -> AsyncIterator[Witness]:
    """Start gpuplug with these mounts and a kubelet of its own; wait until it has looked at the machine."""
    async with _heard(view, launch(view, mounts), seconds) as found:
        yield found


@asynccontextmanager
async def _heard(view: str, launched: Launched, seconds: float = 60) -> AsyncIterator[Witness]:
    process = launched.process
    try:
        async with FakeKubelet(launched.kubelet_dir) as kubelet:
            found = Witness(view, kubelet, process, launched.log)
            await until(f"{view} to have looked", lambda: _has_looked(found), seconds=seconds)
            yield found
            assert not found.faults()
            assert process.poll() is None, f"gpuplug ended with {process.returncode}"
            process.send_signal(signal.SIGTERM)
            code = await anyio.to_thread.run_sync(lambda: process.wait(SECONDS))
            assert code == 0, f"gpuplug ended with {code}"
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def early_witnesses() -> AsyncIterator[Witnesses]:
    """Give those that were started before pytest was a kubelet each."""
    async with AsyncExitStack() as stack:
        entered = [await stack.enter_async_context(_heard(view, each)) for view, each in EARLY.items()]
        yield Witnesses(tuple(entered))


def _has_looked(found: Witness) -> bool:
    assert found.process.poll() is None, f"gpuplug ended:\n{found.said()}"
    return any(word in found.said() for word in ("advertised", "no GPU"))
