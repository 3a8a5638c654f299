"""Talk to the kubelet's device manager: one line of JSON out, one line back (devicemanager/main.go)."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.kubelet.process import Process, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tests.kubelet.sandbox import Sandbox

LONGEST_ANSWER: Final = 64 * 1024 * 1024
PATIENCE: Final = 20.0
"""Seconds in which anything that is going to happen has happened, on a slow machine, too."""
POLL: Final = 0.005
"""Seconds between two questions whose answer is waited for."""

Step = Literal["register", "connected", "list", "listed"]
End = Literal["stop", "kill"]


class RefusedError(Exception):
    """What the kubelet says when it cannot do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the node would report to the API server."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A container of a pod, and what it asks for. A sidecar is an init container that stays."""

    name: str
    asks: Mapping[str, int]
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as far as devices go."""

    name: str
    containers: tuple[Ask, ...]
    init: tuple[Ask, ...] = ()


def pod(name: str, resource: str, count: int = 1) -> Pod:
    """Make the pod that most tests need: one container, one resource."""
    return Pod(name, (Ask("main", {resource: count}),))


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node that the runtime would make in the container."""

    host: str
    container: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Container:
    """What the container runtime would be told about a container."""

    name: str
    devices: Mapping[str, tuple[str, ...]]
    nodes: tuple[DeviceNode, ...]
    envs: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its devices, of whichever resource."""
        return tuple(id_ for ids in self.devices.values() for id_ in ids)


@dataclass(slots=True)
class DeviceManager:
    """The kubelet of one sandbox: it can be stopped, started, killed, and held in mid-step."""

    sandbox: Sandbox
    program: Path
    log: Path
    _life: AsyncExitStack = field(default_factory=AsyncExitStack)
    _process: Process | None = None
    _answers: BufferedByteReceiveStream | None = None

    async def ask(self, do: str, **details: object) -> Any:
        """Give a command and return the answer; RefusedError bears the kubelet's own words."""
        assert self._process is not None, "the kubelet's process is not running"
        assert self._process.running.stdin is not None
        assert self._answers is not None
        line = json.dumps({"do": do, **details}) + "\n"
        try:
            await self._process.running.stdin.send(line.encode())
            # The device manager waits for a plugin without a limit; a test must not.
            with anyio.fail_after(PATIENCE + 10):
                answer = json.loads(await self._answers.receive_until(b"\n", LONGEST_ANSWER))
        except TimeoutError:
            raise AssertionError(f"the device manager does not answer {line.strip()}") from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            raise AssertionError(f"the device manager ended instead of answering {line.strip()}") from None
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer

    async def start(self) -> None:
        """Start a kubelet: it removes every socket in its directory and makes its own anew."""
        if self._process is None:
            command = self.sandbox.inside(str(self.program))
            self._process = await self._life.enter_async_context(
                started("the device manager", command, self.log, talk=True)
            )
            assert self._process.running.stdout is not None
            self._answers = BufferedByteReceiveStream(self._process.running.stdout)
        await self.ask("start")

    async def stop(self) -> None:
        """Stop the kubelet in good order: it closes its connections and removes its own socket."""
        await self.ask("stop")

    async def kill(self) -> None:
        """Kill the kubelet: every socket stays where it is, with nobody behind the kubelet's own."""
        assert self._process is not None
        await self._process.kill()
        await self.close()

    async def close(self) -> None:
        """End the process, and forget it."""
        self._process = None
        await self._life.aclose()

    async def restart(self, how: End) -> None:
        """Stop or kill the kubelet, and start the next one at once."""
        await (self.stop() if how == "stop" else self.kill())
        await self.start()

    async def hold(self, step: Step) -> None:
        """Keep the next registration at this step (devicemanager/steps.go says what each means)."""
        await self.ask("hold", step=step)

    async def held(self) -> None:
        """Wait until a registration is there."""
        await self.ask("held", seconds=PATIENCE)

    async def release(self) -> None:
        """Let the registration go on."""
        await self.ask("release")

    def text(self) -> str:
        """Return all that it has logged so far."""
        return self.log.read_text(errors="replace")

    async def capacity(self) -> Capacity:
        """Return what the node would report now."""
        answer = await self.ask("capacity")
        return Capacity(answer["capacity"], answer["allocatable"], tuple(answer["removed"]))

    async def devices(self, resource: str) -> dict[str, tuple[int, ...] | None]:
        """Return a resource's healthy devices and their NUMA nodes; None: a device has no topology at all."""
        listed = (await self.ask("devices"))["devices"].get(resource, [])
        return {device["id"]: None if device["numa"] is None else tuple(device["numa"]) for device in listed}

    async def admit(self, wanted: Pod) -> dict[str, Container]:
        """Give a new pod its devices, container by container, or raise RefusedError."""
        answer = await self.ask("admit", pod=asdict(wanted))
        return {
            given["name"]: Container(
                given["name"],
                {resource: tuple(ids) for resource, ids in given["devices"].items()},
                tuple(DeviceNode(**node) for node in given["nodes"]),
                given["envs"],
            )
            for given in answer["containers"]
        }

    async def admit_one(self, wanted: Pod) -> Container:
        """Give a pod of one container its devices."""
        (container,) = (await self.admit(wanted)).values()
        return container

    async def admit_in_time(self, wanted: Pod, within: float = PATIENCE) -> Container:
        """Give it to a pod that comes back when it is refused, as a ReplicaSet's pods do."""
        end = time.monotonic() + within
        while True:
            try:
                return await self.admit_one(wanted)
            except RefusedError:
                if time.monotonic() > end:
                    raise
            await anyio.sleep(POLL)

    async def delete(self, *names: str) -> None:
        """Pods have ended: their devices are free again."""
        for name in names:
            await self.ask("delete", name=name)

    async def until(self, what: str, true: Callable[[Capacity], bool], within: float = PATIENCE) -> Capacity:
        """Wait until the node's report is as it should be; a failure shows the last one."""
        end = time.monotonic() + within
        while not true(last := await self.capacity()):
            assert time.monotonic() < end, f"not within {within:g} s: {what}; the node's last report: {last}"
            await anyio.sleep(POLL)
        return last

    async def until_allocatable(self, resource: str, count: int, within: float = PATIENCE) -> None:
        """Wait until pods could be given so many devices of the resource."""
        wanted = f"{count} allocatable {resource}"
        await self.until(wanted, lambda report: report.allocatable.get(resource) == count, within)


@asynccontextmanager
async def device_manager(sandbox: Sandbox, program: Path, log: Path) -> AsyncIterator[DeviceManager]:
    """Make a kubelet that is not started yet. Its process is gone at the block's end."""
    manager = DeviceManager(sandbox, program, log)
    try:
        yield manager
    finally:
        with anyio.CancelScope(shield=True):
            await manager.close()
