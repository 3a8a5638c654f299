"""3. GPUs come and go under a running kubelet, a running plugin and running pods.

A static pod is refused for good if it comes too early, so each is made once the kubelet shows the capacity.
"""

import pytest

from gpuplug.testing import Machine

from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, allocatable, capacity, held, start_gpuplug

pytestmark = pytest.mark.case("3 hotplug: a GPU comes, goes and comes back")

GPU = ContainerOrder("main", resources={I915: 1})
ADDRESS = "0000:03:00.0"


async def test_a_gpu_that_appears_last_is_given_to_the_next_pod(node: Node, machine: Machine) -> None:
    plugin = start_gpuplug(node)
    await plugin.wrote("no GPU")  # it has looked, and found none
    assert not await allocatable(node, I915)

    machine.add_gpu(ADDRESS)
    assert set(await capacity(node, I915, 1)) == {ADDRESS}
    node.order("late", GPU)
    await node.running_pod("late")


async def test_a_pod_outlives_its_gpu_which_comes_back_under_the_same_id(
    node: Node, machine: Machine
) -> None:
    machine.add_gpu(ADDRESS)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("holder", GPU)
    before = await node.running_pod("holder")

    machine.remove_gpu(ADDRESS)
    await capacity(node, I915, 0)
    assert await node.running_pod("holder") == before

    machine.add_gpu(ADDRESS)
    assert set(await capacity(node, I915, 1)) == {ADDRESS}
    assert await node.running_pod("holder") == before
    assert [each.ids for each in await held(node)] == [{ADDRESS}]


async def test_one_gpu_of_two_that_goes_leaves_the_other_usable(node: Node, machine: Machine) -> None:
    machine.add_gpu(ADDRESS)
    machine.add_gpu("0000:04:00.0")
    start_gpuplug(node)
    await capacity(node, I915, 2)

    machine.remove_gpu(ADDRESS)
    assert set(await capacity(node, I915, 1)) == {"0000:04:00.0"}
    node.order("other", GPU)
    await node.running_pod("other")
    opened = {each["path"] for each in (await node.said("other"))["attempts"]}
    assert opened == {"/dev/dri/card1", "/dev/dri/renderD129"}
