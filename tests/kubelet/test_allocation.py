"""What a container is given, as the kubelet would tell the container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from tests.kubelet.devicemanager import Ask, Container, DeviceNode, Pod, RefusedError, pod
from tests.kubelet.node import I915, XE

if TYPE_CHECKING:
    from tests.kubelet.node import Node


def gpus(ids: tuple[str, ...]) -> set[str]:
    """Return the GPUs that some shares stand for."""
    return {id_.split("::")[0] for id_ in ids}


async def test_a_container_gets_the_card_and_the_render_node_of_its_gpu(node: Node) -> None:
    gpu = node.machine.add_gpu("0000:03:00.0", card=1, render=130)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    container = await node.kubelet.admit_one(pod("player", I915))
    assert container.devices == {I915: (gpu.address,)}
    # On the node they are below the made-up machine; in the container that is nobody's business.
    assert container.nodes == (
        DeviceNode(str(node.machine.dri / "card1"), "/dev/dri/card1", "rw"),
        DeviceNode(str(node.machine.dri / "renderD130"), "/dev/dri/renderD130", "rw"),
    )


async def test_a_gpu_without_a_display_comes_as_its_render_node_alone(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0", driver="xe", card=False)
    await node.serve()
    await node.kubelet.until_allocatable(XE, 1)
    container = await node.kubelet.admit_one(pod("renders", XE))
    assert [given.container for given in container.nodes] == ["/dev/dri/renderD128"]


async def test_a_container_that_asks_for_two_devices_gets_two_gpus(node: Node) -> None:
    node.machine.add_gpus(2)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    container = await node.kubelet.admit_one(pod("both", I915, 2))
    assert len(gpus(container.ids)) == 2
    assert [given.container for given in container.nodes] == [
        "/dev/dri/card0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
    ]


async def test_a_container_may_ask_for_gpus_of_two_kernel_drivers(node: Node) -> None:
    node.machine.add_gpu("0000:03:00.0", driver="i915")
    node.machine.add_gpu("0000:04:00.0", driver="xe")
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    await node.kubelet.until_allocatable(XE, 1)
    (container,) = (await node.kubelet.admit(Pod("mixed", (Ask("main", {I915: 1, XE: 1}),)))).values()
    assert container.devices == {I915: ("0000:03:00.0",), XE: ("0000:04:00.0",)}
    assert len(container.nodes) == 4


async def test_several_pods_share_one_gpu_until_its_shares_are_used_up(node: Node) -> None:
    gpu = node.machine.add_gpu()
    await node.serve(shares=4)
    await node.kubelet.until_allocatable(I915, 4)
    names = ["one", "two", "three", "four"]
    containers = [await node.kubelet.admit_one(pod(name, I915)) for name in names]
    ids = [id_ for container in containers for id_ in container.ids]
    assert sorted(ids) == [gpu.address, *(f"{gpu.address}::{share}" for share in (1, 2, 3))]
    assert {container.nodes for container in containers} == {containers[0].nodes}
    assert [given.container for given in containers[0].nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]

    with pytest.raises(RefusedError, match="requested number of devices unavailable"):
        await node.kubelet.admit_one(pod("five", I915))
    await node.kubelet.delete("two")
    assert (await node.kubelet.admit_one(pod("five", I915))).ids == containers[1].ids


async def test_shares_that_one_container_asks_for_are_on_distinct_gpus(node: Node) -> None:
    # Left to itself the kubelet takes any two of the 30 shares: both are on one GPU in every
    # third pod, and ten pods in a row are told apart from luck.
    node.machine.add_gpus(3)
    await node.serve(shares=10)
    await node.kubelet.until_allocatable(I915, 30)
    for index in range(10):
        container = await node.kubelet.admit_one(pod(f"pod-{index}", I915, 2))
        assert len(gpus(container.ids)) == 2, container
        assert len(container.nodes) == 4
    await node.kubelet.delete("pod-4", "pod-7")
    container = await node.kubelet.admit_one(pod("three", I915, 3))
    assert len(gpus(container.ids)) == 3


async def test_more_shares_than_gpus_name_no_device_node_twice(node: Node) -> None:
    node.machine.add_gpu()
    await node.serve(shares=3)
    await node.kubelet.until_allocatable(I915, 3)
    container = await node.kubelet.admit_one(pod("greedy", I915, 3))
    assert [given.container for given in container.nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]


async def test_a_container_goes_on_with_the_device_of_its_pods_init_container(node: Node) -> None:
    # With 3 shares on each of 3 GPUs, the second device must be a share of another GPU.
    node.machine.add_gpus(3)
    await node.serve(shares=3)
    await node.kubelet.until_allocatable(I915, 9)
    for index in range(8):
        name = f"pod-{index}"
        given = await node.kubelet.admit(
            Pod(name, (Ask("main", {I915: 2}),), init=(Ask("prepare", {I915: 1}),))
        )
        first, then = given["prepare"].ids, given["main"].ids
        assert len(first) == 1
        assert set(first) < set(then), given
        assert len(gpus(then)) == 2, given
        await node.kubelet.delete(name)


async def test_devices_that_a_container_must_include_count_in_what_is_preferred(node: Node) -> None:
    # One device fits best on NUMA node 0, where nothing else is free, and two fit best on node 1.
    # An answer for two that does not count the one that the init container has would name both
    # GPUs of node 1, and the kubelet would take either of them. The right one names one of them.
    node.machine.add_gpu("0000:03:00.0", numa_node=0)
    node.machine.add_gpu("0000:83:00.0", numa_node=1)
    node.machine.add_gpu("0000:84:00.0", numa_node=1)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 3)
    for index in range(8):
        name = f"pod-{index}"
        given = await node.kubelet.admit(
            Pod(name, (Ask("main", {I915: 2}),), init=(Ask("prepare", {I915: 1}),))
        )
        assert given["prepare"].ids == ("0000:03:00.0",)
        assert given["main"].ids == ("0000:03:00.0", "0000:83:00.0")
        await node.kubelet.delete(name)


async def test_containers_of_one_pod_get_different_devices_and_a_sidecar_keeps_its_own(node: Node) -> None:
    node.machine.add_gpus(4)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 4)
    asks = {I915: 1}
    given = await node.kubelet.admit(
        Pod(
            "crew",
            containers=(Ask("left", asks), Ask("right", asks), Ask("bystander", {})),
            init=(Ask("prepare", asks), Ask("sidecar", asks, sidecar=True)),
        )
    )
    assert given["bystander"].nodes == ()
    staying = [given[name].ids[0] for name in ("left", "right", "sidecar")]
    assert len(set(staying)) == 3
    assert given["prepare"].ids[0] in staying  # it has ended before the others begin


async def test_allocate_gives_the_nodes_as_they_are_when_it_is_asked(node: Node) -> None:
    # The bus address is the identity: the same GPU may come back under other nodes' numbers. The
    # question is there before gpuplug can have noticed, so its last list does not help it.
    gpu = node.machine.add_gpu("0000:03:00.0", card=0, render=128)
    serving = await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    given: list[Container] = []

    async def admit() -> None:
        given.append(await node.kubelet.admit_in_time(pod("later", I915)))

    async with anyio.create_task_group() as tasks:
        with serving.process.paused():
            node.machine.rebind(gpu.address, "i915", card=5, render=133)
            tasks.start_soon(admit)
            await node.until("a question", lambda: "Issuing a GetPreferredAllocation" in node.kubelet.text())
    (container,) = given
    assert container.devices == {I915: (gpu.address,)}
    assert [each.container for each in container.nodes] == ["/dev/dri/card5", "/dev/dri/renderD133"]
