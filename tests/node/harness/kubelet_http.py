"""What the kubelet says of its pods, read from its read-only port inside the node's own network."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from .namespaces import network_of

PORT = 10255
HEALTH_PORT = 10248


@dataclass(frozen=True, slots=True)
class Container:
    """One container (or init container) as the kubelet reports it."""

    name: str
    state: str
    """running, waiting or terminated"""
    reason: str
    message: str
    id: str
    restarts: int
    exit_code: int | None
    health: Mapping[str, str]
    """What is said of the Devices that it holds, by their ids; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as the kubelet reports it."""

    name: str
    uid: str
    phase: str
    reason: str
    message: str
    containers: Mapping[str, Container]

    @property
    def refused(self) -> bool:
        """Whether the kubelet did not admit it: it failed before any container of its own was made."""
        return self.phase == "Failed" and not any(container.id for container in self.containers.values())

    @property
    def settled(self) -> bool:
        """Whether every container runs, or has ended well."""
        return bool(self.containers) and all(
            container.state == "running" or container.exit_code == 0 for container in self.containers.values()
        )


async def healthy(node: int) -> bool:
    """Whether the kubelet answers its health check."""
    return await to_thread.run_sync(_get, node, HEALTH_PORT, "/healthz") == b"ok"


async def pods(node: int) -> dict[str, Pod]:
    """Ask the kubelet for its pods and their states, by the name in their manifests."""
    answer = json.loads(await to_thread.run_sync(_get, node, PORT, "/pods"))
    found = [_pod(item) for item in answer.get("items") or ()]
    return {pod.name: pod for pod in found}


async def metrics(node: int) -> str:
    """Ask the kubelet for its metrics, in Prometheus' text form."""
    return (await to_thread.run_sync(_get, node, PORT, "/metrics")).decode()


def _get(node: int, port: int, path: str) -> bytes:
    with network_of(node):
        connected = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = connected
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        with connection.getresponse() as response:
            return response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"{path}: {error!r}") from error
    finally:
        connection.close()


def _pod(item: Mapping[str, Any]) -> Pod:
    """Read a v1.Pod. The kubelet of a static pod appends its node's name to the pod's; that is cut off."""
    meta, status = item["metadata"], item["status"]
    reported = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return Pod(
        name=meta["name"].removesuffix(f"-{item['spec']['nodeName']}"),
        uid=meta["uid"],
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        containers={each["name"]: _container(each) for each in reported},
    )


def _container(each: Mapping[str, Any]) -> Container:
    state = each.get("state") or {}
    name = next(iter(state), "waiting")
    detail = state.get(name) or {}
    return Container(
        name=each["name"],
        state=name,
        reason=detail.get("reason", ""),
        message=detail.get("message", ""),
        id=each.get("containerID", ""),
        restarts=each.get("restartCount", 0),
        exit_code=detail.get("exitCode"),
        health={
            device["resourceID"]: device["health"]
            for status in each.get("allocatedResourcesStatus") or ()
            for device in status.get("resources") or ()
        },
    )
