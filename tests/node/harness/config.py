"""The settings of containerd and the kubelet: those of a plain node, less all that needs a cluster."""

from pathlib import Path
from typing import Any

from . import kubelet_http
from .keeper import PRIVATE
from .manifests import IMAGE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


def containerd(scratch: Path, *, plugins: Path | None = None) -> str:
    """Make containerd's configuration file.

    :param plugins: where the programs of the network plugins (CNI) are; their configuration is in
        ``SCRATCH/cni``. Without them pods have the node's own network.
    """
    network = "" if plugins is None else _NETWORK.format(plugins=plugins, scratch=scratch)
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
{network}"""


_NETWORK = """
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{scratch}/cni"
"""


def kubelet(scratch: Path, *, fail_on_cgroup_v1: bool | None, registered: bool = False) -> dict[str, Any]:
    """Make the kubelet's configuration.

    :param fail_on_cgroup_v1: None leaves it at what this release does by itself
    :param registered: take pods from an API server, and tell it of the node every second
    """
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "readOnlyPort": kubelet_http.PORT,
        "healthzPort": kubelet_http.HEALTH_PORT,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "registerNode": registered,
        "syncFrequency": "2s",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi"},
        "resolvConf": "",
    }
    if registered:
        settings |= {"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s"}
        settings["address"] = "0.0.0.0"  # of the node's own network, for the API server
    else:
        settings |= {"staticPodPath": str(scratch / "manifests"), "fileCheckFrequency": "1s"}
    if fail_on_cgroup_v1 is not None:
        settings["failCgroupV1"] = fail_on_cgroup_v1
    return settings
