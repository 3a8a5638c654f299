"""128 GPUs with 100 shares each: 12,800 devices, the most that a node is likely to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kubelet.devicemanager import pod
from tests.kubelet.node import I915

if TYPE_CHECKING:
    from tests.kubelet.node import Node

GPUS = 128
SHARES = 100


async def test_a_node_with_12800_devices_allocates_follows_and_restarts(node: Node) -> None:
    made = node.machine.add_gpus(GPUS, numa_nodes=2)
    await node.serve(shares=SHARES)
    await node.kubelet.until_allocatable(I915, GPUS * SHARES)
    devices = await node.kubelet.devices(I915)
    assert len(devices) == GPUS * SHARES
    assert devices[made[0].address] == (0,)
    assert devices[f"{made[1].address}::{SHARES - 1}"] == (1,)

    one = await node.kubelet.admit_one(pod("one", I915))
    assert len(one.nodes) == 2
    many = await node.kubelet.admit_one(pod("many", I915, 64))
    assert len(many.nodes) == 128  # 64 distinct GPUs, a card and a render node of each

    node.machine.remove_gpu(made[-1].address)
    await node.kubelet.until_allocatable(I915, (GPUS - 1) * SHARES)
    await node.kubelet.restart("stop")
    await node.kubelet.until_allocatable(I915, (GPUS - 1) * SHARES)
    assert (await node.kubelet.admit_in_time(pod("later", I915))).nodes
