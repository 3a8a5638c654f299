"""One Resource, served and kept registered for as long as the process lives.

An Endpoint goes through *sessions*: serve on a fresh socket, register, follow the stream.
A session ends when the stream ends, when our socket is gone, or when ``kubelet.sock`` is
another one than the one registered to; the server is closed, and a new session begins.
Never are two sessions open at once: when an old stream ends, kubelets disconnect whatever
client bears the resource's name by then.

What is looked at is always the state of the files and of the stream. A tick says "look
again" and nothing more, so a lost or doubled one does no harm.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from loguru import logger

from gpuplug.core.backoff import FLOOR, Backoff
from gpuplug.core.identity import socket_name, socket_room
from gpuplug.core.repeats import Repeats
from gpuplug.errors import RegistrationError
from gpuplug.host.sockets import SocketId, identify, listening
from gpuplug.kubelet.listener import Listener
from gpuplug.kubelet.registration import DEADLINE, KUBELET_SOCKET, register, unreachable
from gpuplug.kubelet.service import Allocator, Service, Streams
from gpuplug.latest import Latest
from gpuplug.model import Resource
from gpuplug.witness import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from gpuplug.core.inventory import InventoryDiff
    from gpuplug.model import ResourceName
    from gpuplug.witness import Registration, Witness


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    register: float = DEADLINE
    """From our Register to the kubelet's answer."""
    stream: float = 10.0
    """From the kubelet's answer to its ListAndWatch call."""
    steady: float = 5.0
    """Of streaming, after which the next failure counts as the first one."""


AWAY: Final = 1.0
"""Seconds after which another process whose socket is gone has left; to register anew takes it less."""


class Phase(Enum):
    """Where an Endpoint stands with the kubelet."""

    WAITING = "waiting for the kubelet"
    STREAMING = "registered and streaming"
    LOST = "not registered"


@dataclass(frozen=True, slots=True)
class EndpointState:
    """The phase, and why, in words."""

    phase: Phase
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KubeletDirectory:
    """The folder with ``kubelet.sock``, and the wake-ups that say that it may have changed."""

    path: str
    process: str
    """Random text that keeps our socket names apart from those of every other process."""
    ticks: Latest[None]

    @property
    def kubelet_socket(self) -> str:
        """The path of ``kubelet.sock``."""
        return f"{self.path}/{KUBELET_SOCKET}"

    async def kubelet(self) -> SocketId | None:
        """Identify the present ``kubelet.sock``."""
        return await anyio.to_thread.run_sync(identify, self.kubelet_socket)


class Endpoint:
    """Serve one Resource; ``run`` it in a task group."""

    def __init__(
        self,
        resource: Resource,
        directory: KubeletDirectory,
        allocate: Allocator,
        patience: Patience = Patience(),
        policy: str = "none",
        witness: Witness = NOBODY,
    ) -> None:
        """Serve ``resource`` until told another.

        :param policy: which shares are preferred; one of ``core.allocation.POLICIES``.
        """
        self.resource: Final = Latest(resource)
        self.state: Final = Latest(EndpointState(Phase.WAITING))
        self._directory = directory
        self._allocate = allocate
        self._patience = patience
        self._policy = policy
        self._witness = witness
        self._log = logger.bind(resource=resource.name)
        self._refusals = Repeats()
        self._generation = 0
        self._times = 1  # that it failed in the same way, in a row
        self._others: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Hold the registration until cancelled; nothing that the kubelet does ends this."""
        backoff = Backoff()
        used: SocketId | None = None
        pause = 0.0
        self._tell()
        while True:
            version = self._directory.ticks.version
            kubelet = await self._wait_for_kubelet()
            if kubelet != used:
                backoff, used, pause = Backoff(), kubelet, 0.0
            began = time.monotonic()
            reason = await self._session(kubelet)
            if self.state.value.phase is Phase.STREAMING:
                lasted = time.monotonic() - began
                backoff = backoff.after(lasted, pause=pause, steady=self._patience.steady)
            self._become(Phase.LOST, reason)
            pause = backoff.delay(random.random())  # noqa: S311 - jitter
            await self._pause(used, version, pause)
            backoff = backoff.failed()

    async def _wait_for_kubelet(self) -> SocketId:
        while True:
            version = self._directory.ticks.version
            kubelet = await self._directory.kubelet()
            if kubelet is not None:
                return kubelet
            self._become(Phase.WAITING, f"{self._directory.kubelet_socket} is not there")
            await self._directory.ticks.newer(version)

    async def _session(self, kubelet: SocketId) -> str:
        """Serve, register and follow the stream; return why that came to an end."""
        self._generation += 1
        service = Service(self.resource, self._allocate, self._policy, self._witness, self._refusals)
        room = socket_room(self._directory.path)
        name = socket_name(self.resource.value.name, self._directory.process, self._generation, room)
        self._log.debug("{}: serving on {}, and registering", self.resource.value.name, name)
        ended: list[str] = []
        try:
            async with (
                Listener(f"{self._directory.path}/{name}", [service]) as listener,
                anyio.create_task_group() as tasks,
            ):

                def end(reason: str) -> None:
                    ended.append(reason)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(self._watch_files, listener, kubelet, end)
                tasks.start_soon(self._watch_others, name, end)
                tasks.start_soon(self._hold_registration, name, service, end)
        except OSError as error:
            return f"cannot serve in {self._directory.path}: {unreachable(error)}"
        return ended[0]

    async def _hold_registration(self, name: str, service: Service, end: Callable[[str], None]) -> None:
        """Register, and see the stream begin and end."""
        try:
            await register(
                self._directory.kubelet_socket,
                name,
                self.resource.value.name,
                within=self._patience.register,
            )
        except RegistrationError as error:
            if not service.streams.value.open:  # a stream is a success, whatever the answer was
                self._registered("refused")
                return end(str(error))
        with anyio.move_on_after(self._patience.stream):
            await _until(service.streams, lambda streams: streams.opened > 0)
        if not service.streams.value.opened:
            self._registered("no_stream")
            return end(f"the kubelet answered and opened no stream within {self._patience.stream:g} s")
        self._registered("streaming")
        if service.streams.value.open:  # else it has ended again already
            self._become(Phase.STREAMING)
        await _until(service.streams, lambda streams: streams.open == 0)
        return end("the kubelet's stream ended")

    async def _watch_files(self, listener: Listener, kubelet: SocketId, end: Callable[[str], None]) -> None:
        """See whether the files are still those of this session, at every tick and once at first."""
        while True:
            version = self._directory.ticks.version
            now = await self._directory.kubelet()
            if now not in {None, kubelet}:  # none: the stream will tell when the kubelet is gone
                return end(f"{KUBELET_SOCKET} is a new one")
            if not await listener.is_there():
                return end(f"our socket {listener.path} was removed")
            await self._directory.ticks.newer(version)

    async def _watch_others(self, name: str, end: Callable[[str], None]) -> None:
        """See other processes that serve this Resource: the last one to register has it.

        When that one leaves, the kubelet is left with nobody, and our stream goes on as if nothing
        were wrong. Those that were there before us do not matter: we are the last one.
        """
        stem = name.removesuffix(f"{self._directory.process}-{self._generation}.sock")
        before = await self._sockets_of_others(stem)
        later: frozenset[str] = frozenset()
        while True:
            version = self._directory.ticks.version
            sockets = await self._sockets_of_others(stem)
            present = _processes(sockets)
            if present - self._others:
                self._log.warning(
                    "{}: another process serves it too, and the last one to register has it: {}",
                    self.resource.value.name,
                    ", ".join(sorted(sockets)),
                )
            self._others = present
            later |= _processes(sockets - before)
            gone = later - present
            if gone:
                await anyio.sleep(AWAY)
                if not gone <= _processes(await self._sockets_of_others(stem)):
                    return end("another process took the resource over, and has left")
            await self._directory.ticks.newer(version)

    async def _sockets_of_others(self, stem: str) -> frozenset[str]:
        ours = f"{stem}{self._directory.process}-"
        return await anyio.to_thread.run_sync(listening, self._directory.path, stem, ours)

    async def _pause(self, kubelet: SocketId | None, version: int, delay: float) -> None:
        """Wait, but not longer than it takes until there is another kubelet."""
        await anyio.sleep(FLOOR)
        with anyio.move_on_after(delay - FLOOR):
            while await self._directory.kubelet() == kubelet:
                version, _ = await self._directory.ticks.newer(version)

    def _become(self, phase: Phase, reason: str = "") -> None:
        """Change state, and say so once per change, with the count of what was not said."""
        before, state = self.state.value, EndpointState(phase, reason)
        if state == before:
            if phase is Phase.LOST:
                self._times += 1
                self._tell()
            return
        since = f"; before that, {self._times} times: {before.reason}" if self._times > 1 else ""
        self._times = 1
        self.state.set(state)
        self._tell()
        name = self.resource.value.name
        if phase is Phase.STREAMING:
            count = len(self.resource.value)
            devices = f"{count} device{'' if count == 1 else 's'}"
            self._log.info("{}: registered and streaming, {}{}", name, devices, since)
        else:
            self._log.warning("{}: {}: {}{}", name, phase.value, reason, since)

    def _tell(self) -> None:
        state = self.state.value
        self._witness.became(
            self.resource.value.name,
            streaming=state.phase is Phase.STREAMING,
            phase=state.phase.value,
            reason=f"{state.reason} ({self._times} times)" if self._times > 1 else state.reason,
        )

    def _registered(self, outcome: Registration) -> None:
        self._witness.registered(self.resource.value.name, outcome)


def _processes(sockets: Iterable[str]) -> frozenset[str]:
    """Return what tells the sockets' processes apart: all of a name but its generation."""
    return frozenset(name.rpartition("-")[0] for name in sockets)


async def _until(latest: Latest[Streams], done: Callable[[Streams], bool]) -> None:
    version = -1
    while True:
        version, value = await latest.newer(version)
        if done(value):
            return


class Endpoints:
    """The Endpoints of the node; one that was started stays, with an empty list if need be."""

    def __init__(
        self,
        tasks: TaskGroup,
        directory: KubeletDirectory,
        allocate: Allocator,
        policy: str = "none",
        witness: Witness = NOBODY,
    ) -> None:
        self._tasks = tasks
        self._directory = directory
        self._allocate = allocate
        self._policy = policy
        self._witness = witness
        self._endpoints: dict[ResourceName, Endpoint] = {}

    def apply(self, diff: InventoryDiff) -> None:
        """Publish what is new or different; what is gone gets an empty list."""
        for resource in (*diff.added, *diff.changed, *(Resource(name) for name in diff.gone)):
            endpoint = self._endpoints.get(resource.name)
            if endpoint is None:
                endpoint = Endpoint(
                    resource, self._directory, self._allocate, policy=self._policy, witness=self._witness
                )
                self._endpoints[resource.name] = endpoint
                self._tasks.start_soon(endpoint.run, name=f"endpoint {resource.name}")
            else:
                endpoint.resource.set(resource)

    @property
    def states(self) -> dict[ResourceName, EndpointState]:
        """The state of each Endpoint at this moment."""
        return {name: endpoint.state.value for name, endpoint in self._endpoints.items()}
