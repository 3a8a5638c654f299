"""6. What the kubelet tells others about our Devices equals what the machine has."""

import pytest

from gpuplug.testing import Machine

from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, XE, allocatable, capacity, held, start_gpuplug
from .harness.pod_resources import Held

pytestmark = pytest.mark.case("6 the pod-resources API agrees, NUMA nodes included")


async def test_the_kubelet_tells_every_device_and_its_numa_node(node: Node, machine: Machine) -> None:
    machine.add_gpu("0000:03:00.0", numa_node=0)
    machine.add_gpu("0000:04:00.0", numa_node=1)
    machine.add_gpu("0000:05:00.0", numa_node=None)
    machine.add_gpu("0000:06:00.0", driver="xe", numa_node=0)
    start_gpuplug(node, shares=2)

    on_zero, on_one = frozenset({0}), frozenset({1})
    assert await capacity(node, I915, 6) == {
        "0000:03:00.0": on_zero,
        "0000:03:00.0::1": on_zero,
        "0000:04:00.0": on_one,
        "0000:04:00.0::1": on_one,
        "0000:05:00.0": None,
        "0000:05:00.0::1": None,
    }
    assert await capacity(node, XE, 2) == {"0000:06:00.0": on_zero, "0000:06:00.0::1": on_zero}


async def test_the_kubelet_tells_who_holds_what(node: Node, machine: Machine) -> None:
    machine.add_gpu("0000:03:00.0", numa_node=0)
    machine.add_gpu("0000:06:00.0", driver="xe", numa_node=0)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    await capacity(node, XE, 1)
    node.order("mixed", ContainerOrder("one", resources={I915: 1}), ContainerOrder("two", resources={XE: 1}))
    await node.running_pod("mixed")

    assert await held(node) == [
        Held("mixed-node", "one", I915, frozenset({"0000:03:00.0"})),
        Held("mixed-node", "two", XE, frozenset({"0000:06:00.0"})),
    ]
    assert set(await allocatable(node, I915)) == {"0000:03:00.0"}, "a Device that is held stays allocatable"
