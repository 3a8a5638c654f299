"""The kubelet's registry of plugins, for ``FakeKubelet``: Register, and what follows from it.

Written after pkg/kubelet/cm/devicemanager/plugin/v1beta1 of Kubernetes 1.36 (server.go,
client.go), the same code since 1.25, and its forerunner in manager.go up to 1.24.
"""

from __future__ import annotations

import re
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import anyio
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from gpuplug.kubelet.v1beta1 import DevicePluginOptions, DevicePluginStub, Empty, RegistrationBase
from gpuplug.testing.records import DeviceList
from gpuplug.testing.transport import AUTHORITY, KubeletChannel

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskGroup

    from gpuplug.kubelet.v1beta1 import RegisterRequest
    from gpuplug.testing.records import Ledger

GRPC_GO_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of the largest message that grpc-go receives unless told otherwise."""
_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_REDIAL: Final = 1.0  # grpc-go's first back-off, in seconds
_QUALIFIED: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME_LIMIT: Final = 63


@dataclass(slots=True)
class Faults:
    """What a kubelet may do to a plugin; set these at any time."""

    refuse: str = ""
    """The error to answer every Register with; empty for none."""
    delay: float = 0.0
    """Seconds to wait before a Register is looked at; ``math.inf`` for never."""
    opens_streams: bool = True
    """Whether ListAndWatch is called after a Register that succeeded."""
    list_limit: int = GRPC_GO_LIMIT
    """Bytes of the largest list that is taken; a larger one ends the stream."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How a kubelet deals with plugins, by its release."""

    dial_back: Literal["before", "after"]
    """Whether it dials before or after it answers Register."""
    dial_timeout: float
    """Seconds for which a plugin's socket is tried."""


@dataclass(slots=True, eq=False)
class Client:
    """One plugin as the kubelet dialled it (client.go)."""

    resource: str
    channel: KubeletChannel
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancelling it ends the ListAndWatch stream."""


class Registry(RegistrationBase):
    """The Registration service of one start of a kubelet, and its connections to plugins."""

    def __init__(
        self, directory: Path, manners: Manners, faults: Faults, ledger: Ledger, tasks: TaskGroup
    ) -> None:
        self.clients: Final[dict[str, Client]] = {}
        """The current client of each resource."""
        self.lists_allowed = anyio.Event()
        """While this is not set, lists are not read."""
        self.lists_allowed.set()
        self._open: Final[set[Client]] = set()
        self._directory: Final = directory
        self._manners: Final = manners
        self._faults: Final = faults
        self._ledger: Final = ledger
        self._tasks: Final = tasks

    async def register(self, message: RegisterRequest) -> Empty:
        """Take a plugin in; a refusal is UNKNOWN, as any Go error without a status."""
        options = message.options or DevicePluginOptions()
        answer = self._ledger.note_registration(message, options, AUTHORITY.get())
        error = "the call was cancelled"
        try:
            await anyio.sleep(self._faults.delay)
            error = self._faults.refuse or _judge(message) or await self._take_in(message, options)
        finally:
            answer(error)
        if error:
            raise GRPCError(Status.UNKNOWN, error)
        return Empty()

    def disconnect(self, client: Client) -> None:
        """Forget a client, close its connection and count its Devices as unhealthy."""
        if self.clients.get(client.resource) is client:
            del self.clients[client.resource]
        self._close(client)
        self._ledger.note_disconnected(client.resource)

    def end(self) -> None:
        """End all connections, as the end of the kubelet's process does."""
        for client in list(self.clients.values()):
            self.disconnect(client)
        for client in list(self._open):  # those that were replaced, and never closed
            client.scope.cancel()
            self._close(client)

    async def _take_in(self, message: RegisterRequest, options: DevicePluginOptions) -> str:
        """Return the error to answer with, empty for none."""
        client = Client(message.resource_name, KubeletChannel(self._directory / message.endpoint))
        self._open.add(client)
        if self._manners.dial_back == "after":
            self._tasks.start_soon(self._run, client, options)
            return ""
        # The client gets the name before it is connected. Whoever had it is forgotten but
        # not closed, and if this fails the name is free, whoever has it by then.
        self.clients[client.resource] = client
        error = "the call was cancelled"
        try:
            error = await self._connect(client)
        finally:
            if error:
                self.clients.pop(client.resource, None)
                self._close(client)
        if not error:
            self._tasks.start_soon(self._run, client, None)
        return error

    async def _connect(self, client: Client) -> str:
        error = await self._dial(client)
        if error:
            return error
        try:
            options = await DevicePluginStub(client.channel).get_device_plugin_options()
        except (GRPCError, StreamTerminatedError, OSError) as failure:
            return f"failed to get device plugin options: {failure}"
        self._ledger.note_connected(client.resource, options)
        return ""

    async def _dial(self, client: Client) -> str:
        with anyio.move_on_after(self._manners.dial_timeout):
            while True:
                try:
                    await client.channel.dial()
                except OSError:
                    await anyio.sleep(_REDIAL)
                else:
                    return ""
        return "failed to dial device plugin: context deadline exceeded"

    async def _run(self, client: Client, options: DevicePluginOptions | None) -> None:
        """Follow a client's lists until the stream ends, and do then as the kubelet does.

        ``options`` are those that came with Register, for a client that is yet to be dialled.
        """
        reason = "ended by the kubelet"
        try:
            with client.scope:
                error = "" if options is None else await self._dial(client)
                if options is not None and not error:
                    self.clients[client.resource] = client
                    self._ledger.note_connected(client.resource, options)
                reason = error or await self._follow(client)
        except Exception as error:  # noqa: BLE001 - whatever ends a stream, it has ended
            reason = str(error) or repr(error)
        finally:
            self._ledger.note_end(client.resource, reason)
            # runClient looks the name up again, so the end of an old stream costs whoever
            # bears the name now. Before 1.25 the kubelet compared first.
            current = self.clients.get(client.resource)
            if current is not None and (self._manners.dial_back == "before" or current is client):
                self.disconnect(current)
            self._close(client)

    async def _follow(self, client: Client) -> str:
        """Note the lists of a stream; return why it ended."""
        if not self._faults.opens_streams:
            await anyio.sleep_forever()
        state = self._ledger.resource(client.resource)
        state.streams += 1
        try:
            return await self._read(client)
        finally:
            state.streams -= 1

    async def _read(self, client: Client) -> str:
        route = "/v1beta1.DevicePlugin/ListAndWatch"
        async with client.channel.request(route, Cardinality.UNARY_STREAM, Empty, bytes) as stream:
            await stream.send_message(Empty(), end=True)
            while True:
                await self.lists_allowed.wait()
                raw = await stream.recv_message()
                if raw is None:
                    return "ended by the plugin"
                limit = self._faults.list_limit
                if len(raw) > limit:
                    await stream.cancel()
                    return f"grpc: received message larger than max ({len(raw)} vs. {limit})"
                self._ledger.note_list(client.resource, DeviceList(time.monotonic(), raw))

    def _close(self, client: Client) -> None:
        self._open.discard(client)
        client.channel.close()


def _judge(message: RegisterRequest) -> str:
    """Return what the kubelet has against a registration before it dials; empty for nothing."""
    if message.version != "v1beta1":
        return (
            f'requested API version "{message.version}" is not supported by kubelet. '
            'Supported version is ["v1beta1"]'
        )
    name = message.resource_name
    bare = name.partition("/")[2]
    if not _QUALIFIED.fullmatch(name) or "kubernetes.io/" in name or len(bare) > _NAME_LIMIT:
        return f'the ResourceName "{name}" is invalid'
    return ""


def clean(directory: Path, what: Literal["sockets", "files"]) -> None:
    """Delete what a kubelet deletes when it starts (CleanupPluginDirectory in manager.go)."""
    for path in directory.iterdir():
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if path.name == _CHECKPOINT or stat.S_ISDIR(mode):
            continue
        if what == "files" or stat.S_ISSOCK(mode):
            path.unlink()
