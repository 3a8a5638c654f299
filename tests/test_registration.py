"""Register is one call, and whatever the other side does becomes one named error."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import random
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from gpuplug.errors import RegistrationError
from gpuplug.kubelet.registration import register, unreachable
from gpuplug.testing import FakeKubelet
from tests.running import I915, open_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Take every connection on a socket, do something with it and hang up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(handle, path)
    try:
        yield
    finally:
        server.close()
        for task in asyncio.all_tasks():
            if "handle" in repr(task.get_coro()):
                task.cancel()
        await anyio.wait_all_tasks_blocked()


async def failing(path: Path, within: float = 5.0) -> str:
    """Register where that fails, and return the error's text."""
    before = [name for name in open_files() if name.startswith("socket:")]
    with pytest.raises(RegistrationError) as failure:
        await register(str(path), "one.sock", I915, within=within)
    await anyio.wait_all_tasks_blocked()
    left = [name for name in open_files() if name.startswith("socket:")]
    assert len(left) <= len(before) + 1  # the other side may not have hung up yet
    return str(failure.value)


@pytest.fixture
def path(kubelet_dir: Path) -> Path:
    return kubelet_dir / "kubelet.sock"


async def test_no_kubelet_at_all(path: Path) -> None:
    assert await failing(path) == f"{path}: No such file or directory"


async def test_a_socket_that_nobody_listens_on(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert await failing(path) == f"{path}: Connection refused"


async def test_a_file_that_is_no_socket(path: Path) -> None:
    path.touch()
    assert await failing(path) == f"{path}: Connection refused"


async def test_a_refusal_is_given_in_the_kubelets_words(kubelet_dir: Path, path: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse = "the ResourceName is invalid"
        assert await failing(path) == "the kubelet refused: the ResourceName is invalid"


async def test_an_endpoint_that_does_not_serve_is_refused_by_a_kubelet_that_dials_back(
    kubelet_dir: Path, path: Path
) -> None:
    async with FakeKubelet(kubelet_dir, dial_timeout=0.1):
        assert "failed to dial" in await failing(path)


async def test_an_answer_that_does_not_come(kubelet_dir: Path, path: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet:
        kubelet.faults.delay = math.inf
        assert await failing(path, within=0.1) == "the kubelet did not answer within 0.1 s"


async def test_a_kubelet_that_ends_in_the_middle_of_the_call(kubelet_dir: Path, path: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, anyio.create_task_group() as tasks:
        kubelet.faults.delay = math.inf

        async def end() -> None:
            await kubelet.wait_for(lambda k: k.registrations)
            await kubelet.stop()

        tasks.start_soon(end)
        assert (await failing(path)).startswith("the kubelet ended the call: ")


async def test_a_server_that_hangs_up_at_once(path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader, writer

    async with listening(path, hang_up):
        for _ in range(20):
            assert "the kubelet ended the c" in await failing(path) or "Broken pipe" in await failing(path)


async def test_a_kubelet_that_dies_in_any_turn_of_the_connections_making(path: Path) -> None:
    texts = set()
    for turns in range(12):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()

            async def die(server: socket.socket = server, turns: int = turns) -> None:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                server.close()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(die)
                texts.add(await failing(path))
        path.unlink()
    assert "the kubelet ended the connection at once" in texts
    assert all("ended" in text or "refused" in text or "Broken pipe" in text for text in texts), texts


async def test_a_server_that_says_nothing(path: Path) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        while await reader.read(4096):
            pass

    async with listening(path, listen):
        assert await failing(path, within=0.1) == "the kubelet did not answer within 0.1 s"


@pytest.mark.parametrize("seed", range(40))
async def test_a_server_that_talks_noise(path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seed % 2:
            await reader.read(4096)
        if seed % 4 < 2:  # the beginning of HTTP/2, then frames of any kind about the streams in use
            writer.write(b"\0\0\0\x04\0\0\0\0\0")
            for _ in range(5):
                size, kind, about = chance.randrange(40), chance.randrange(12), chance.choice([0, 1, 3])
                writer.write(size.to_bytes(3, "big") + bytes([kind, chance.randrange(64)]))
                writer.write(about.to_bytes(4, "big") + chance.randbytes(size))
        else:
            writer.write(chance.randbytes(chance.randrange(1, 200)))

    async with listening(path, talk):
        assert await failing(path, within=1)


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        ({":status": "404"}, b"", "404"),
        ({":status": "200"}, b"", "content-type"),
        ({":status": "200", "content-type": "text/html"}, b"<html>", "text/html"),
        ({":status": "200", "content-type": "application/grpc"}, b"\0\0\0\0\x02\x0b\0", ""),
        ({":status": "200", "content-type": "application/grpc"}, b"\0\0\0\0\x09ab", ""),
        ({":status": "200", "content-type": "application/grpc"}, b"\1\0\0\0\0", ""),
        ({":status": "200", "content-type": "application/grpc"}, b"", ""),
        ({":status": "200", "content-type": "application/grpc", "grpc-status": "many"}, b"", "many"),
        ({":status": "200", "content-type": "application/grpc", "grpc-status": "14"}, b"", "UNAVAILABLE"),
    ],
)
async def test_a_server_that_speaks_http2_and_not_the_api(
    path: Path, headers: dict[str, str], body: bytes, words: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http2 = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        http2.initiate_connection()
        while data := await reader.read(4096):
            for event in http2.receive_data(data):
                if isinstance(event, RequestReceived):
                    http2.send_headers(event.stream_id, list(headers.items()), end_stream=not body)
                    if body:
                        http2.send_data(event.stream_id, body, end_stream=True)
            writer.write(http2.data_to_send())

    async with listening(path, answer):
        text = await failing(path, within=1)
    assert words in text


async def test_a_fault_of_our_own_is_not_taken_for_one_of_the_kubelet(kubelet_dir: Path, path: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet:
        with pytest.raises(AttributeError, match="'int' object"):
            await register(str(path), 5, I915)  # type: ignore[arg-type]
        kubelet.faults.refuse = "no"
        assert await failing(path) == "the kubelet refused: no"


def test_a_denial_comes_with_a_hint_at_selinux_and_other_errors_without() -> None:
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert "container_device_plugin_t" in unreachable(denied)
    assert unreachable(OSError(errno.EPERM, "Operation not permitted")).startswith(
        "Operation not permitted (on "
    )
    assert unreachable(OSError(errno.ENOENT, "No such file")) == "No such file"
    assert unreachable(OSError("of no number")) == "of no number"
