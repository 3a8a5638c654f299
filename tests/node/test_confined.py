"""8. The plugin in a container of that node, with nothing it does not need.

The image and the DaemonSet run in tests/container. Here, so that each release is shown, it is a static pod
whose root file system is the test image and into which the host's Python and this repository are mounted
read-only. What confines it is real: the kubelet, containerd and runc take away the capabilities and the
writable root.
"""

import re
import sys
from pathlib import Path

import pytest

from gpuplug.testing import Machine

from .harness.manifests import ContainerOrder
from .harness.node import REPOSITORY, Node
from .harness.plugins import I915, PLUGIN_DIR, capacity, gpuplug_command

pytestmark = pytest.mark.case("8 the plugin in a container: read-only, no capability, no network")

GPU = ContainerOrder("main", resources={I915: 1})
CONFINED = {
    "readOnlyRootFilesystem": True,
    "privileged": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
RUNTIMES = ("/proc", "/dev", "/sys/fs/cgroup")
"""What every container gets from its runtime, in memory and for itself."""


def plugin_container(node: Node) -> ContainerOrder:
    """Order gpuplug as a container: the host's Python read-only, and one folder that it may write to."""
    python = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, str(REPOSITORY)}
    read_only = [path for path in sorted(python) if Path(path).exists()] + [str(node.machine_root)]
    return ContainerOrder(
        "main",
        gpuplug_command(node.machine_root),
        host_paths={path: path for path in (*read_only, PLUGIN_DIR)},
        read_only=tuple(read_only),
        security=CONFINED,
    )


async def start_confined(node: Node) -> int:
    """Start the plugin's pod and return the plugin's process id."""
    node.order("plugin", plugin_container(node), user=0)
    pod = await node.running_pod("plugin")
    (pid,) = (node.cgroup_of(pod.containers["main"]) / "cgroup.procs").read_text().split()
    return int(pid)


async def test_the_plugin_serves_without_any_privilege(node: Node, machine: Machine) -> None:
    machine.add_gpu("0000:03:00.0")
    pid = await start_confined(node)
    await capacity(node, I915, 1)
    node.order("consumer", GPU)
    await node.running_pod("consumer")

    status = dict(re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"

    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    options = {fields[4]: fields[5].split(",") for fields in mounts}
    assert "ro" in options["/"]
    assert {path for path, words in options.items() if "rw" in words and not path.startswith(RUNTIMES)} == {
        PLUGIN_DIR,
        "/etc/hosts",  # the kubelet's own copy, made for this pod
    }

    interfaces = re.findall(r"^\s*(\S+):", Path(f"/proc/{pid}/net/dev").read_text(), re.MULTILINE)
    assert interfaces == ["lo"]
    opened = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert not {path for path in opened if "/dri/" in path}


async def test_the_confined_plugin_sees_a_gpu_come_and_a_kubelet_restart(
    node: Node, machine: Machine
) -> None:
    await start_confined(node)
    machine.add_gpu("0000:03:00.0")
    await capacity(node, I915, 1)

    await node.program("kubelet").stop()
    await node.kubelet_healthy(await node.start_kubelet())
    await capacity(node, I915, 1)
    machine.remove_gpu("0000:03:00.0")
    await capacity(node, I915, 0)
