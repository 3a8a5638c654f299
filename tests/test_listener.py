"""A Listener serves on one socket, and leaves neither file nor connection behind."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from grpclib.client import Channel

from gpuplug.kubelet.listener import CLOSING, Listener
from gpuplug.kubelet.service import Service, Streams
from gpuplug.kubelet.v1beta1 import DevicePluginStub, Empty
from gpuplug.kubelet.wire import Codec
from gpuplug.latest import Latest
from tests.peer import connected, framed
from tests.running import A, allocate_from_the_list, eventually, open_files, resource

if TYPE_CHECKING:
    from pathlib import Path


def service() -> Service:
    return Service(Latest(resource(A)), allocate_from_the_list)


def sockets() -> int:
    return sum(name.startswith("socket:") for name in open_files())


async def open_sockets_are(number: int) -> None:
    await eventually(lambda: sockets() == number, lambda: f"{number} sockets open; there are {sockets()}")


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "gpuplug-one.sock"


async def options(path: Path) -> bool:
    """Ask whoever serves there for its options."""
    channel = Channel(path=str(path), codec=Codec())
    try:
        told = await DevicePluginStub(channel).get_device_plugin_options(Empty())
    finally:
        channel.close()
    return told.get_preferred_allocation_available


async def test_it_serves_while_the_block_runs_and_removes_its_file_after(path: Path) -> None:
    async with Listener(str(path), [service()]) as listener:
        assert await options(path)
        assert await listener.is_there()
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        await options(path)


async def test_it_notices_that_its_file_is_gone_or_is_another_one(path: Path) -> None:
    async with Listener(str(path), [service()]) as listener:
        path.unlink()
        assert not await listener.is_there()
        async with Listener(str(path), [service()]) as other:
            assert not await listener.is_there()
            assert await other.is_there()


async def test_it_leaves_a_file_alone_that_has_taken_the_place_of_its_own(path: Path) -> None:
    async with Listener(str(path), [service()]):
        path.unlink()
        foreign = socket.socket(socket.AF_UNIX)
        foreign.bind(str(path))
    assert path.is_socket()
    foreign.close()


async def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing_open(path: Path) -> None:
    before = open_files()
    with pytest.raises(FileNotFoundError):
        async with Listener(str(path.parent / "nowhere" / "x.sock"), [service()]):
            pass
    assert open_files() == before


async def test_cancelled_in_any_turn_of_its_beginning_it_leaves_no_file(path: Path) -> None:
    before = sockets()
    for turns in range(12):
        with anyio.CancelScope() as scope:

            async def cancel(scope: anyio.CancelScope = scope, turns: int = turns) -> None:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                async with Listener(str(path), [service()]):
                    await anyio.sleep_forever()
        assert not path.exists(), f"cancelled after {turns} turns"
        await open_sockets_are(before)


async def test_its_end_ends_the_streams_that_are_open_and_no_other_ones(path: Path) -> None:
    one, other = service(), service()
    async with Listener(f"{path}2", [other]), AsyncExitStack() as connections:
        async with Listener(str(path), [one]):
            leaving = await connections.enter_async_context(connected(path))
            staying = await connections.enter_async_context(connected(f"{path}2"))
            for peer in (leaving, staying):
                await peer.answer(await peer.call("ListAndWatch", framed(b"")), of_bytes=5)
            assert one.streams.value == other.streams.value == Streams(opened=1, open=1)
        assert one.streams.value == Streams(opened=1, open=0)
        assert other.streams.value == Streams(opened=1, open=1)
        await leaving.hung_up()
        assert (await staying.answer(await staying.call("GetDevicePluginOptions", framed(b"")))).status == 0


@pytest.mark.parametrize("turns", range(8))
async def test_a_peer_that_connects_in_the_moment_of_the_end_is_hung_up_on(path: Path, turns: int) -> None:
    before = sockets()
    listener = Listener(str(path), [service()])
    async with listener:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(path))
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
    with anyio.fail_after(5):
        while await anyio.to_thread.run_sync(hears, peer):
            pass
    peer.close()
    await open_sockets_are(before)


def hears(peer: socket.socket) -> bytes:
    """Receive something; nothing once the other side has hung up."""
    peer.settimeout(5)
    try:
        return peer.recv(4096)
    except ConnectionResetError:
        return b""


async def test_a_peer_that_reads_nothing_is_hung_up_on_all_the_same(path: Path) -> None:
    before = sockets()
    many = resource(*[f"0000:{bus:02x}:00.0" for bus in range(99)], shares=700)
    served = Service(Latest(many), allocate_from_the_list)
    async with AsyncExitStack() as connections:
        async with Listener(str(path), [served]):
            peer = await connections.enter_async_context(connected(path, stream_window=2**24))
            stream = await peer.call("ListAndWatch", framed(b""))
            await peer.answer(stream, of_bytes=5)
            # 2.5 MB are more than a unix socket holds, so that the rest waits in the plugin.
            began = anyio.current_time()
        assert anyio.current_time() - began < CLOSING + 0.5
        await open_sockets_are(before + 1)  # the peer's end
    await open_sockets_are(before)
