"""grpclib as a kubelet's grpc-go would look from outside; for ``FakeKubelet`` alone.

grpclib offers no public way to set the ``:authority`` of a client on a unix socket, to
read it in a server, or to end a server's connections, so a few of its internals are
overridden here and nowhere else (looked up in 0.4.8 and 0.4.9; the bound is in
pyproject.toml).
"""

from __future__ import annotations

import asyncio
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
import betterproto2
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.encoding.base import CodecBase
from grpclib.protocol import AbstractHandler, H2Protocol
from grpclib.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from grpclib._typing import IServable
    from grpclib.protocol import Stream

AUTHORITY: Final[ContextVar[str]] = ContextVar("AUTHORITY", default="")
"""In a handler of ``KubeletServer``: the ``:authority`` that the client sent."""

GRPC_GO_WINDOW: Final = 65535
"""Bytes in flight that grpc-go allows at first, per stream and connection (its defaultWindowSize)."""


class RawCodec(CodecBase):
    """Protobuf, except that ``bytes`` asked for are given as they came, unread."""

    __content_subtype__ = "proto"

    def encode(self, message: betterproto2.Message, message_type: type) -> bytes:
        """Give a message's bytes."""
        del message_type
        return bytes(message)

    def decode(self, data: bytes, message_type: type) -> object:
        """Read a message of that type; with ``bytes`` none is read."""
        if issubclass(message_type, betterproto2.Message):
            return message_type.parse(data)
        return data


class KubeletChannel(Channel):
    """A connection to a plugin's socket, opened by ``dial`` and closed by whoever opened it."""

    def __init__(self, path: Path) -> None:
        window = Configuration(
            http2_connection_window_size=GRPC_GO_WINDOW, http2_stream_window_size=GRPC_GO_WINDOW
        )
        super().__init__(path=str(path), codec=RawCodec(), config=window)
        self._transport: asyncio.Transport | None = None

    def _get_authority(self, host: str, port: int) -> str:
        del host, port
        return "localhost"  # the kubelet's grpc.WithAuthority

    async def _create_connection(self) -> H2Protocol:
        self._transport, protocol = await self._loop.create_unix_connection(
            self._protocol_factory, self._path
        )
        return protocol

    async def dial(self) -> None:
        """Connect now, not at the first call; raise ``OSError`` where that fails."""
        await self.__connect__()

    def abort(self) -> None:
        """Break the connection off: what is not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()


class _AuthorityHandler(AbstractHandler):
    """Notes the ``:authority`` of each request in ``AUTHORITY``, which the request's task inherits."""

    def __init__(self, inner: AbstractHandler) -> None:
        self._inner = inner

    def accept(
        self, stream: Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]
    ) -> None:
        token = AUTHORITY.set(dict(headers).get(":authority", ""))
        try:
            self._inner.accept(stream, headers, release_stream)
        finally:
            AUTHORITY.reset(token)

    def cancel(self, stream: Stream) -> None:
        self._inner.cancel(stream)

    def close(self) -> None:
        self._inner.close()


class KubeletServer(Server):
    """A server that can end its connections."""

    def __init__(self, handlers: Collection[IServable]) -> None:
        super().__init__(handlers, codec=RawCodec())
        self._protocols: weakref.WeakSet[H2Protocol] = weakref.WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        protocol.handler = _AuthorityHandler(protocol.handler)
        self._protocols.add(protocol)
        return protocol

    async def end(self) -> None:
        """Stop listening, cancel the calls, close the connections, and wait for that a second at most."""
        if isinstance(self._server, asyncio.Server):
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
        await anyio.lowlevel.checkpoint()  # a peer accepted a moment ago becomes a connection only now
        self.close()
        for protocol in list(self._protocols):
            if hasattr(protocol, "connection"):  # else it was never connected
                protocol.connection.close()
        with anyio.move_on_after(1):
            await self.wait_closed()
