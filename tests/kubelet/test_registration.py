"""From the start of gpuplug to a node with GPUs, and in good order to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kubelet.devicemanager import pod
from tests.kubelet.node import I915, XE

if TYPE_CHECKING:
    from tests.kubelet.node import Node

QUICK = 5.0
"""Seconds. What is promised is 2, and benchmarks measure that; here the machine may be busy, and all
that a plugin could wait for when it is told to end (Register, a dial, a retry) takes longer than this."""


async def test_gpus_of_a_machine_become_the_capacity_of_its_node(node: Node) -> None:
    node.machine.add_gpus(2, driver="i915")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    report = await node.kubelet.capacity()
    assert report.capacity == {I915: 2}
    assert report.allocatable == {I915: 2}
    assert report.removed == ()


async def test_gpus_are_listed_by_bus_address_with_the_numa_node_that_they_are_on(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0", numa_node=0)
    node.machine.add_gpu("0000:83:00.0", numa_node=1)
    node.machine.add_gpu("0000:00:02.0", numa_node=None)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 3)
    assert await node.kubelet.devices(I915) == {
        "0000:03:00.0": (0,),
        "0000:83:00.0": (1,),
        "0000:00:02.0": None,  # -1 in sysfs: no topology, which is not "on no node"
    }


async def test_each_kernel_driver_is_a_resource_of_its_own(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0", driver="i915")
    node.machine.add_gpu("0000:04:00.0", driver="xe")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    await node.kubelet.until_allocatable(XE, 1)
    assert list(await node.kubelet.devices(XE)) == ["0000:04:00.0"]


async def test_a_plugin_that_is_told_to_end_leaves_no_socket_and_exits_with_0_quickly(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0", driver="i915")
    node.machine.add_gpu("0000:04:00.0", driver="xe")
    serving = await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    await node.kubelet.until_allocatable(XE, 1)
    assert len(node.sandbox.sockets()) == 2
    ended = await serving.process.terminate(within=10)
    assert ended.code == 0
    assert ended.seconds < QUICK
    assert node.sandbox.sockets() == set()
    await node.kubelet.until_allocatable(I915, 0)


async def test_a_plugin_that_waits_for_a_kubelet_can_be_told_to_end(node: Node) -> None:
    await node.kubelet.stop()
    node.machine.add_gpu()
    serving = await node.serve()
    await node.until("a word about the kubelet that is not there", lambda: "kubelet.sock" in serving.text())
    ended = await serving.process.terminate(within=10)
    assert ended.code == 0
    assert ended.seconds < QUICK
    assert node.sandbox.sockets() == set()


async def test_a_plugin_whose_registration_is_not_answered_can_be_told_to_end(node: Node) -> None:
    node.machine.add_gpu()
    await node.kubelet.hold("register")
    serving = await node.serve()
    await node.kubelet.held()
    ended = await serving.process.terminate(within=10)
    assert ended.code == 0
    assert ended.seconds < QUICK
    assert node.sandbox.sockets() == set()


async def test_two_plugins_on_one_node_keep_out_of_each_others_way(node: Node) -> None:
    node.machine.add_gpus(2, driver="i915")
    other = node.another_machine()
    other.add_gpus(3, driver="xe")
    second = await node.serve(other)
    await node.kubelet.until_allocatable(XE, 3)
    of_second = node.sandbox.sockets()
    first = await node.serve()
    await node.kubelet.until_allocatable(I915, 2)

    await first.process.kill()
    await node.kubelet.until_allocatable(I915, 0)
    again = await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    assert of_second < node.sandbox.sockets()  # it has cleaned up, but only its own
    assert (await node.kubelet.capacity()).allocatable[XE] == 3

    await again.process.terminate(within=10)
    await node.kubelet.until_allocatable(I915, 0)
    assert of_second == node.sandbox.sockets()
    assert (await node.kubelet.capacity()).allocatable[XE] == 3
    assert (await node.kubelet.admit_one(pod("renders", XE))).nodes
    await node.kubelet.restart("stop")
    await node.kubelet.until_allocatable(XE, 3)
    assert second.process.alive


async def test_a_new_plugin_takes_over_from_the_old_one_of_the_same_resource(node: Node) -> None:
    # A rollout with surge. When the old one's stream ends, the kubelet drops whoever bears the
    # resource's name by then, which is the new one: it has to notice, and register again.
    node.machine.add_gpus(2)
    old = await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    await node.kubelet.hold("listed")
    new = await node.serve()
    await node.kubelet.held()
    await node.kubelet.release()
    await old.process.terminate(within=10)
    await node.kubelet.until_allocatable(I915, 2)
    assert (await node.kubelet.admit_one(pod("after", I915))).ids
    assert new.process.alive
