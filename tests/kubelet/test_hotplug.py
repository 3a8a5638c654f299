"""GPUs come and go while gpuplug runs; the next look without a reason is far away (serving.RESYNC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubelet.devicemanager import RefusedError, pod
from tests.kubelet.node import I915, XE

if TYPE_CHECKING:
    from tests.kubelet.node import Node


async def test_a_gpu_that_is_plugged_in_can_be_given_to_a_pod(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    node.machine.add_gpu("0000:04:00.0")
    await node.kubelet.until_allocatable(I915, 2)
    container = await node.kubelet.admit_one(pod("both", I915, 2))
    assert len(container.nodes) == 4


async def test_a_gpu_that_is_unplugged_is_given_to_nobody_any_more(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0")
    node.machine.add_gpu("0000:04:00.0")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    node.machine.remove_gpu("0000:03:00.0")
    await node.kubelet.until_allocatable(I915, 1)
    assert (await node.kubelet.capacity()).capacity == {I915: 1}
    assert (await node.kubelet.admit_one(pod("first", I915))).ids == ("0000:04:00.0",)
    with pytest.raises(RefusedError, match="Available: 0"):
        await node.kubelet.admit_one(pod("second", I915))


async def test_a_machine_may_start_without_any_gpu_and_without_dev_dri(node: Node) -> None:
    assert not node.machine.dri.exists()
    serving = await node.serve()
    await node.until("its first words", lambda: serving.text() != "")
    assert node.sandbox.sockets() == set()
    for count in (1, 2, 3):
        node.machine.add_gpu(f"0000:0{count}:00.0")
        await node.kubelet.until_allocatable(I915, count)


async def test_all_gpus_go_with_dev_dri_and_come_back_in_a_new_one(node: Node) -> None:
    gpus = node.machine.add_gpus(2)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    for _ in range(3):  # a watch that is armed anew only once would be found out
        for gpu in gpus:
            node.machine.remove_gpu(gpu.address)
        assert not node.machine.dri.exists()
        await node.kubelet.until_allocatable(I915, 0)
        assert (await node.kubelet.capacity()).capacity == {I915: 0}
        with pytest.raises(RefusedError, match="no healthy devices present"):
            await node.kubelet.admit_one(pod("early", I915))
        for gpu in gpus:
            node.machine.add_gpu(gpu.address)
        await node.kubelet.until_allocatable(I915, 2)
    assert len((await node.kubelet.admit_one(pod("late", I915, 2))).nodes) == 4


async def test_a_gpu_that_is_bound_to_another_driver_moves_to_the_other_resource(node: Node) -> None:
    gpu = node.machine.add_gpu("0000:03:00.0", driver="i915")
    node.machine.add_gpu("0000:04:00.0", driver="i915")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    node.machine.rebind(gpu.address, "xe")
    await node.kubelet.until_allocatable(XE, 1)
    await node.kubelet.until_allocatable(I915, 1)
    assert list(await node.kubelet.devices(XE)) == [gpu.address]
    assert (await node.kubelet.admit_one(pod("renders", XE))).nodes

    node.machine.rebind(gpu.address, "i915")
    await node.kubelet.until_allocatable(I915, 2)
    await node.kubelet.until_allocatable(XE, 0)


async def test_a_pods_gpu_that_comes_back_is_the_same_device(node: Node) -> None:
    gpu = node.machine.add_gpu("0000:03:00.0")
    node.machine.add_gpu("0000:04:00.0")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    everything = await node.kubelet.admit_one(pod("holder", I915, 2))
    node.machine.remove_gpu(gpu.address)
    await node.kubelet.until_allocatable(I915, 1)
    node.machine.add_gpu(gpu.address)
    await node.kubelet.until_allocatable(I915, 2)
    # It is still the first pod's, as far as the kubelet is concerned: its id has not changed.
    with pytest.raises(RefusedError, match="Available: 0"):
        await node.kubelet.admit_one(pod("other", I915))
    await node.kubelet.delete("holder")
    assert (await node.kubelet.admit_one(pod("other", I915, 2))).ids == everything.ids


async def test_gpus_that_come_and_go_all_the_time_end_in_the_list_that_is_true(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    for _ in range(30):
        node.machine.add_gpu("0000:04:00.0")
        node.machine.remove_gpu("0000:04:00.0")
    node.machine.add_gpu("0000:05:00.0", driver="xe")
    await node.kubelet.until_allocatable(XE, 1)
    await node.kubelet.until_allocatable(I915, 1)
    assert list(await node.kubelet.devices(I915)) == ["0000:03:00.0"]
