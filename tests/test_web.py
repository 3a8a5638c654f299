"""The HTTP server: what it answers, and that no client can hold it up."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import struct
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuplug.host.listen import bind
from gpuplug.observe import web
from gpuplug.observe.pages import Page, page
from gpuplug.observe.web import Server
from tests.running import eventually, heard, open_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import ByteStream

BIG = b"x" * 1_000_000
GET = b"GET /hello HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSE = b"GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class Site:
    """A server with a few pages."""

    def __init__(self) -> None:
        self.made = 0
        self.wait = anyio.Event()
        self.server = Server(self.find)
        self.port = 0

    def find(self, path: str) -> web.Make | None:
        return {"/hello": self._hello, "/big": self._big, "/wait": self._wait, "/fault": self._fault}.get(
            path
        )

    async def _hello(self) -> Page:
        self.made += 1
        return page(200, "hello")

    async def _big(self) -> Page:
        return Page(200, BIG)

    async def _wait(self) -> Page:
        await self.wait.wait()
        return page(200, "at last")

    async def _fault(self) -> Page:
        raise ValueError("a fault of ours")

    async def connect(self) -> ByteStream:
        return await anyio.connect_tcp("127.0.0.1", self.port)

    async def say(self, request: bytes) -> bytes:
        """Send something, and return all that comes until the server hangs up."""
        async with await self.connect() as stream:
            await stream.send(request)
            return await rest(stream)


async def rest(stream: ByteStream) -> bytes:
    """Read until the other side hangs up."""
    parts = []
    try:
        while True:
            parts.append(await stream.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return b"".join(parts)


async def head(stream: ByteStream) -> bytes:
    """Read until something has come that ends with an answer's body."""
    found = b""
    while not found.endswith(b"hello\n"):
        found += await stream.receive()
    return found


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    sockets = bind("127.0.0.1", 0)
    made.port = sockets[0].getsockname()[1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.server.serve, sockets)
        with anyio.fail_after(30):
            yield made
        tasks.cancel_scope.cancel()


async def test_a_page_is_answered_with_its_type_and_length() -> None:
    async with site() as on:
        head, _, body = (await on.say(CLOSE)).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert {"Content-Type: text/plain; charset=utf-8", "Content-Length: 6", "Cache-Control: no-store"} <= set(
        lines
    )
    assert any(line.startswith("Date: ") and line.endswith(" GMT") for line in lines)
    assert body == b"hello\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nosuch HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"404 Not Found"),
        (b"POST /nosuch HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"404 Not Found"),
        (b"GET /hello/ HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"GET /hello?a=b HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET http://h:1/hello?x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"200 OK"),
        (b"GET http://h HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"GET * HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"GET /hello HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"DELETE /hello HTTP/1.0\r\n\r\n", b"405 Method Not Allowed"),
        (b"OPTIONS /hello HTTP/1.0\r\n\r\n", b"405 Method Not Allowed"),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"404 Not Found"),
        (b"GET /hello HTTP/1.1\r\n\r\n", b"400 Bad Request"),  # no Host
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", b"501 Not Implemented"),
        (b"GET /hello HTTP/2.0\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400 Bad Request"),  # TLS
        (b"hello\r\n\r\n", b"400 Bad Request"),
        (b"\x00" * 100 + b"\n\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.1\r\nX: " + b"y" * 40_000, b"431 Request Header Fields Too Large"),
        (b"GET /" + b"y" * 1_000_000, b"431 Request Header Fields Too Large"),
        (b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, b"431 Request Header Fields Too Large"),
    ],
)
async def test_a_request_gets_the_status_that_it_deserves(request_: bytes, status: bytes) -> None:
    async with site() as on:
        answer = await on.say(request_)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert (b"\r\nAllow: GET, HEAD\r\n" in answer) == status.startswith(b"405")
        assert (await on.say(CLOSE)).endswith(b"hello\n")


async def test_head_is_answered_as_get_without_the_body() -> None:
    async with site() as on:
        get, head = await on.say(CLOSE), await on.say(CLOSE.replace(b"GET", b"HEAD"))
        assert head.endswith(b"\r\n\r\n")
        without_date = [[line for line in text.split(b"\r\n") if b"Date" not in line] for text in (get, head)]
        assert without_date[0][:-1] == without_date[1][:-1]


async def test_http_1_0_is_hung_up_on_and_1_1_is_kept() -> None:
    async with site() as on:
        assert (await on.say(b"GET /hello HTTP/1.0\r\n\r\n")).endswith(b"hello\n")
        async with await on.connect() as stream:
            for _ in range(3):
                await stream.send(GET)
                assert b"200 OK" in await head(stream)
            await stream.send(CLOSE)
            assert (await rest(stream)).endswith(b"hello\n")


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with site() as on:
        other = GET.replace(b"/hello", b"/nosuch")
        answer = await on.say(GET + other + GET * 50 + CLOSE)
        found = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
        assert found == [b"200", b"404", *[b"200"] * 51]


async def test_a_request_that_arrives_byte_by_byte_is_one() -> None:
    async with site() as on, await on.connect() as stream:
        for byte in CLOSE:
            await stream.send(bytes([byte]))
            await anyio.lowlevel.checkpoint()
        assert (await rest(stream)).endswith(b"hello\n")


@pytest.mark.parametrize("framing", [b"Content-Length: 3000000", b"Transfer-Encoding: chunked"])
async def test_a_body_is_not_read_and_the_answer_arrives_all_the_same(framing: bytes) -> None:
    async with site() as on:
        request = b"GET /hello HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n" + b"1\r\nx\r\n" * 5000
        answer = await on.say(request)
        assert answer.endswith(b"hello\n")
        assert b"Connection: close" in answer


async def test_a_page_that_fails_is_an_error_in_the_log_and_the_next_one_is_answered() -> None:
    with heard("ERROR") as lines:
        async with site() as on:
            for _ in range(3):
                assert b" 500 " in await on.say(b"GET /fault HTTP/1.0\r\n\r\n")
            assert (await on.say(CLOSE)).endswith(b"hello\n")
    assert len(lines) == 1
    assert "/fault cannot be shown: ValueError: a fault of ours" in lines[0]
    assert "Traceback" in lines[0]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: GET[:20] + b + b"\r\n\r\n"))
@example(data=b"")
@example(data=b"\r\n")
@example(data=GET + b"\xff")
def test_no_bytes_at_all_bring_it_down(data: bytes) -> None:
    async def talk() -> None:
        async with site() as on:
            async with await on.connect() as stream:
                await stream.send(data) if data else None
                await stream.send_eof()
                answer = await rest(stream)
            assert not answer or answer.startswith(b"HTTP/1.1 ")
            assert (await on.say(CLOSE)).endswith(b"hello\n")

    anyio.run(talk)


async def test_where_the_event_loop_is_stuck_nothing_is_answered_until_it_goes_on() -> None:
    port: list[int] = []
    stuck, go_on = threading.Event(), threading.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    def hold_up() -> None:
        stuck.set()
        go_on.wait(20)

    async def serve() -> None:
        async with site() as on:
            loop.append(asyncio.get_running_loop())
            port.append(on.port)
            async with await anyio.connect_tcp("127.0.0.1", on.port) as stream:
                await stream.send(CLOSE)
                assert (await rest(stream)).endswith(b"hello\n")
            loop[0].call_soon(hold_up)
            await anyio.sleep(0.01)
            while not answered.is_set():  # noqa: ASYNC110 - it is set by another thread
                await anyio.sleep(0.01)

    answered = threading.Event()
    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    try:
        await anyio.to_thread.run_sync(stuck.wait, 20)
        async with await anyio.connect_tcp("127.0.0.1", port[0]) as stream:
            await stream.send(CLOSE)
            with anyio.move_on_after(0.2) as waited:
                await stream.receive()
            assert waited.cancelled_caught
            go_on.set()
            with anyio.fail_after(20):
                assert (await rest(stream)).endswith(b"hello\n")
    finally:
        go_on.set()
        answered.set()
        await anyio.to_thread.run_sync(thread.join)


# --- clients who mean no good ---------------------------------------------------------


async def test_a_thousand_idle_connections_hold_a_bounded_number_of_files_and_a_probe_is_answered() -> None:
    before = len(open_files())
    async with site() as on:
        idle: list[socket.socket] = []
        try:
            for number in range(1_000):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", on.port))
                idle.append(client)
                if len(idle) > 200:  # this process has no more files to give than any other
                    idle.pop(0).close()
                await anyio.lowlevel.checkpoint()
                if number % 100 == 99:
                    assert (await on.say(CLOSE)).endswith(b"hello\n")
                    assert len(open_files()) - before <= 201 + 1 + web.MOST + 8
            assert on.made == 10
        finally:
            for client in idle:
                client.close()
    await eventually(lambda: len(open_files()) <= before, lambda: str(open_files()))


async def test_whoever_was_silent_for_the_longest_makes_room_and_not_whoever_waits_for_an_answer() -> None:
    async with site() as on:
        waits = await on.connect()
        await waits.send(GET.replace(b"/hello", b"/wait"))
        first, second = await on.connect(), await on.connect()
        for stream in (second, first):  # the second one is the older one now
            await stream.send(GET)
            await head(stream)
        others = [await on.connect() for _ in range(web.MOST - 3)]
        for stream in others[:2]:
            await stream.send(GET)
            await head(stream)
        newest = await on.connect()
        assert await rest(second) == b""
        for stream in (first, newest, others[-1]):
            await stream.send(GET)
            assert b"200 OK" in await head(stream)
        on.wait.set()
        assert (await waits.receive()).startswith(b"HTTP/1.1 200 OK")
        for stream in (waits, first, second, newest, *others):
            await stream.aclose()


async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "SLOWNESS", 0.2)
    async with site() as on, await on.connect() as stream:
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:

            async def drip() -> None:
                await stream.send(GET[:20])
                while True:
                    await anyio.sleep(0.01)
                    await stream.send(b"x")

            tasks.start_soon(drip)
            assert await rest(stream) == b""
            tasks.cancel_scope.cancel()
        assert 0.2 <= time.monotonic() - began < 5


async def test_silence_is_waited_for_longer_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SILENCE", 0.2)
    async with site() as on, await on.connect() as stream:
        await stream.send(GET)
        await head(stream)
        began = time.monotonic()
        assert await rest(stream) == b""
        assert 0.1 <= time.monotonic() - began < 5


async def test_clients_who_do_not_read_hold_up_nobody_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SLOWNESS", 1.0)
    async with site() as on:
        lazy = [socket.create_connection(("127.0.0.1", on.port)) for _ in range(web.MOST)]
        for client in lazy:
            client.setblocking(False)
            client.send(GET.replace(b"/hello", b"/big"))
        while sum(c.silent for c in on.server._open) or len(on.server._open) < web.MOST:
            await anyio.lowlevel.checkpoint()
        assert (await on.say(CLOSE)).endswith(b"hello\n")  # all places were taken: somebody had to go
        await eventually(lambda: not on.server._open, lambda: f"{len(on.server._open)} connections, not none")
        for client in lazy:
            with client, suppress(ConnectionResetError):
                got = 0
                while data := await asyncio.get_running_loop().sock_recv(client, 2**20):
                    got += len(data)
                assert 0 < got < len(BIG)


async def test_without_a_file_to_spare_it_accepts_again_when_there_is_one() -> None:
    async with site() as on:
        with socket.socket() as client:
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            os.close(lowest := os.dup(0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))  # not one more file
            try:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", on.port))
                await anyio.wait_all_tasks_blocked()
                assert not on.server._open
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await asyncio.get_running_loop().sock_sendall(client, CLOSE)
            assert (await asyncio.get_running_loop().sock_recv(client, 4096)).startswith(b"HTTP/1.1 200 OK")


async def test_a_client_who_resets_the_connection_is_no_error() -> None:
    with heard("DEBUG") as lines:
        async with site() as on:
            for data in (b"", GET[:10], GET, GET.replace(b"/hello", b"/big"), b"garbage\r\n\r\n"):
                client = socket.create_connection(("127.0.0.1", on.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.send(data)
                await anyio.sleep(0.01)
                client.close()
            assert (await on.say(CLOSE)).endswith(b"hello\n")
    assert lines == []


async def test_told_to_stop_it_closes_all_that_it_has() -> None:
    before = open_files()
    async with site() as on:
        streams = [await on.connect() for _ in range(5)]
        await streams[0].send(GET[:10])
        await streams[1].send(GET.replace(b"/hello", b"/big"))
        await streams[2].send(GET.replace(b"/hello", b"/wait"))
    for stream in streams:
        await stream.aclose()
    assert open_files() == before
