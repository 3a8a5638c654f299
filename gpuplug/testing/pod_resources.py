"""A made-up pod-resources API on a real unix socket, for tests of what asks one.

::

    async with FakePodResources(path) as kubelet:
        kubelet.offer("gpu.intel.com/i915", "0000:03:00.0", "0000:03:00.0::1", numa_nodes=[0])
        kubelet.give("default", "web", "main", "gpu.intel.com/i915", "0000:03:00.0")
        ...  # ask it
        await kubelet.stop()

It answers as pkg/kubelet/apis/podresources of Kubernetes 1.36 does: one entry per Device and NUMA
node, pods without a Device too. What it answers is only what a test told it: no admission.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpuplug.kubelet.podresources import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    NumaNode,
    PodResources,
    PodResourcesListerBase,
    TopologyInfo,
)
from gpuplug.testing.transport import KubeletServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Self


@dataclass(slots=True)
class PodResourcesFaults:
    """What goes wrong, from now on."""

    missing: set[str] = field(default_factory=set)
    """Methods that are not there, as in old kubelets: ``List``, ``GetAllocatableResources``."""
    refuse: dict[str, tuple[Status, str]] = field(default_factory=dict)
    """Methods that answer with an error, and with which."""


class FakePodResources(PodResourcesListerBase):
    """The pod-resources server of a kubelet. An async context manager."""

    def __init__(self, path: Path) -> None:
        """Describe a server on a socket at ``path`` (107 bytes at most); entering it starts it."""
        self.path: Final = path
        self.faults: Final = PodResourcesFaults()
        self.asked = 0
        """How many calls there were."""
        self._offered: dict[tuple[str, str], tuple[int, ...]] = {}
        self._given: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
        self._server: KubeletServer | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen on the socket; raises ``OSError`` where that is not possible."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            self.path.unlink(missing_ok=True)
            listener.bind(str(self.path))
            server = KubeletServer([self])
            await server.start(sock=listener)
        except BaseException:
            listener.close()
            raise
        self._server = server

    async def stop(self, *, remove_socket: bool = True) -> None:
        """End, as a kubelet does in order; one that is killed leaves its socket behind."""
        server, self._server = self._server, None
        if server is not None:
            await server.end()
        if remove_socket:
            self.path.unlink(missing_ok=True)

    # what the kubelet knows

    def offer(self, resource: str, *ids: str, numa_nodes: Sequence[int] = ()) -> None:
        """Let these be healthy Devices of a resource."""
        for id_ in ids:
            self._offered[resource, id_] = tuple(numa_nodes)

    def withdraw(self, resource: str, *ids: str) -> None:
        """Let these be healthy Devices no more, or all of a resource; a pod may still hold them."""
        for key in [key for key in self._offered if key[0] == resource and (not ids or key[1] in ids)]:
            del self._offered[key]

    def give(self, namespace: str, pod: str, container: str, resource: str, *ids: str) -> None:
        """Let a container hold Devices; with no id it is a container that asked for none."""
        self._given.setdefault((namespace, pod, container), set()).update((resource, id_) for id_ in ids)

    def end_pod(self, namespace: str, pod: str) -> None:
        """Let a pod be gone, with all that it held."""
        for key in [key for key in self._given if key[:2] == (namespace, pod)]:
            del self._given[key]

    # the API

    async def list(self, message: ListPodResourcesRequest) -> ListPodResourcesResponse:
        """Answer with all pods, and what their containers hold."""
        del message
        self._meet("List")
        pods: dict[tuple[str, str], PodResources] = {}
        for (namespace, pod, container), given in self._given.items():
            known = pods.setdefault((namespace, pod), PodResources(pod, namespace))
            devices = [entry for key in sorted(given) for entry in self._entries(*key)]
            known.containers.append(ContainerResources(container, devices))
        return ListPodResourcesResponse(list(pods.values()))

    async def get_allocatable_resources(
        self, message: AllocatableResourcesRequest
    ) -> AllocatableResourcesResponse:
        """Answer with all healthy Devices."""
        del message
        self._meet("GetAllocatableResources")
        return AllocatableResourcesResponse([entry for key in self._offered for entry in self._entries(*key)])

    def _entries(self, resource: str, id_: str) -> Iterator[ContainerDevices]:
        for node in self._offered.get((resource, id_)) or (None,):
            topology = None if node is None else TopologyInfo([NumaNode(node)])
            yield ContainerDevices(resource, [id_], topology)

    def _meet(self, method: str) -> None:
        self.asked += 1
        if method in self.faults.missing:
            raise GRPCError(
                Status.UNIMPLEMENTED, f"unknown method {method} for service v1.PodResourcesLister"
            )
        if method in self.faults.refuse:
            raise GRPCError(*self.faults.refuse[method])
