"""Ask the kubelet's pod-resources API which Devices there are, and who holds them."""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from grpclib.exceptions import GRPCError

from gpuplug.core.belief import Belief, Holder
from gpuplug.errors import KubeletError
from gpuplug.kubelet.calls import call
from gpuplug.kubelet.podresources import (
    AllocatableResourcesRequest,
    ListPodResourcesRequest,
    PodResourcesListerStub,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grpclib.client import Channel

    from gpuplug.kubelet.podresources import (
        AllocatableResourcesResponse,
        ContainerDevices,
        ListPodResourcesResponse,
    )

DEADLINE: Final = 5.0
"""Seconds for all of it: the kubelet answers from memory."""
_UNKNOWN_METHOD: Final = "UNIMPLEMENTED"
_SWITCHED_OFF: Final = "disabled"
"""In the words of the kubelets that have the feature gate of GetAllocatableResources turned off."""

_ADVICE: Final[Mapping[int, str]] = {
    errno.ENOENT: "start the kubelet; if its --root-dir is another one, or this is a container,"
    " say with --pod-resources-socket where its pod-resources/kubelet.sock is",
    errno.ECONNREFUSED: "nobody listens there: start the kubelet, and look at its log if it ends again",
    errno.EACCES: "run this as root; on SELinux hosts the pod needs the type container_device_plugin_t",
    errno.EPERM: "run this as root; on SELinux hosts the pod needs the type container_device_plugin_t",
}


async def ask(socket_path: str, *, within: float = DEADLINE) -> Belief:
    """Ask the kubelet all that it knows of Devices.

    :raises KubeletError: in one line, with what to do, if it does not answer.
    """
    try:
        return await call(socket_path, _ask, within=within)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "say with --pod-resources-socket which socket to use")
        raise KubeletError(f"{socket_path}: {error.strerror or error}: {advice}") from error
    except KubeletError as error:
        advice = "look at the kubelet's log"
        if error.status == _UNKNOWN_METHOD:
            advice = (
                "the kubelet has no pod-resources API v1, which came with Kubernetes 1.20;"
                " or --pod-resources-socket names another program's socket"
            )
        raise KubeletError(f"{socket_path}: {error}: {advice}", error.status) from error


async def _ask(channel: Channel) -> Belief:
    kubelet = PodResourcesListerStub(channel)
    # Who holds what comes last: a Device that was given out between the two is one that there was.
    allocatable = await _allocatable(kubelet)
    return Belief(allocatable, read_holders(await kubelet.list(ListPodResourcesRequest())))


async def _allocatable(kubelet: PodResourcesListerStub) -> Mapping[str, Mapping[str, frozenset[int]]] | None:
    """Ask what can be given out; ``None`` where the kubelet is too old to tell."""
    try:
        return read_allocatable(await kubelet.get_allocatable_resources(AllocatableResourcesRequest()))
    except GRPCError as error:
        if error.status.name == _UNKNOWN_METHOD or _SWITCHED_OFF in (error.message or ""):
            return None
        raise


def read_allocatable(answer: AllocatableResourcesResponse) -> Mapping[str, Mapping[str, frozenset[int]]]:
    """Put the answer together: a Device may come several times, once per NUMA node."""
    found: defaultdict[str, dict[str, frozenset[int]]] = defaultdict(dict)
    for entry in answer.devices:
        nodes = frozenset(node.id for node in entry.topology.nodes) if entry.topology else frozenset()
        devices = found[entry.resource_name]
        for id_ in entry.device_ids:
            devices[id_] = devices.get(id_, frozenset()) | nodes
    return dict(found)


def read_holders(answer: ListPodResourcesResponse) -> tuple[Holder, ...]:
    """Put the answer together: one Holder per container and resource, none without a Device."""
    found = [
        Holder(pod.namespace, pod.name, container.name, resource, tuple(sorted(ids)))
        for pod in answer.pod_resources
        for container in pod.containers
        for resource, ids in _by_resource(container.devices).items()
        if ids
    ]
    return tuple(sorted(found))


def _by_resource(entries: Iterable[ContainerDevices]) -> Mapping[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        found[entry.resource_name].update(entry.device_ids)
    return found
