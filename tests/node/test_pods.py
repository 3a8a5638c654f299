"""5. Pods with several containers, and containers with several Devices."""

import pytest

from gpuplug.testing import Machine

from .harness.manifests import ONCE, ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, capacity, held, start_gpuplug

pytestmark = pytest.mark.case("5 init containers, several containers, several GPUs")

FIRST, SECOND = "0000:03:00.0", "0000:04:00.0"
BOTH_GPUS = ["/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/renderD129"]


@pytest.fixture(autouse=True)
def two_gpus(machine: Machine) -> None:
    for address in (FIRST, SECOND):
        machine.add_gpu(address)


async def opened(node: Node, pod: str, container: str = "main") -> list[str]:
    """Return the nodes in a container's /dev/dri, each as often as it was tried for reading."""
    said = await node.said(pod, container)
    return [each["path"] for each in said["attempts"] if each["access"] == "r"]


async def test_an_init_container_and_two_containers_get_a_gpu_each(node: Node) -> None:
    """Two GPUs do for three containers: the kubelet hands the init container's on to a container."""
    start_gpuplug(node)
    await capacity(node, I915, 2)
    node.order(
        "trio",
        ContainerOrder("left", resources={I915: 1}),
        ContainerOrder("right", resources={I915: 1}),
        init=[ContainerOrder("before", ONCE, resources={I915: 1})],
    )
    await node.running_pod("trio")

    seen = {name: await opened(node, "trio", name) for name in ("before", "left", "right")}
    assert sorted(seen["left"] + seen["right"]) == BOTH_GPUS
    assert seen["before"] in (seen["left"], seen["right"])
    ids = {each.container: each.ids for each in await held(node) if each.container != "before"}
    assert sorted(ids.values(), key=min) == [{FIRST}, {SECOND}]


async def test_a_container_that_asks_for_two_gets_two_different_gpus(node: Node) -> None:
    start_gpuplug(node, shares=4)
    await capacity(node, I915, 8)
    node.order("pair", ContainerOrder("main", resources={I915: 2}))
    await node.running_pod("pair")

    assert await opened(node, "pair") == BOTH_GPUS
    (holder,) = await held(node)
    assert {identity.partition("::")[0] for identity in holder.ids} == {FIRST, SECOND}


async def test_more_shares_than_gpus_are_all_gpus_and_no_node_twice(node: Node) -> None:
    """As documented: a share is no part of a GPU, so five shares of two GPUs are the two GPUs."""
    start_gpuplug(node, shares=4)
    await capacity(node, I915, 8)
    node.order("greedy", ContainerOrder("main", resources={I915: 5}))
    await node.running_pod("greedy")

    assert await opened(node, "greedy") == BOTH_GPUS
    (holder,) = await held(node)
    assert len(holder.ids) == 5
