"""Static pods: the manifests that a kubelet without an API server takes its orders from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

IMAGE = "localhost/probe:1"
UNPRIVILEGED = 1000
"""The user that every test container runs as, unless a test says otherwise."""

STAY = ("/probe", "open", "-stay")
"""Try every node in /dev/dri, say what happened, then stay until told to leave."""
ONCE = ("/probe", "open")


@dataclass(frozen=True, slots=True)
class ContainerOrder:
    """One container as a pod asks for it."""

    name: str
    command: Sequence[str] = STAY
    resources: Mapping[str, int] = field(default_factory=dict)
    host_paths: Mapping[str, str] = field(default_factory=dict)
    """Path in the container → path on the node."""
    read_only: tuple[str, ...] = ()
    """Which of the container's paths are mounted read-only."""
    env: Mapping[str, str] = field(default_factory=dict)
    security: Mapping[str, Any] = field(default_factory=dict)


def pod_manifest(
    name: str,
    containers: Sequence[ContainerOrder],
    *,
    init: Sequence[ContainerOrder] = (),
    restart: str = "Always",
    user: int = UNPRIVILEGED,
    groups: Sequence[int] = (),
) -> dict[str, Any]:
    """Build a v1.Pod. It uses the node's network, as the node has no network plugin."""
    paths = sorted({path for order in (*init, *containers) for path in order.host_paths.values()})
    volumes = {path: f"path-{number}" for number, path in enumerate(paths)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": user,
                "runAsGroup": user,
                "supplementalGroups": list(groups),
            },
            "initContainers": [_container(order, volumes) for order in init],
            "containers": [_container(order, volumes) for order in containers],
            "volumes": [{"name": volume, "hostPath": {"path": path}} for path, volume in volumes.items()],
        },
    }


def _container(order: ContainerOrder, volumes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": order.name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(order.command),
        "env": [{"name": name, "value": value} for name, value in order.env.items()],
        "resources": {"limits": {name: str(amount) for name, amount in order.resources.items()}},
        "securityContext": {"allowPrivilegeEscalation": False, **order.security},
        "volumeMounts": [
            {"name": volumes[source], "mountPath": target, "readOnly": target in order.read_only}
            for target, source in order.host_paths.items()
        ],
    }
