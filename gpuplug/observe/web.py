"""A small HTTP server that nobody can hold up: for probes, for Prometheus, and for a person with curl.

It reads HTTP with h11 and writes it straight to the sockets: there is no buffer that a client who
does not read could fill. Who connects while there is no room takes the place of whoever has been
silent for the longest, so a probe gets its answer however many idle connections there are. Of all
requests one is parsed at each turn of the event loop, so that the kubelet's calls come in between.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import h11
from loguru import logger

from gpuplug.core.repeats import Repeats
from gpuplug.observe.pages import Page, page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    Make = Callable[[], Awaitable[Page]]
    Find = Callable[[str], Make | None]

MOST: Final = 64
"""Connections at one time."""
SILENCE: Final = 120.0
"""Seconds that a connection may wait for its next request: longer than scrapes are apart."""
SLOWNESS: Final = 5.0
"""Seconds that a request may take to arrive, and an answer to be read."""
_MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's head."""
_CHUNK: Final = 4096
_LEFT: Final = 64 * 1024
"""Bytes of a request that was not read to its end, which are taken and thrown away."""
_PAUSE: Final = 0.1
"""Seconds after which to accept again, where the process or the kernel is out of something."""


class _Connection:
    """One client: from its connection to the last of its requests."""

    def __init__(self, peer: socket.socket, turn: anyio.Lock, faults: Repeats) -> None:
        self.scope: Final = anyio.CancelScope()
        self.silent = True
        """Whether it has asked nothing that is not answered yet."""
        self.since = anyio.current_time()
        """Since when it is connected, or has its last answer."""
        self._peer = peer
        self._turn = turn
        self._faults = faults
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._loop = asyncio.get_running_loop()

    async def converse(self, find: Find) -> None:
        """Answer one request after another until one side has enough."""
        while True:
            try:
                request = await self._request()
            except h11.RemoteProtocolError as error:
                self.silent = False
                await self._respond(page(error.error_status_hint, f"this is no HTTP request: {error}"))
                return await self._leave()
            if request is None:
                return None
            self.silent = False
            await self._respond(await _choose(request, find, self._faults), head=request.method == b"HEAD")
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return await self._leave()
            self._http.start_next_cycle()
            self.silent, self.since = True, anyio.current_time()

    async def _request(self) -> h11.Request | None:
        """Read the head of the next request; a body is nothing that we read."""
        request: h11.Request | None = None
        with anyio.move_on_after(SILENCE) as limit:
            while True:
                async with self._turn:
                    await anyio.lowlevel.checkpoint()
                    event = self._http.next_event()
                    if isinstance(event, h11.Request):
                        request, event = event, self._http.next_event()
                if request is not None:
                    return request
                if event is not h11.NEED_DATA:
                    return None
                data = await self._loop.sock_recv(self._peer, _CHUNK)
                if self.silent:
                    self.silent = not data
                    limit.deadline = anyio.current_time() + SLOWNESS
                self._http.receive_data(data)
        return None

    async def _respond(self, content: Page, *, head: bool = False) -> None:
        headers = [
            ("Content-Type", content.content_type),
            ("Content-Length", str(len(content.body))),
            ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if content.status == 405:  # noqa: PLR2004 - Method Not Allowed
            headers.append(("Allow", "GET, HEAD"))
        if self._http.their_state is not h11.DONE or content.status == 505:  # noqa: PLR2004 - another HTTP
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=content.status, headers=headers, reason=_REASONS[content.status])
        with anyio.fail_after(SLOWNESS):
            await self._send(response)
            if not head:
                await self._send(h11.Data(data=content.body))
            await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data:
            await self._loop.sock_sendall(self._peer, data)

    async def _leave(self) -> None:
        """End it so that the answer arrives: closed with bytes unread, the kernel would take it back."""
        self._peer.shutdown(socket.SHUT_WR)
        left = _LEFT
        with anyio.move_on_after(1.0):
            while left > 0 and (data := await self._loop.sock_recv(self._peer, _CHUNK)):
                left -= len(data)


_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


async def _choose(request: h11.Request, find: Find, faults: Repeats) -> Page:
    if not request.http_version.startswith(b"1."):
        return page(505, "it speaks HTTP/1.1 and 1.0")
    path = _path(request.target)
    make = find(path)
    if make is None:
        return page(404, "there are /metrics, /readyz, /healthz and /report")
    if request.method not in {b"GET", b"HEAD"}:
        return page(405, "GET and HEAD are all that it answers")
    try:
        content = await make()
    except Exception as error:  # noqa: BLE001 - a fault in what is shown must not end what is served
        if news := faults.news(path, f"{type(error).__name__}: {error}"):
            log = logger.opt(exception=error).error  # with the lines of the files that it came from
            await anyio.to_thread.run_sync(log, "{} cannot be shown: {}", path, news)
        return page(500, "it cannot be shown; the log says why")
    if news := faults.news(path, ""):
        logger.info("{}: {}", path, news)
    return content


def _path(target: bytes) -> str:
    """Take the path of a request target, which may be a whole URL and may have a query."""
    text = target.decode("ascii", "replace").partition("?")[0]
    if text.startswith(("http://", "https://")):
        text = "/" + text.partition("://")[2].partition("/")[2]
    return text


class Server:
    """Serve pages on sockets that listen."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._turn = anyio.Lock()
        self._faults = Repeats()
        self._room = anyio.Semaphore(MOST)
        self._open: set[_Connection] = set()

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept and answer until cancelled; the sockets are closed then."""
        try:
            async with anyio.create_task_group() as tasks:
                for listening in sockets:
                    tasks.start_soon(self._accept, listening, tasks)
        finally:
            for listening in sockets:
                listening.close()

    async def _accept(self, listening: socket.socket, tasks: TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await anyio.lowlevel.checkpoint()  # the kernel may have many for us: one at a turn
            try:
                peer, _ = await loop.sock_accept(listening)
            except OSError:
                await anyio.sleep(_PAUSE)
                continue
            try:
                if not self._room.value:
                    # Whoever has been silent for the longest makes room; else, who is at it for the longest.
                    min(self._open, key=lambda c: (not c.silent, c.since)).scope.cancel()
                await self._room.acquire()
            except BaseException:
                peer.close()
                raise
            connection = _Connection(peer, self._turn, self._faults)
            self._open.add(connection)
            tasks.start_soon(self._converse, connection, peer)

    async def _converse(self, connection: _Connection, peer: socket.socket) -> None:
        try:
            with peer, connection.scope:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await connection.converse(self._find)
        except (OSError, TimeoutError):
            pass  # it is gone, or does not read: nothing to tell anybody
        finally:
            self._open.discard(connection)
            self._room.release()
