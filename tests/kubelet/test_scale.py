"""128 GPUs with 100 shares each: 12,800 devices, the most that a node is likely to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kubelet.devicemanager import pod
from tests.kubelet.node import I915, XE

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


async def test_a_kubelet_that_does_not_read_one_list_holds_up_no_other_and_gets_the_newest(
    node: Node,
) -> None:
    # A list of this size does not fit between two processes, so its sender has to wait.
    made = node.machine.add_gpus(GPUS)
    await node.kubelet.hold("list")
    await node.serve(shares=SHARES)
    await node.kubelet.held()
    for gpu in made[:5]:
        node.machine.remove_gpu(gpu.address)
    node.machine.add_gpu("0000:f0:00.0", driver="xe")
    await node.kubelet.until_allocatable(XE, SHARES)
    for gpu in made[5:8]:
        node.machine.remove_gpu(gpu.address)
    await node.kubelet.release()
    await node.kubelet.until_allocatable(I915, (GPUS - 8) * SHARES)
