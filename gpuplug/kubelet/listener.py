"""One server generation: a gRPC server on a fresh socket of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from gpuplug.host.sockets import SocketId, identify, remove_if_same
from gpuplug.kubelet.wire import Codec

if TYPE_CHECKING:
    import asyncio
    from asyncio import BaseTransport
    from collections.abc import Collection
    from types import TracebackType

    from grpclib._typing import IServable

CLOSING: Final = 0.5
"""Seconds that open calls are given to end when the server closes."""


class _Connection(H2Protocol):
    """A connection that can be ended at any time, even while it is being made."""

    _transport: BaseTransport | None = None
    _ended = False

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin, unless the server was closed since the peer was accepted."""
        super().connection_made(transport)
        self._transport = transport
        if self._ended:
            self.end()

    def end(self) -> None:
        """End it now: what the peer has not read yet is not waited for."""
        self._ended = True
        if self._transport is not None:
            self.processor.close("the server is closing")
            self._transport.abort()  # type: ignore[attr-defined] # a socket's transport is a WriteTransport


class _Server(Server):
    """A grpclib server that can end its connections.

    ``Server.close`` stops listening and cancels the calls, but leaves the connections open,
    and a peer whose connection stays open waits for ever for its stream to go on.
    """

    def __init__(self, services: Collection[IServable]) -> None:
        super().__init__(services, codec=Codec())
        self._connections: list[_Connection] = []

    def _protocol_factory(self) -> H2Protocol:
        self._connections = [c for c in self._connections if not c.handler.closing]  # type: ignore[attr-defined]
        made = super()._protocol_factory()
        connection = _Connection(made.handler, made.config, made.h2_config)
        self._connections.append(connection)
        return connection

    def deafen(self) -> None:
        """Accept no more connections."""
        for listening in cast("asyncio.Server", self._server).sockets:
            self._loop.remove_reader(listening.fileno())

    def hang_up(self) -> None:
        """Stop listening, cancel the calls and end the connections."""
        self.close()
        for connection in self._connections:
            connection.end()
        self._connections.clear()


class Listener:
    """Serve on a socket while the ``async with`` block runs, and leave no file behind.

    :raises OSError: on entry, if the socket cannot be made.
    """

    def __init__(self, path: str, services: Collection[IServable]) -> None:
        self.path: Final = path
        self._server = _Server(services)
        self._identity: SocketId | None = None

    async def __aenter__(self) -> Self:
        # Shielded: told to stop in between, we would leave a socket that nobody knows of.
        with anyio.CancelScope(shield=True):
            await self._server.start(path=self.path)
            self._identity = await anyio.to_thread.run_sync(identify, self.path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Shielded, since this is the way out when the whole program is told to stop.
        with anyio.CancelScope(shield=True):
            self._server.deafen()
            # What was accepted a moment ago becomes a connection in the loop's next turn, and can be
            # ended only then; asyncio loses it if the server is closed by that time.
            await anyio.lowlevel.checkpoint()
            self._server.hang_up()
            with anyio.move_on_after(CLOSING):
                await self._server.wait_closed()
            await anyio.to_thread.run_sync(remove_if_same, self.path, self._identity)

    async def is_there(self) -> bool:
        """Tell whether the socket file is still there: the kubelet deletes all when it starts."""
        return self._identity is not None and (
            await anyio.to_thread.run_sync(identify, self.path) == self._identity
        )
