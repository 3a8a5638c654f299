# ruff: noqa: RUF009 - a field() of betterproto2 is what a field() of dataclasses is
"""The kubelet's pod-resources API: which Devices it can give out, and who holds them.

Only what these tests read is declared; the rest of an answer is skipped by the decoder. Names and numbers are
those of k8s.io/kubelet pkg/apis/podresources/v1.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import betterproto2
from grpclib.client import Channel
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_SERVICE = "/v1.PodResourcesLister"


@dataclass(eq=False, repr=False)
class _Nothing(betterproto2.Message):
    """The request of both calls."""


@dataclass(eq=False, repr=False)
class _NumaNode(betterproto2.Message):
    id: int = betterproto2.field(1, betterproto2.TYPE_INT64)


@dataclass(eq=False, repr=False)
class _Topology(betterproto2.Message):
    nodes: list[_NumaNode] = betterproto2.field(1, betterproto2.TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class _Devices(betterproto2.Message):
    resource_name: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    device_ids: list[str] = betterproto2.field(2, betterproto2.TYPE_STRING, repeated=True)
    topology: _Topology | None = betterproto2.field(3, betterproto2.TYPE_MESSAGE, optional=True)


@dataclass(eq=False, repr=False)
class _Allocatable(betterproto2.Message):
    devices: list[_Devices] = betterproto2.field(1, betterproto2.TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class _Container(betterproto2.Message):
    name: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    devices: list[_Devices] = betterproto2.field(2, betterproto2.TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class _Pod(betterproto2.Message):
    name: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    namespace: str = betterproto2.field(2, betterproto2.TYPE_STRING)
    containers: list[_Container] = betterproto2.field(3, betterproto2.TYPE_MESSAGE, repeated=True)


@dataclass(eq=False, repr=False)
class _Pods(betterproto2.Message):
    pod_resources: list[_Pod] = betterproto2.field(1, betterproto2.TYPE_MESSAGE, repeated=True)


class _Codec(CodecBase):
    """Betterproto2's own encoding, as grpclib wants to be told it."""

    __content_subtype__ = "proto"

    def encode(self, message: betterproto2.Message, message_type: type[betterproto2.Message]) -> bytes:  # noqa: ARG002
        return bytes(message)

    def decode(self, data: bytes, message_type: type[betterproto2.Message]) -> betterproto2.Message:
        return message_type.parse(data)


@dataclass(frozen=True, slots=True)
class Held:
    """The Devices of one resource that one container holds."""

    pod: str
    container: str
    resource: str
    ids: frozenset[str]


M = TypeVar("M", bound=betterproto2.Message)
Numa = frozenset[int] | None
"""NUMA nodes as told; None where no topology was told."""


async def allocatable(kubelet: Path) -> Mapping[str, Mapping[str, Numa]]:
    """Ask GetAllocatableResources: resource name → Device id → its NUMA nodes.

    :param kubelet: the pod-resources socket
    :raises OSError: when the kubelet does not answer
    """
    answer = await _ask(kubelet, "GetAllocatableResources", _Allocatable)
    found: defaultdict[str, dict[str, Numa]] = defaultdict(dict)
    for entry in answer.devices:
        for identity in entry.device_ids:
            told = entry.topology
            numa = None if told is None else frozenset(node.id for node in told.nodes)
            found[entry.resource_name][identity] = numa
    return dict(found)


async def held(kubelet: Path) -> list[Held]:
    """Ask List: every container that holds Devices, and which.

    :raises OSError: when the kubelet does not answer
    """
    answer = await _ask(kubelet, "List", _Pods)
    found: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for entry in container.devices:
                found[pod.name, container.name, entry.resource_name].update(entry.device_ids)
    return [Held(*who, frozenset(ids)) for who, ids in sorted(found.items())]


async def _ask(kubelet: Path, method: str, kind: type[M]) -> M:
    channel = Channel(path=str(kubelet), codec=_Codec())
    try:
        path = f"{_SERVICE}/{method}"
        async with channel.request(path, Cardinality.UNARY_UNARY, _Nothing, kind, timeout=10) as stream:
            await stream.send_message(_Nothing(), end=True)
            answer = await stream.recv_message()
    except (GRPCError, StreamTerminatedError) as error:
        raise ConnectionError(f"{method}: {error!r}") from error
    finally:
        channel.close()
    assert answer is not None, f"{method} ended without an answer"
    return answer
