"""What goes over the wire: against Kubernetes' own bytes, and against Google's protobuf."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.protobuf.message import DecodeError
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuplug.core.sizes import list_size
from gpuplug.errors import WireError
from gpuplug.kubelet import v1beta1, wire
from gpuplug.kubelet.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    Device,
    Empty,
    ListAndWatchResponse,
    NumaNode,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    RegisterRequest,
    TopologyInfo,
)
from gpuplug.kubelet.wire import (
    Codec,
    Encoded,
    MalformedMessageError,
    decode,
    encode_allocations,
    encode_list,
)
from gpuplug.model import Allocation, DeviceSpec, Gpu, Mount, Offer, Resource, ResourceName, Verdict
from tests.strategies import MESSAGES, contents, google_type, our_message, resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import betterproto2

FROM_GO: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("Empty", {}, ""),
    (
        "DevicePluginOptions",
        {"pre_start_required": True, "get_preferred_allocation_available": True},
        "08011001",
    ),
    (
        "RegisterRequest",
        {
            "version": "v1beta1",
            "endpoint": "e",
            "resource_name": "r/n",
            "options": {"get_preferred_allocation_available": True},
        },
        "0a07763162657461311201651a03722f6e22021001",
    ),
    ("RegisterRequest", {"version": "v1beta1", "options": {}}, "0a07763162657461312200"),
    (
        "ListAndWatchResponse",
        {
            "devices": [
                {"id": "a", "health": "H", "topology": {"nodes": [{"id": 0}]}},
                {"id": "b", "health": "H", "topology": {"nodes": [{"id": 1}, {"id": 300}, {"id": -1}]}},
                {"id": "c", "health": "H"},
                {},
            ]
        },
        (
            "0a0a0a01611201481a020a000a1e0a01621201481a160a0208010a0308ac020a0b08ffffffffffffffffff01"
            "0a060a01631201480a00"
        ),
    ),
    (
        "PreferredAllocationRequest",
        {
            "container_requests": [
                {
                    "available_device_ids": ["a", "b", ""],
                    "must_include_device_ids": ["b"],
                    "allocation_size": 2,
                },
                {},
                {"allocation_size": -1},
            ]
        },
        "0a0d0a01610a01620a0012016218020a000a0b18ffffffffffffffffff01",
    ),
    (
        "PreferredAllocationResponse",
        {"container_responses": [{"device_ids": ["a", "b"]}, {}]},
        "0a060a01610a01620a00",
    ),
    ("AllocateRequest", {"container_requests": [{"devices_ids": ["a", "b"]}, {}]}, "0a060a01610a01620a00"),
    (
        "AllocateResponse",
        {
            "container_responses": [
                {
                    "envs": {"E": "1", "F": ""},
                    "mounts": [{"container_path": "c", "host_path": "h", "read_only": True}, {}],
                    "devices": [{"container_path": "c", "host_path": "h", "permissions": "rw"}],
                    "annotations": {"k": "v"},
                    "cdi_devices": [{"name": "v/c=n"}],
                },
                {},
            ]
        },
        (
            "0a380a060a01451201310a050a0146120012080a0163120168180112001a0a0a01631201681a027277"
            "22060a016b1201762a070a05762f633d6e0a00"
        ),
    ),
    ("PreStartContainerRequest", {"devices_ids": ["a", "b"]}, "0a01610a0162"),
    ("PreStartContainerResponse", {}, ""),
]
"""Messages with every field set, as the Go package k8s.io/kubelet v0.36.3 encodes them.

Made with its own types and ``proto.MarshalOptions{Deterministic: true}``, so that the
field numbers do not come from our .proto file.
"""

RESOURCE: Final = ResourceName("gpu.intel.com/i915")
# Speed is measured elsewhere. There are twenty messages, so few examples of each.
in_any_time = settings(deadline=None, max_examples=settings().max_examples // 4)


def offer(address: str, shares: int = 1, *, healthy: bool = True, numa_node: int | None = None) -> Offer:
    gpu = Gpu(address=address, bus="pci", kernel_driver="i915", nodes=(), numa_node=numa_node)
    return Offer(gpu, "i915", shares, (), verdict=Verdict(healthy=healthy))


def list_message(resource: Resource) -> dict[str, Any]:
    """Say the list in plain values, Device by Device."""
    devices: list[dict[str, Any]] = []
    for device in resource.devices():
        entry: dict[str, Any] = {"id": device.id, "health": "Healthy" if device.healthy else "Unhealthy"}
        if device.gpu.numa_node is not None:
            entry["topology"] = {"nodes": [{"id": device.gpu.numa_node}]}
        devices.append(entry)
    return {"devices": devices}


# --- against Kubernetes -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "content", "data"), FROM_GO)
def test_messages_have_the_bytes_that_go_gives_them(name: str, content: dict[str, Any], data: str) -> None:
    assert Codec().encode(our_message(name, content), MESSAGES[name]).hex() == data


@pytest.mark.parametrize(("name", "content", "data"), FROM_GO)
def test_bytes_from_go_are_read(name: str, content: dict[str, Any], data: str) -> None:
    assert Codec().decode(bytes.fromhex(data), MESSAGES[name]) == our_message(name, content)


def test_numa_node_0_reaches_the_wire_and_an_unknown_one_does_not() -> None:
    with_topology = Device(id="a", health="H", topology=TopologyInfo(nodes=[NumaNode(id=0)]))
    assert Codec().encode(with_topology, Device).hex() == "0a01611201481a020a00"
    assert Codec().encode(Device(id="a", health="H"), Device).hex() == "0a0161120148"

    healthy = b"\x12\x07Healthy"
    assert encode_list(Resource(RESOURCE, (offer("a", numa_node=0),))).data == (
        b"\x0a\x10" + b"\x0a\x01a" + healthy + bytes.fromhex("1a020a00")
    )
    assert encode_list(Resource(RESOURCE, (offer("a"),))).data == b"\x0a\x0c" + b"\x0a\x01a" + healthy


def test_containers_that_need_nothing_are_answered_one_by_one() -> None:
    answer = AllocateResponse(container_responses=[ContainerAllocateResponse(), ContainerAllocateResponse()])
    assert Codec().encode(answer, AllocateResponse).hex() == "0a000a00"


# --- against Google's protobuf --------------------------------------------------------------


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@in_any_time
def test_what_google_writes_is_read(name: str, data: st.DataObject) -> None:
    content = data.draw(contents(name))
    encoded = google_type(name)(**content).SerializeToString()
    assert Codec().decode(encoded, MESSAGES[name]) == our_message(name, content)


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@in_any_time
def test_what_is_written_google_reads(name: str, data: st.DataObject) -> None:
    content = data.draw(contents(name))
    encoded = Codec().encode(our_message(name, content), MESSAGES[name])
    assert google_type(name).FromString(encoded) == google_type(name)(**content)


UNKNOWN_FIELDS: Final = {
    "an integer": "f80f" + "96ffffffffffffffff01",
    "eight bytes": "f90f" + "0102030405060708",
    "a string": "fa0f" + "03616263",
    "four bytes": "fd0f" + "01020304",
}


@pytest.mark.parametrize("unknown", UNKNOWN_FIELDS.values(), ids=UNKNOWN_FIELDS)
@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(in_any_time, max_examples=5)
def test_fields_of_a_newer_kubelet_are_passed_over(name: str, unknown: str, data: st.DataObject) -> None:
    content = data.draw(contents(name))
    known = google_type(name)(**content).SerializeToString()
    extra = bytes.fromhex(unknown)
    assert decode(extra + known + extra, MESSAGES[name]) == our_message(name, content)


GOOGLE_TAKES: Final = ("wire type 3", "field number 0", "more than 64 bits")
"""What Google's Python reader lets through in places and ours never does; no kubelet sends it.

Groups, an ancient way to nest; a field number that does not exist, in messages without
fields; an integer that is too long, in a field that is passed over.
"""


def read_by_both(name: str, data: bytes) -> betterproto2.Message | None:
    """Read bytes with our reader and Google's, which must agree; give our message, or None."""
    try:
        ours = decode(data, MESSAGES[name])
    except WireError as error:
        if not any(words in str(error) for words in GOOGLE_TAKES):
            with pytest.raises(DecodeError):
                google_type(name).FromString(data)
        return None
    theirs = google_type(name).FromString(data)
    theirs.DiscardUnknownFields()
    assert google_type(name).FromString(bytes(ours)) == theirs
    return ours


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.binary(max_size=40))
@example(data=b"\x0a")
@example(data=b"\x0a\x02a")
@example(data=b"\x00" * 8)
@example(data=b"\x8a" + b"\x80" * 5 + b"\x00\x01a")
@example(data=b"\xff" * 11)
@example(data=b"\x07")
@example(data=b"\x08\x80")
@example(data=b"\x0a\xff\xff\xff\xff\x0f")
@in_any_time
def test_any_bytes_are_read_as_google_reads_them(name: str, data: bytes) -> None:
    read_by_both(name, data)


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@in_any_time
def test_damaged_messages_are_read_as_google_reads_them(name: str, data: st.DataObject) -> None:
    encoded = bytearray(google_type(name)(**data.draw(contents(name))).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if encoded:
            place = data.draw(st.integers(0, len(encoded) - 1))
            encoded[place : place + 1] = data.draw(st.binary(max_size=2))
    read_by_both(name, bytes(encoded))


@pytest.mark.parametrize(("name", "content", "data"), FROM_GO)
def test_a_message_that_breaks_off_inside_a_field_is_an_error(
    name: str, content: dict[str, Any], data: str
) -> None:
    encoded = bytes.fromhex(data)
    refused = 0
    for length in range(len(encoded)):
        ours = read_by_both(name, encoded[:length])
        refused += ours is None
        assert ours != our_message(name, content)
    assert refused > 0 or len(encoded) <= 1


def test_a_message_field_in_two_pieces_is_one_message() -> None:
    pieces = bytes.fromhex("22020801" + "22021001")
    options = v1beta1.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
    assert decode(pieces, RegisterRequest) == RegisterRequest(options=options)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("0a05616263", "its message ends at byte 5"),
        ("0a", "breaks off after 1 bytes"),
        ("0a03" + "0a0261", "its message ends at byte 5"),
        ("0a03" + "0a01ff", "can't decode byte 0xff"),
        ("0a02" + "1880", "breaks off after 4 bytes"),
        ("0a02" + "1880" + "00", "ends at byte 5, its message at byte 4"),
        ("0b", "wire type 3"),
        ("00", "field number 0"),
        ("f8ffffff1f" + "00", "field number 1073741823"),
        ("8a" + "80" * 5 + "00", "a tag of 7 bytes at byte 0"),
        ("ff" * 9 + "02", "more than 64 bits"),
        ("ff" * 10 + "01", "more than 64 bits"),
    ],
)
def test_an_error_names_the_message_and_what_is_wrong_with_it(data: str, words: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(bytes.fromhex(data), PreferredAllocationRequest)
    assert str(caught.value).startswith("PreferredAllocationRequest: ")
    assert words in str(caught.value)


def test_a_request_that_names_12_800_ids_is_read_whole() -> None:
    ids = [f"0000:{gpu:02x}:00.0::{share}" for gpu in range(128) for share in range(100)]
    content = {"container_requests": [{"available_device_ids": ids, "allocation_size": 1}]}
    encoded = google_type("PreferredAllocationRequest")(**content).SerializeToString()
    request = decode(encoded, PreferredAllocationRequest)
    expected = ContainerPreferredAllocationRequest(available_device_ids=ids, allocation_size=1)
    assert request.container_requests == [expected]


# --- the answer to Allocate -------------------------------------------------------------------

paths = st.text(min_size=1, max_size=20)
allocations = st.builds(
    Allocation,
    specs=st.lists(st.builds(DeviceSpec, paths, paths, st.sampled_from(["r", "rw", "rwm"])), max_size=3).map(
        tuple
    ),
    mounts=st.lists(st.builds(Mount, paths, paths, st.booleans()), max_size=3).map(tuple),
    envs=st.dictionaries(paths, st.text(max_size=20), max_size=3),
)


@given(given_=st.lists(allocations, max_size=3))
@in_any_time
def test_google_reads_the_answer_to_allocate_that_is_put_together_by_hand(given_: list[Allocation]) -> None:
    answers: Any = google_type("AllocateResponse").FromString(encode_allocations(given_).data)
    assert len(answers.container_responses) == len(given_)
    for answer, allocation in zip(answers.container_responses, given_, strict=True):
        assert dict(answer.envs) == allocation.envs
        assert [(s.container_path, s.host_path, s.permissions) for s in answer.devices] == [
            (s.container_path, s.host_path, s.permissions) for s in allocation.specs
        ]
        assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [
            (m.container_path, m.host_path, m.read_only) for m in allocation.mounts
        ]


def test_two_containers_that_are_given_nothing_are_two_empty_answers() -> None:
    assert encode_allocations([Allocation(), Allocation()]).data.hex() == "0a000a00"


# --- the list of Devices ----------------------------------------------------------------------


@given(resource=resources())
@in_any_time
def test_a_list_has_the_bytes_that_google_gives_it(resource: Resource) -> None:
    google = google_type("ListAndWatchResponse")(**list_message(resource))
    assert encode_list(resource).data == google.SerializeToString()


def test_a_list_has_the_bytes_that_betterproto2_gives_it() -> None:
    resource = Resource(
        RESOURCE,
        (
            offer("0000:03:00.0", 12, numa_node=0),
            offer("0000:04:00.0", 101, healthy=False, numa_node=1),
            offer("0000:05:00.0"),
        ),
    )
    ours = our_message("ListAndWatchResponse", list_message(resource))
    assert encode_list(resource).data == bytes(ours)
    assert decode(encode_list(resource).data, ListAndWatchResponse) == ours


def test_a_monitoring_resource_is_one_healthy_device_without_numa_node() -> None:
    sick = replace(offer("a"), verdict=Verdict(healthy=False, reason="wedged"))
    watched = Resource(RESOURCE, (sick, offer("b")), together=True)
    (device,) = decode(encode_list(watched).data, ListAndWatchResponse).devices
    assert (device.id, device.health, device.topology) == ("all", "Healthy", None)
    assert encode_list(replace(watched, offers=())) == Encoded(b"")
    assert list_size(watched) == len(encode_list(watched).data)


def test_an_empty_list_is_an_empty_message() -> None:
    assert encode_list(Resource(RESOURCE)) == Encoded(b"")


def test_a_change_of_one_gpu_encodes_one_gpu() -> None:
    resource = Resource(RESOURCE, tuple(offer(f"0000:{bus:02x}:00.0", 100) for bus in range(128)))
    wire._encode_entry.cache_clear()
    encode_list(resource)
    before = wire._encode_entry.cache_info().misses

    sick = replace(resource.offers[5], verdict=Verdict(healthy=False, reason="wedged"))
    changed = replace(resource, offers=(*resource.offers[:5], sick, *resource.offers[6:]))
    encoded = encode_list(changed)

    assert wire._encode_entry.cache_info().misses - before == 1
    assert b"".join(encoded.data.split(b"Unhealthy")).count(b"Healthy") == 127 * 100


# --- the codec ----------------------------------------------------------------------------------


def test_an_encoded_message_passes_through() -> None:
    assert Codec().encode(Encoded(b"as it is"), ListAndWatchResponse) == b"as it is"


def test_a_message_of_another_type_is_not_sent() -> None:
    with pytest.raises(TypeError, match="expected a AllocateResponse, got Empty"):
        Codec().encode(Empty(), AllocateResponse)


def test_the_codec_speaks_plain_protobuf() -> None:
    assert Codec().__content_subtype__ == "proto"


class RawCodec(CodecBase):
    """Sends the bytes that it is given, and gives the bytes that it gets."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ARG002 (grpclib's signature)
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:  # noqa: ARG002
        return data


class EmptyAnswers(v1beta1.DevicePluginBase):
    async def allocate(self, message: AllocateRequest) -> AllocateResponse:
        return AllocateResponse([ContainerAllocateResponse() for _ in message.container_requests])

    async def get_preferred_allocation(
        self, message: PreferredAllocationRequest
    ) -> PreferredAllocationResponse:
        raise AssertionError(f"called with {message!r}")


class RudeKubelet(v1beta1.RegistrationBase):
    async def register(self, message: Any) -> Any:  # noqa: ARG002
        return b"\x0a\x05abc"


@asynccontextmanager
async def served(
    service: EmptyAnswers | RudeKubelet, path: Path, *, server: CodecBase, client: CodecBase
) -> AsyncIterator[Channel]:
    """Serve on a socket, and dial it."""
    running = Server([service], codec=server)
    await running.start(path=str(path))
    try:
        async with Channel(path=str(path), codec=client) as channel:
            yield channel
    finally:
        running.close()
        await running.wait_closed()


def test_a_malformed_request_gets_a_clean_status_and_the_server_goes_on(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with served(EmptyAnswers(), short_path / "s", server=Codec(), client=RawCodec()) as channel:
            plugin = v1beta1.DevicePluginStub(channel)
            broken: Any = b"\x0a\x05abc"
            with pytest.raises(GRPCError) as caught:
                await plugin.get_preferred_allocation(broken)
            assert caught.value.status is Status.INTERNAL
            assert str(caught.value.message).startswith("PreferredAllocationRequest: ")

            whole: Any = bytes.fromhex("0a000a00")
            answer: Any = await plugin.allocate(whole)
            assert answer == bytes.fromhex("0a000a00")

    with caplog.at_level(logging.DEBUG, logger="grpclib"):
        asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.name.startswith("grpclib")] == []


def test_a_malformed_answer_is_a_wire_error_to_the_caller(short_path: Path) -> None:
    async def story() -> None:
        async with served(RudeKubelet(), short_path / "s", server=RawCodec(), client=Codec()) as channel:
            request = RegisterRequest(version=wire.VERSION)
            with pytest.raises(WireError, match="Empty: ") as caught:
                await v1beta1.RegistrationStub(channel).register(request)
            assert isinstance(caught.value, MalformedMessageError)

    asyncio.run(story())
