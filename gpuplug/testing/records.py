"""What ``FakeKubelet`` writes down about the plugins that talk to it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import anyio

from gpuplug.kubelet.v1beta1 import DevicePluginOptions, ListAndWatchResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplug.kubelet.v1beta1 import RegisterRequest

_NOTHING: Final[Mapping[str, ListedDevice]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One Device of a list."""

    health: str
    """As sent: ``Healthy``, ``Unhealthy``, or what a faulty plugin says."""
    numa: tuple[int, ...] | None = None
    """NUMA nodes; ``None`` where the topology was left out, ``()`` where it was sent empty."""

    @property
    def healthy(self) -> bool:
        """Whether the kubelet counts it as healthy: by exact spelling, anything else is not."""
        return self.health == "Healthy"


@dataclass(frozen=True, slots=True)
class DeviceList:
    """One list as it came over ListAndWatch; it is decoded when asked for, not before.

    Decoding 12,800 Devices takes 0.1 to 0.5 s, which would spoil measurements of a
    plugin in the same process.
    """

    at: float
    """When it had arrived whole, by ``time.monotonic()``."""
    raw: bytes = field(repr=False)
    """The message as it was on the wire."""

    @property
    def devices(self) -> Mapping[str, ListedDevice]:
        """The Devices by id, in the order sent."""
        return _decode(self.raw)


@lru_cache(maxsize=64)
def _decode(raw: bytes) -> Mapping[str, ListedDevice]:
    found = {}
    for device in ListAndWatchResponse.parse(raw).devices:
        numa = None if device.topology is None else tuple(node.id for node in device.topology.nodes)
        found[device.id] = ListedDevice(device.health, numa)
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class Registration:
    """One Register call."""

    at: float
    """When it came, by ``time.monotonic()``."""
    resource: str
    endpoint: str
    """The socket's file name."""
    version: str
    options: DevicePluginOptions
    """As sent with the call; all off where they were left out."""
    authority: str
    """The ``:authority`` that the plugin sent."""
    error: str | None = None
    """The error that it was answered with; empty for a success, ``None`` until answered."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a ListAndWatch stream."""

    at: float
    """By ``time.monotonic()``."""
    reason: str


@dataclass(slots=True)
class KubeletResource:
    """What the kubelet has of one resource; read it, ``FakeKubelet`` writes it."""

    name: str
    lists: deque[DeviceList]
    """Lists in the order of arrival, across restarts of the kubelet and the plugin."""
    options: DevicePluginOptions = field(default_factory=DevicePluginOptions)
    """What the current endpoint said when it was dialled."""
    connected: bool = False
    """Whether the kubelet has an endpoint that it has not disconnected."""
    streams: int = 0
    """ListAndWatch streams that are followed, those of replaced endpoints included."""
    ends: list[StreamEnd] = field(default_factory=list)
    """The streams that have ended."""
    latest: DeviceList | None = None
    """The last list since this start of the kubelet."""
    unhealthy: bool = False
    """Whether the endpoint was lost since that list, which makes all Devices unhealthy."""

    @property
    def devices(self) -> Mapping[str, ListedDevice]:
        """The Devices of the latest list by id; none after a restart of the kubelet."""
        return _NOTHING if self.latest is None else self.latest.devices

    @property
    def healthy(self) -> frozenset[str]:
        """The ids of Devices that a pod could get now."""
        if self.unhealthy:
            return frozenset()
        return frozenset(id_ for id_, device in self.devices.items() if device.healthy)

    def __str__(self) -> str:
        """Say in one line what is here, without decoding anything."""
        state = "connected" if self.connected else "not connected"
        last = f", {len(self.latest.raw)} bytes in the last" if self.latest else ""
        ended = f", last ended: {self.ends[-1].reason}" if self.ends else ""
        return f"{self.name}: {state}, {self.streams} streams, {len(self.lists)} lists{last}{ended}"


class Ledger:
    """All of one kubelet's records, across its restarts; every note wakes whoever waits."""

    def __init__(self, history: int | None) -> None:
        """Begin an empty ledger that keeps ``history`` lists per resource, or all."""
        self.registrations: Final[list[Registration]] = []
        self._history: Final = history
        self._resources: Final[dict[str, KubeletResource]] = {}
        self._changed = anyio.Event()

    def resource(self, name: str) -> KubeletResource:
        """Return what there is of a resource; one that was never heard of is empty."""
        if name not in self._resources:
            self._resources[name] = KubeletResource(name, deque(maxlen=self._history))
        return self._resources[name]

    async def changed(self) -> None:
        """Wait for the next note."""
        await self._changed.wait()

    def notify(self) -> None:
        """Wake whoever waits."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def note_start(self) -> None:
        """Note that the kubelet has started and knows nothing of any plugin."""
        for resource in self._resources.values():
            resource.latest, resource.connected, resource.unhealthy = None, False, False
        self.notify()

    def note_registration(
        self, message: RegisterRequest, options: DevicePluginOptions, authority: str
    ) -> Callable[[str], None]:
        """Note a Register call; return what to call with the error that it is answered with."""
        registration = Registration(
            at=time.monotonic(),
            resource=message.resource_name,
            endpoint=message.endpoint,
            version=message.version,
            options=options,
            authority=authority,
        )
        index = len(self.registrations)
        self.registrations.append(registration)
        self.notify()

        def answer(error: str) -> None:
            self.registrations[index] = replace(registration, error=error)
            self.notify()

        return answer

    def note_connected(self, resource: str, options: DevicePluginOptions) -> None:
        """Note that a plugin was dialled."""
        state = self.resource(resource)
        state.options, state.connected = options, True
        self.notify()

    def note_disconnected(self, resource: str) -> None:
        """Note that an endpoint is gone: the Devices of its resource count as unhealthy."""
        state = self.resource(resource)
        state.connected, state.unhealthy = False, True
        self.notify()

    def note_list(self, resource: str, devices: DeviceList) -> None:
        """Note a list that has come."""
        state = self.resource(resource)
        state.lists.append(devices)
        state.latest, state.unhealthy = devices, False
        self.notify()

    def note_end(self, resource: str, reason: str) -> None:
        """Note that a stream has ended, or could not begin."""
        self.resource(resource).ends.append(StreamEnd(time.monotonic(), reason))
        self.notify()

    def __str__(self) -> str:
        """Say in one line what there is."""
        resources = [str(resource) for resource in self._resources.values()]
        errors = [registration.error for registration in self.registrations if registration.error]
        last = [f"last Register error: {errors[-1]}"] if errors else []
        return "; ".join([f"{len(self.registrations)} Register calls", *resources, *last])
