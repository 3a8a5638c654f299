"""The settings of containerd and the kubelet: those of a plain node, less all that needs a cluster."""

from pathlib import Path
from typing import Any

from . import kubelet_http
from .keeper import PRIVATE
from .manifests import IMAGE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


def containerd(scratch: Path) -> str:
    """Make containerd's configuration file."""
    return f"""\
version = 3
root = "{scratch}/{PRIVATE}/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def kubelet(scratch: Path, *, fail_on_cgroup_v1: bool | None) -> dict[str, Any]:
    """Make the kubelet's configuration.

    :param fail_on_cgroup_v1: None leaves it at what this release does by itself
    """
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "readOnlyPort": kubelet_http.PORT,
        "healthzPort": kubelet_http.HEALTH_PORT,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "registerNode": False,
        "staticPodPath": str(scratch / "manifests"),
        "fileCheckFrequency": "1s",
        "syncFrequency": "2s",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi"},
        "resolvConf": "",
    }
    if fail_on_cgroup_v1 is not None:
        settings["failCgroupV1"] = fail_on_cgroup_v1
    return settings
