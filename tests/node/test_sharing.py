"""2. One GPU for two pods, when and only when it is shared."""

import pytest

from gpuplug.testing import Machine

from .harness.ledger import Ledger
from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, capacity, held, start_gpuplug
from .harness.releases import Release

pytestmark = pytest.mark.case("2 two pods share a GPU, or the second is refused")

GPU = ContainerOrder("main", resources={I915: 1})


async def test_two_pods_hold_one_gpu_that_is_shared_by_two(node: Node, machine: Machine) -> None:
    machine.add_gpu("0000:03:00.0")
    start_gpuplug(node, shares=2)
    await capacity(node, I915, 2)
    for name in ("first", "second"):
        node.order(name, GPU)

    for name in ("first", "second"):
        await node.running_pod(name)
        opened = {each["path"] for each in (await node.said(name))["attempts"]}
        assert opened == {"/dev/dri/card0", "/dev/dri/renderD128"}
    ids = sorted(identity for each in await held(node) for identity in each.ids)
    assert ids == ["0000:03:00.0", "0000:03:00.0::1"]


async def test_the_kubelet_refuses_a_second_pod_when_the_gpu_is_not_shared(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu("0000:03:00.0")
    start_gpuplug(node, shares=1)
    await capacity(node, I915, 1)
    node.order("first", GPU)
    await node.running_pod("first")
    node.order("second", GPU)

    refused = await node.refused_pod("second")
    ledger.said(release, refused.reason, refused.message)
    assert I915 in refused.message
    assert "Requested: 1, Available: 0" in refused.message
