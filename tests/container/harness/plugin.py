"""What tests do with the DaemonSet on a cluster: apply it, watch it, look into its container."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .rendered import Rendered

I915 = "gpu.intel.com/i915"
NAMESPACE = "gpuplug"
LABEL = "app.kubernetes.io/name=gpuplug"
SOCKETS = "/var/lib/kubelet/device-plugins"


@asynccontextmanager
async def applied(cluster: Cluster, manifests: Rendered) -> AsyncIterator[None]:
    """Have manifests in the cluster, rolled out and ready, and remove them and all GPUs in the end."""
    cluster.kubectl("apply", "-f", "-", given=manifests.text())
    try:
        await cluster.rolled_out()
        yield
    except AssertionError as error:
        error.add_note(cluster.kubectl("describe", "pods", "-n", NAMESPACE, check=False)[-3000:])
        error.add_note(cluster.kubectl("logs", "-n", NAMESPACE, "-l", LABEL, check=False))
        raise
    finally:
        await cluster.run("delete", "--ignore-not-found", "-f", "-", given=manifests.text())
        unplug_all(cluster)


def unplug_all(cluster: Cluster) -> None:
    """Take every GPU out of the machine."""
    for link in sorted((cluster.machine.sys / "bus/pci/devices").glob("*")):
        cluster.machine.remove_gpu(link.name)


async def plugin_pod(cluster: Cluster) -> dict[str, Any]:
    """Wait until there is one pod of the DaemonSet, ready, and return it."""

    def ready(pods: list[dict[str, Any]]) -> bool:
        return len(pods) == 1 and condition(pods[0], "Ready") == "True" and not gone(pods[0])

    (pod,) = await cluster.until("one plugin, ready", lambda: cluster.pods(LABEL, NAMESPACE), ready)
    return dict(pod)


def gone(pod: dict[str, Any]) -> bool:
    """Whether somebody has asked for its end."""
    return "deletionTimestamp" in pod["metadata"]


def condition(pod: dict[str, Any], name: str, field: str = "status") -> str:
    """Return what a pod's status says of one condition; empty if nothing."""
    for each in pod["status"].get("conditions", ()):
        if each["type"] == name:
            return str(each.get(field, ""))
    return ""


def containers(pod: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return each container's id and how often it was restarted: the same again means not disturbed."""
    return {
        each["name"]: (each["containerID"], each["restartCount"])
        for each in pod["status"]["containerStatuses"]
    }


def cgroup(cluster: Cluster, controller: str, container: str) -> Path:
    """Return the cgroup of a container, in the hierarchy of one controller where each has its own."""
    node = cluster.node
    root = node.inside("/sys/fs/cgroup" if node.cgroups.unified else f"/sys/fs/cgroup/{controller}")
    (folder,) = root.rglob(container.removeprefix("containerd://"))
    return folder


def sockets(cluster: Cluster) -> list[str]:
    """Return the names of gpuplug's sockets in the kubelet's folder."""
    return sorted(
        path.name for path in cluster.node.inside(SOCKETS).iterdir() if path.name.startswith("gpuplug")
    )


def as_list(*documents: Any) -> str:
    """Write objects as kubectl takes them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
