"""7. Another device plugin on the same node: neither disturbs the other.

The kubelet counts registrations by resource. A plugin that was disturbed would have had to register again, or
would be missing; so an unchanged count beside a full capacity says that nothing happened to it.
"""

import re

import pytest

from gpuplug.testing import Machine
from gpuplug.testing.small_plugin import ENVIRONMENT

from .harness import kubelet_http
from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, PLUGIN_DIR, WIDGET, capacity, start_gpuplug, start_small_plugin

pytestmark = pytest.mark.case("7 side by side with another device plugin")

WIDGETS = {"widget-0", "widget-1"}
GPUS = {"0000:03:00.0"}


@pytest.fixture
async def neighbours(node: Node, machine: Machine) -> Node:
    """Make a node where both plugins serve, and a pod holds Devices of both."""
    machine.add_gpu("0000:03:00.0")
    start_gpuplug(node)
    start_small_plugin(node)
    await both(node)
    node.order("both", ContainerOrder("main", resources={I915: 1, WIDGET: 2}))
    await node.running_pod("both")
    return node


async def both(node: Node) -> None:
    assert set(await capacity(node, I915, 1)) == GPUS
    assert set(await capacity(node, WIDGET, 2)) == WIDGETS


async def registrations(node: Node) -> dict[str, int]:
    """How often each resource was registered since this kubelet started, by its own count."""
    counted = re.findall(
        r'^kubelet_device_plugin_registration_total\{resource_name="([^"]+)"\} (\d+)$',
        await kubelet_http.metrics(node.pid),
        re.MULTILINE,
    )
    return {name: int(count) for name, count in counted}


def sockets(node: Node, prefix: str) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_ino) for path in node.inside(PLUGIN_DIR).glob(f"{prefix}*.sock")}


async def test_one_container_gets_devices_of_both(neighbours: Node) -> None:
    said = await neighbours.said("both")
    assert {each["path"] for each in said["attempts"]} == {"/dev/dri/card0", "/dev/dri/renderD128"}
    assert set(said["env"][ENVIRONMENT].split(",")) == WIDGETS


async def test_a_restart_of_the_neighbour_leaves_gpuplug_alone(neighbours: Node) -> None:
    before, pod, ours = (
        await registrations(neighbours),
        await neighbours.pod("both"),
        sockets(neighbours, "gpuplug"),
    )
    await neighbours.program("neighbour").stop()
    await capacity(neighbours, WIDGET, 0)
    start_small_plugin(neighbours)

    await both(neighbours)
    assert await registrations(neighbours) == before | {WIDGET: before[WIDGET] + 1}
    assert await neighbours.running_pod("both") == pod
    assert sockets(neighbours, "gpuplug") == ours


async def test_a_restart_of_gpuplug_leaves_the_neighbour_alone(neighbours: Node) -> None:
    before, pod, theirs = (
        await registrations(neighbours),
        await neighbours.pod("both"),
        sockets(neighbours, "small"),
    )
    await neighbours.program("gpuplug").stop()
    await capacity(neighbours, I915, 0)
    start_gpuplug(neighbours)

    await both(neighbours)
    assert await registrations(neighbours) == before | {I915: before[I915] + 1}
    assert await neighbours.running_pod("both") == pod
    assert sockets(neighbours, "small") == theirs


async def test_both_come_back_after_the_kubelet(neighbours: Node) -> None:
    pod = await neighbours.pod("both")
    await neighbours.program("kubelet").stop()
    await neighbours.kubelet_healthy(await neighbours.start_kubelet())

    await both(neighbours)
    assert await registrations(neighbours) == {I915: 1, WIDGET: 1}
    assert await neighbours.running_pod("both") == pod
