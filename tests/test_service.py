"""The DevicePlugin service answers everything that may be asked, and logs no traceback for it."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from grpclib.const import Status

from gpuplug.errors import UnavailableDeviceError, UnknownDeviceError
from gpuplug.kubelet.listener import Listener
from gpuplug.kubelet.service import Service, Streams
from gpuplug.kubelet.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
)
from gpuplug.kubelet.wire import encode_list
from gpuplug.latest import Latest
from gpuplug.model import Allocation, DeviceSpec, Mount
from tests.peer import connected, framed
from tests.running import I915, A, B, heard, resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    import betterproto2

    from gpuplug.model import Resource
    from tests.peer import Peer

METHODS = (
    "GetDevicePluginOptions",
    "Allocate",
    "GetPreferredAllocation",
    "PreStartContainer",
    "ListAndWatch",
)
NOISE = (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 100, b"\xff" * 5000, b"")


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "one.sock"


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail what makes grpclib or asyncio log something, which only goes wrong with us."""
    caplog.set_level(logging.WARNING)
    yield
    assert caplog.records == []


async def allocate(resource: Resource, ids: Sequence[str]) -> Allocation:
    """Give each container a node of its own, or the error that its first id stands for."""
    del resource
    if ids[0] == "unknown":
        raise UnknownDeviceError("no device unknown, in \N{SNOWMAN} words\nof two lines")
    if ids[0] == "unhealthy":
        raise UnavailableDeviceError("device unhealthy is unhealthy")
    if ids[0] == "slow":
        await anyio.sleep_forever()
    return Allocation(
        (DeviceSpec(f"/dev/dri/{ids[0]}", f"/host/dev/dri/{ids[0]}", "rw"),),
        (Mount("/usr/lib/x", "/opt/x", read_only=True), Mount("/var/x", "/var/x", read_only=False)),
        {"IDS": ",".join(ids)},
    )


@asynccontextmanager
async def serving(path: Path, served: Resource) -> AsyncIterator[Service]:
    service = Service(Latest(served), allocate)
    async with Listener(str(path), [service]):
        yield service


async def ask(peer: Peer, method: str, message: betterproto2.Message) -> tuple[int | None, str, bytes]:
    """Call once; return status, text and the answer's bytes."""
    answer = await peer.answer(await peer.call(method, framed(bytes(message))))
    return answer.status, answer.message, answer.data[5:]


def asked(*containers: list[str]) -> AllocateRequest:
    return AllocateRequest([ContainerAllocateRequest(ids) for ids in containers])


async def test_an_allocate_that_is_refused_is_said_once_per_reason_with_a_count(path: Path) -> None:
    with heard() as lines:
        async with serving(path, resource(A)), connected(path) as peer:
            for id_ in ("unhealthy", "unhealthy", "unhealthy", "unknown", "card0", "card0", "unhealthy"):
                await ask(peer, "Allocate", asked([id_]))
    assert [line.replace("\n", " ") for line in lines] == [
        f"WARNING {I915}: an Allocate is refused: device unhealthy is unhealthy",
        (
            f"WARNING {I915}: an Allocate is refused: no device unknown, in \N{SNOWMAN} words of two lines;"
            " before that, 3 times: device unhealthy is unhealthy"
        ),
        f"INFO {I915}: an Allocate is answered: well again",
        f"WARNING {I915}: an Allocate is refused: device unhealthy is unhealthy",
    ]


async def test_the_options_are_those_of_the_registration(path: Path) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        status, _, data = await ask(peer, "GetDevicePluginOptions", AllocateRequest())
    assert status == 0
    assert DevicePluginOptions.parse(data) == DevicePluginOptions(get_preferred_allocation_available=True)


async def test_allocate_answers_container_by_container(path: Path) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        status, _, data = await ask(peer, "Allocate", asked(["a", "b"], ["c"]))
    assert status == 0
    one, other = AllocateResponse.parse(data).container_responses
    assert [(d.container_path, d.host_path, d.permissions) for d in one.devices] == [
        ("/dev/dri/a", "/host/dev/dri/a", "rw")
    ]
    assert [(m.container_path, m.host_path, m.read_only) for m in one.mounts] == [
        ("/usr/lib/x", "/opt/x", True),
        ("/var/x", "/var/x", False),
    ]
    assert one.envs == {"IDS": "a,b"}
    assert other.devices[0].container_path == "/dev/dri/c"
    assert other.envs == {"IDS": "c"}


@pytest.mark.parametrize(
    ("id_", "status", "text"),
    [
        ("unknown", Status.NOT_FOUND, "no device unknown, in \N{SNOWMAN} words\nof two lines"),
        ("unhealthy", Status.FAILED_PRECONDITION, "device unhealthy is unhealthy"),
    ],
)
async def test_a_device_that_cannot_be_given_fails_the_call_with_a_text_that_names_it(
    path: Path, id_: str, status: Status, text: str
) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        assert await ask(peer, "Allocate", asked(["a"], [id_])) == (status.value, text, b"")
        assert (await ask(peer, "Allocate", asked(["a"])))[0] == 0, "the connection goes on"


async def test_preferred_allocation_answers_from_memory_container_by_container(path: Path) -> None:
    question = PreferredAllocationRequest(
        [
            ContainerPreferredAllocationRequest([B, A], [], 1),
            ContainerPreferredAllocationRequest([A, B], [B], 1),
            ContainerPreferredAllocationRequest([A], [], 2),
        ]
    )
    async with serving(path, resource(A, B)), connected(path) as peer:
        status, _, data = await ask(peer, "GetPreferredAllocation", question)
    assert status == 0
    answers = PreferredAllocationResponse.parse(data).container_responses
    assert [answer.device_ids for answer in answers] == [[A], [B], []]


async def test_pre_start_container_is_answered_though_nobody_should_ask(path: Path) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        assert await ask(peer, "PreStartContainer", PreStartContainerRequest([A])) == (0, "", b"")


async def test_each_stream_begins_with_the_whole_list_and_gets_every_other_one(path: Path) -> None:
    served = resource(A)
    async with serving(path, served) as service, connected(path) as peer:
        first = encode_list(served).data
        streams = []
        for number in range(1, 4):
            streams.append(await peer.call("ListAndWatch", framed(b"")))
            answer = await peer.answer(streams[-1], of_bytes=5 + len(first))
            assert answer.data[5:] == first
            assert service.streams.value == Streams(opened=number, open=number)
        service._resource.set(resource(A, B))
        second = encode_list(resource(A, B)).data
        for stream in streams:
            answer = await peer.answer(stream, of_bytes=10 + len(first) + len(second))
            assert answer.data == framed(first) + framed(second)
        assert [d.id for d in ListAndWatchResponse.parse(second).devices] == [A, B]


async def test_a_stream_that_is_reset_is_no_longer_counted(path: Path) -> None:
    async with serving(path, resource(A)) as service, connected(path) as peer:
        one = await peer.call("ListAndWatch", framed(b""))
        other = await peer.call("ListAndWatch", framed(b""))
        await peer.answer(one, of_bytes=5)
        await peer.answer(other, of_bytes=5)
        peer.http2.reset_stream(one)
        await peer.flush()
        version = service.streams.version
        with anyio.fail_after(5):
            while service.streams.value != Streams(opened=2, open=1):
                version, _ = await service.streams.newer(version)
        service._resource.set(resource())
        assert (
            await peer.answer(other, of_bytes=len(framed(encode_list(resource(A)).data)) + 5)
        ).data.endswith(framed(b""))


async def test_a_stream_that_is_not_read_holds_up_no_call_and_no_other_stream_and_gets_the_newest_list(
    path: Path,
) -> None:
    many = [f"0000:{bus:02x}:00.0" for bus in range(99)]
    async with (
        serving(path, resource(*many, shares=10)) as service,
        connected(path, stream_window=100) as peer,
        connected(path) as other,
    ):
        stuck = await peer.call("ListAndWatch", framed(b""))
        peer.acknowledges = False
        await peer.answer(stuck, of_bytes=100)  # all that the window lets through
        following = await other.call("ListAndWatch", framed(b""))
        sizes = 0
        for number in range(50):
            sent = framed(encode_list(service._resource.value).data)
            sizes += len(sent)
            await other.answer(following, of_bytes=sizes)
            service._resource.set(resource(*many[: 98 - number], shares=10))
        assert (await ask(peer, "Allocate", asked(["a"])))[0] == 0, "on the very connection that is stuck"
        # Now it reads again:
        first = framed(encode_list(resource(*many, shares=10)).data)
        newest = framed(encode_list(service._resource.value).data)
        peer.http2.increment_flow_control_window(2**20, stuck)
        await peer.flush()
        answer = await peer.answer(stuck, of_bytes=len(first) + len(newest))
        assert answer.data == first + newest


async def test_an_allocate_that_is_given_up_ends(path: Path) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        slow = await peer.call("Allocate", framed(bytes(asked(["slow"]))))
        peer.http2.reset_stream(slow)
        await peer.flush()
        assert (await ask(peer, "Allocate", asked(["a"])))[0] == 0


@pytest.mark.parametrize(
    "method",
    ["GetDevicePluginOptions", "Allocate", "GetPreferredAllocation", "PreStartContainer", "ListAndWatch"],
)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", Status.INTERNAL, "has no message"),
        (b"\0\0", Status.INTERNAL, "breaks off"),
        (framed(b"\n", length=900), Status.INTERNAL, "breaks off"),
        (framed(b"", compressed=True), Status.UNIMPLEMENTED, "compressed"),
        (framed(b"\x0b\x00"), Status.INTERNAL, ""),
        (framed(b"\n\x05ab"), Status.INTERNAL, ""),
        (framed(b"\xff" * 12), Status.INTERNAL, ""),
    ],
    ids=["empty", "no frame", "half a frame", "compressed", "a group", "half a field", "noise"],
)
async def test_what_is_no_request_gets_a_status(
    path: Path, method: str, body: bytes, status: Status, words: str
) -> None:
    async with serving(path, resource(A)) as service, connected(path) as peer:
        answer = await peer.answer(await peer.call(method, body))
        assert answer.status == status.value
        assert words in answer.message
        assert answer.message
        assert service.streams.value.opened == 0
        assert (await ask(peer, "Allocate", asked(["a"])))[0] == 0


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("Nothing", {}, Status.UNIMPLEMENTED),
        ("Allocate", {"content-type": "text/html"}, Status.UNKNOWN),
        ("Allocate", {"te": "nothing"}, Status.UNKNOWN),
        ("Allocate", {"grpc-timeout": "soon"}, Status.UNKNOWN),
    ],
)
async def test_what_is_not_even_a_call_gets_a_status(
    path: Path, method: str, headers: dict[str, str], status: Status
) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        answer = await peer.answer(await peer.call(method, framed(b""), headers))
        assert answer.status == status.value


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 100, b"\xff" * 5000, b""]
)
async def test_noise_on_the_socket_is_hung_up_on_and_others_are_served(path: Path, noise: bytes) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        async with await anyio.connect_unix(path) as stream:
            await stream.send(noise)
            await stream.send_eof()
            with anyio.fail_after(5):
                while True:
                    try:
                        await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        break
        assert (await ask(peer, "Allocate", asked(["a"])))[0] == 0


async def test_any_authority_is_accepted(path: Path) -> None:
    async with serving(path, resource(A)), connected(path) as peer:
        for authority in ("localhost", "", str(path), "unix:%2Fvar%2Flib"):
            call = await peer.call("GetDevicePluginOptions", framed(b""), {":authority": authority})
            assert (await peer.answer(call)).status == 0
