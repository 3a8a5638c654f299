"""The plugin in its container, with all that the manifest takes away, and what it needs there."""

import re
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from .harness.cluster import Cluster, ControlPlane
from .harness.plugin import (
    I915,
    NAMESPACE,
    SOCKETS,
    applied,
    as_list,
    cgroup,
    condition,
    plugin_pod,
    sockets,
    unplug_all,
)
from .harness.rendered import Rendered, rendered

GPU = "0000:03:00.0"
GPUS, SHARES = 128, 100
MEMORY_BUDGET, CPU_BUDGET = 115, 100
"""MiB, and thousandths of a core."""
ROOM = 0.85
"""The part of the memory limit that the peak may take."""
IDLE_SECONDS = 60
RUNTIMES = ("/proc", "/dev", "/sys", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""What every container gets from its runtime or its kubelet, for itself."""


@pytest.fixture(scope="session")
def base(plane: ControlPlane) -> Rendered:
    return rendered(plane.programs["kubectl"], "base")


def process(cluster: Cluster, pod: dict[str, Any]) -> int:
    identity = pod["status"]["containerStatuses"][0]["containerID"]
    (pid,) = (cgroup(cluster, "devices", identity) / "cgroup.procs").read_text().split()
    return int(pid)


async def test_it_serves_follows_and_ends_with_everything_taken_away(
    cluster: Cluster, base: Rendered, measured: list[str]
) -> None:
    cluster.machine.add_gpu(GPU)
    async with applied(cluster, base):
        pod = await plugin_pod(cluster)
        await cluster.allocatable(I915, 1)
        pid = process(cluster, pod)
        status = dict(re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        options = {fields[4]: fields[5].split(",") for fields in mounts}
        assert "ro" in options["/"]
        writable = {
            path for path, words in options.items() if "rw" in words and not path.startswith(RUNTIMES)
        }
        assert writable == {SOCKETS}
        assert [
            path for path in options if path.startswith("/host/sys/fs/cgroup")
        ]  # and read-only, as just seen
        interfaces = re.findall(r"^\s*(\S+):", Path(f"/proc/{pid}/net/dev").read_text(), re.MULTILINE)
        assert sorted(interfaces) == ["eth0", "lo"]  # of its own, not the node's
        opened = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        assert not {path for path in opened if "/dri/" in path}

        began = time.monotonic()
        cluster.machine.add_gpu("0000:04:00.0")
        await cluster.allocatable(I915, 2)
        measured.append(f"hotplug → the node's status (told every second): {time.monotonic() - began:.1f} s")
        cluster.machine.remove_gpu(GPU)
        await cluster.allocatable(I915, 1)

        cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod["metadata"]["name"])
        again = await plugin_pod(cluster)
        assert again["metadata"]["uid"] != pod["metadata"]["uid"]
        assert len(sockets(cluster)) == 1  # the first one took its socket along
        await cluster.allocatable(I915, 1)


@pytest.mark.parametrize(
    ("mount", "line"),
    [
        ("sys", "gpuplug: GPUPLUG_PREFIX: '/host/sys' is not there"),
        ("dev", "gpuplug: GPUPLUG_PREFIX: '/host/dev' is not there"),
        ("device-plugins", f"gpuplug: GPUPLUG_KUBELET_DIR: '{SOCKETS}' is not there"),
    ],
)
async def test_a_missing_mount_is_one_line_and_an_exit(
    cluster: Cluster, base: Rendered, namespace: None, mount: str, line: str
) -> None:
    del namespace
    name = f"without-{mount}"
    cluster.kubectl("apply", "-f", "-", given=as_list(base.as_pod(name, without=mount)))
    pod = await cluster.until(
        f"{name} to end",
        lambda: cluster.get("pod", "-n", NAMESPACE, name),
        lambda found: found["status"]["phase"] in {"Failed", "Succeeded"},
    )
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"].strip()) == (2, line)
    assert cluster.kubectl("logs", "-n", NAMESPACE, name).strip() == line


async def test_a_kubelet_that_is_not_there_is_waited_for_and_that_is_not_ready(
    cluster: Cluster, base: Rendered, namespace: None
) -> None:
    del namespace
    cluster.machine.add_gpu(GPU)
    pod = base.as_pod("early", host_paths={"device-plugins": "/var/lib/not-a-kubelet/device-plugins"})
    cluster.kubectl("apply", "-f", "-", given=as_list(pod))
    await cluster.until(
        "it to say what it waits for",
        lambda: cluster.kubectl("logs", "-n", NAMESPACE, "early"),
        lambda log: "kubelet.sock" in log,
    )
    found = await cluster.until(
        "the startup probe to have passed",
        lambda: cluster.get("pod", "-n", NAMESPACE, "early"),
        lambda found: found["status"]["containerStatuses"][0].get("started") is True,
    )
    assert found["status"]["phase"] == "Running"
    assert condition(found, "Ready") == "False"
    unplug_all(cluster)


@pytest.fixture
async def namespace(cluster: Cluster, base: Rendered) -> Any:
    """Have the namespace of the manifests, without the DaemonSet."""
    made = as_list(*(each for each in base.documents if each["kind"] == "Namespace"))
    cluster.kubectl("apply", "-f", "-", given=made)
    await cluster.run("wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE, "--timeout=30s")
    yield
    await cluster.run("delete", "-f", "-", given=made)


async def test_peak_memory_and_idle_cpu_fit_what_the_manifest_asks_for(
    cluster: Cluster, base: Rendered, measured: list[str]
) -> None:
    """The largest node, a restart of its kubelet, and a minute in which nothing happens but the probes."""
    cluster.machine.add_gpus(GPUS, numa_nodes=2)
    async with applied(cluster, base.changed(env={"GPUPLUG_SHARED_DEV_NUM": str(SHARES)})):
        pod = await plugin_pod(cluster)
        await cluster.allocatable(I915, GPUS * SHARES)
        await cluster.node.program("kubelet").stop()
        await cluster.start_kubelet()
        await plugin_pod(cluster)
        await cluster.allocatable(I915, GPUS * SHARES)

        identity = pod["status"]["containerStatuses"][0]["containerID"]
        began, used = time.monotonic(), cpu_seconds(cluster, identity)
        await anyio.sleep(IDLE_SECONDS)
        cpu = (cpu_seconds(cluster, identity) - used) / (time.monotonic() - began) * 1000
        peak = peak_memory(cluster, identity)
        status = Path(f"/proc/{process(cluster, pod)}/status").read_text()
        resident = int(re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)[0]) / 1024

        resources = base.container["resources"]
        limit = int(resources["limits"]["memory"].removesuffix("Mi"))
        requests = resources["requests"]
        measured.append(
            f"memory, {GPUS * SHARES} devices, kubelet restart: peak {peak:.0f} MiB, process {resident:.0f}"
            f" (request {requests['memory']}, limit {limit}Mi, budget {MEMORY_BUDGET}Mi)"
        )
        measured.append(f"CPU, an idle minute: {cpu:.1f}m (request {requests['cpu']}, budget {CPU_BUDGET}m)")
        assert max(peak, resident) <= limit * ROOM
        assert cpu <= int(requests["cpu"].removesuffix("m"))
        again = await plugin_pod(cluster)
        assert again["status"]["containerStatuses"][0]["restartCount"] == 0


def cpu_seconds(cluster: Cluster, container: str) -> float:
    """Return the processor time that a container has used."""
    folder = cgroup(cluster, "cpuacct", container)
    if not cluster.node.cgroups.unified:
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    return (
        int(dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())["usage_usec"]) / 1e6
    )


def peak_memory(cluster: Cluster, container: str) -> float:
    """Return the most that was ever counted against a container's limit, in MiB, page cache included."""
    name = "memory.peak" if cluster.node.cgroups.unified else "memory.max_usage_in_bytes"
    return int((cgroup(cluster, "memory", container) / name).read_text()) / 2**20
