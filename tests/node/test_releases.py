"""What Kubernetes releases do differently towards a plugin. README.md has a line for each test."""

from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from gpuplug.testing import Machine
from gpuplug.testing.small_plugin import register, serving

from .harness.manifests import ContainerOrder
from .harness.node import Binaries, Node, bare
from .harness.plugins import (
    I915,
    PLUGIN_DIR,
    WIDGET,
    allocatable,
    capacity,
    start_gpuplug,
    start_small_plugin,
)
from .harness.releases import Release
from .harness.waiting import eventually

pytestmark = pytest.mark.case("what releases do differently")

IDS = ("widget-0", "widget-1")


@pytest.fixture
async def plugin_dir(node: Node) -> Path:
    """Give the folder of sockets once the kubelet listens in it, a moment after it calls itself healthy."""
    folder = node.inside(PLUGIN_DIR)

    async def look() -> bool:
        return (folder / "kubelet.sock").exists()

    await eventually("kubelet.sock to be there", look, bool)
    return folder


async def test_register_is_answered_only_after_the_kubelet_has_called_back(plugin_dir: Path) -> None:
    with pytest.raises(GRPCError, match="failed to dial device plugin"):
        await register(plugin_dir / "kubelet.sock", "nobody-listens.sock", WIDGET)


async def test_a_second_registration_of_the_same_socket(
    node: Node, plugin_dir: Path, release: Release
) -> None:
    """Since 1.37 it is refused while the first connection lives."""
    async with serving(plugin_dir / "a.sock", IDS):
        await register(plugin_dir / "kubelet.sock", "a.sock", WIDGET)
        await capacity(node, WIDGET, 2)
        if release.minor >= 37:
            with pytest.raises(GRPCError, match="device plugin already connected"):
                await register(plugin_dir / "kubelet.sock", "a.sock", WIDGET)
        else:
            await register(plugin_dir / "kubelet.sock", "a.sock", WIDGET)
            assert len(await capacity(node, WIDGET, 2)) == len(IDS)


async def test_the_older_of_two_servers_of_a_resource_leaves(node: Node, release: Release) -> None:
    """Up to 1.36 it takes the newer one's connection along; since 1.37 the newer one stays."""
    older = start_small_plugin(node, name="older")
    await capacity(node, WIDGET, 2)
    await start_small_plugin(node, name="newer").wrote("registered")
    await older.stop()
    kubelet = node.program("kubelet")
    if release.minor >= 37:
        await kubelet.wrote("Deregistered client")
        assert set(await allocatable(node, WIDGET)) == set(IDS)
        assert "Last device plugin for this resource disconnected" not in kubelet.log.read_text()
    else:
        await capacity(node, WIDGET, 0)


async def test_a_pod_is_told_of_the_health_of_its_gpu(node: Node, machine: Machine, release: Release) -> None:
    """Since 1.36, in the pod's status."""
    machine.add_gpu("0000:03:00.0")
    start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("holder", ContainerOrder("main", resources={I915: 1}))
    pod = await node.running_pod("holder")
    if release.minor >= 36:
        await node.pod_health("holder", "main", {"0000:03:00.0": "Healthy"})

    machine.devfs.remove("renderD128")
    await capacity(node, I915, 0)
    if release.minor >= 36:
        await node.pod_health("holder", "main", {"0000:03:00.0": "Unhealthy"})
    else:
        assert not pod.containers["main"].health


async def test_a_kubelet_restarts_while_no_plugin_is_there(node: Node, machine: Machine) -> None:
    machine.add_gpu("0000:03:00.0")
    plugin = start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("holder", ContainerOrder("main", resources={I915: 1}))
    before = await node.running_pod("holder")
    await plugin.stop()
    await node.program("kubelet").stop()

    await node.kubelet_healthy(await node.start_kubelet())
    assert await node.running_pod("holder") == before
    start_gpuplug(node)
    await capacity(node, I915, 1)
    assert await node.running_pod("holder") == before


async def test_a_kubelet_on_cgroup_v1_that_is_not_told_to_accept_it(
    release: Release, binaries: Binaries
) -> None:
    """Since 1.35 it does not start, so a node that was upgraded has no plugin at all."""
    async with bare(release, binaries) as node:
        await node.start_containerd()
        await node.import_image()
        kubelet = await node.start_kubelet(fail_on_cgroup_v1=None)
        if release.minor >= 35 and not node.cgroups.unified:
            assert await kubelet.ended() == 1
            assert "cgroup v1" in kubelet.tail()
        else:
            await node.kubelet_healthy(kubelet)
