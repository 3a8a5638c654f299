"""One server generation: a gRPC server on a fresh socket of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.to_thread
from grpclib.server import Server

from gpuplug.host.sockets import SocketId, identify, remove_if_same
from gpuplug.kubelet.wire import Codec

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from grpclib._typing import IServable
    from grpclib.protocol import H2Protocol

CLOSING: Final = 0.5
"""Seconds that open calls are given to end when the server closes."""


class _Server(Server):
    """A grpclib server that can end its connections.

    ``Server.close`` stops listening and cancels the calls, but leaves the connections open,
    and a peer whose connection stays open waits for ever for its stream to go on.
    """

    def __init__(self, services: Collection[IServable]) -> None:
        super().__init__(services, codec=Codec())
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        self._protocols = [p for p in self._protocols if not p.handler.closing]  # type: ignore[attr-defined]
        protocol = super()._protocol_factory()
        self._protocols.append(protocol)
        return protocol

    def hang_up(self) -> None:
        """Stop listening, cancel the calls and end the connections."""
        self.close()
        for protocol in self._protocols:
            if hasattr(protocol, "processor"):  # set once the connection is made
                protocol.processor.close("the server is closing")
        self._protocols.clear()


class Listener:
    """Serve on a socket while the ``async with`` block runs, and leave no file behind.

    :raises OSError: on entry, if the socket cannot be made.
    """

    def __init__(self, path: str, services: Collection[IServable]) -> None:
        self.path: Final = path
        self._server = _Server(services)
        self._identity: SocketId | None = None

    async def __aenter__(self) -> Self:
        await self._server.start(path=self.path)
        self._identity = await anyio.to_thread.run_sync(identify, self.path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.hang_up()
        # Shielded, since this is the way out when the whole program is told to stop.
        with anyio.move_on_after(CLOSING, shield=True):
            await self._server.wait_closed()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove_if_same, self.path, self._identity)

    async def is_there(self) -> bool:
        """Tell whether the socket file is still there: the kubelet deletes all when it starts."""
        return self._identity is not None and (
            await anyio.to_thread.run_sync(identify, self.path) == self._identity
        )
