"""The kubelet or gpuplug ends at any moment; the node's GPUs are back without anybody's help."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import anyio
import pytest

from tests.kubelet.devicemanager import End, Step, pod
from tests.kubelet.node import I915, XE

if TYPE_CHECKING:
    from tests.kubelet.node import Node

ends = pytest.mark.parametrize("end", get_args(End))
"""A kubelet that is stopped tidies up, one that is killed leaves every socket where it is."""

steps = pytest.mark.parametrize("step", get_args(Step))


async def settled(node: Node, count: int, name: str) -> None:
    """Wait until the node has its GPUs and a pod can have one: being listed is not being reachable."""
    await node.kubelet.until_allocatable(I915, count)
    assert (await node.kubelet.admit_in_time(pod(name, I915))).nodes
    await node.kubelet.delete(name)


@ends
async def test_gpus_are_back_after_a_restart_of_the_kubelet(node: Node, end: End) -> None:
    node.machine.add_gpu("0000:03:00.0", driver="i915")
    node.machine.add_gpu("0000:04:00.0", driver="xe")
    serving = await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    await node.kubelet.until_allocatable(XE, 1)
    await node.kubelet.restart(end)
    await node.kubelet.until_allocatable(I915, 1)
    await node.kubelet.until_allocatable(XE, 1)
    assert len(node.sandbox.sockets()) == 2
    assert serving.process.alive


@ends
async def test_gpus_are_back_after_five_restarts_in_a_row(node: Node, end: End) -> None:
    node.machine.add_gpus(2)
    serving = await node.serve()
    for _ in range(5):  # each waits until the GPUs are back
        await settled(node, 2, "between")
        await node.kubelet.restart(end)
    await settled(node, 2, "between")
    for _ in range(5):  # none waits for anything
        await node.kubelet.restart(end)
    await settled(node, 2, "after")
    assert len(node.sandbox.sockets()) == 1
    assert serving.process.alive


async def test_a_pod_keeps_its_gpu_through_a_restart_of_the_kubelet(node: Node) -> None:
    node.machine.add_gpus(2)
    await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    holder = await node.kubelet.admit_one(pod("holder", I915))
    await node.kubelet.restart("stop")
    await node.kubelet.until_allocatable(I915, 2)
    newcomer = await node.kubelet.admit_in_time(pod("newcomer", I915))
    assert set(newcomer.ids).isdisjoint(holder.ids)


@ends
async def test_plugins_started_before_the_kubelet_register_when_it_comes(node: Node, end: End) -> None:
    # A kubelet that comes up removes all sockets, those of plugins that wait for it included.
    await (node.kubelet.stop() if end == "stop" else node.kubelet.kill())
    node.machine.add_gpu()
    serving = await node.serve()
    await node.until("a word about the kubelet that is not there", lambda: "kubelet.sock" in serving.text())
    await node.kubelet.start()
    await settled(node, 1, "after")


@ends
async def test_kubelets_may_restart_before_there_is_anything_to_bind(node: Node, end: End) -> None:
    serving = await node.serve()
    await node.until("its first words", lambda: serving.text() != "")
    await node.kubelet.restart(end)
    node.machine.add_gpu()
    await settled(node, 1, "after")


@ends
@steps
async def test_kubelets_may_end_at_any_step_of_a_first_registration(node: Node, end: End, step: Step) -> None:
    node.machine.add_gpus(2)
    await node.kubelet.hold(step)
    serving = await node.serve()
    await node.kubelet.held()
    await node.end_held(end)
    await node.kubelet.start()
    await settled(node, 2, "after")
    assert len(node.sandbox.sockets()) == 1
    assert serving.process.alive


@ends
@steps
async def test_kubelets_may_end_at_any_step_of_a_later_registration(node: Node, end: End, step: Step) -> None:
    node.machine.add_gpus(2)
    serving = await node.serve()
    await node.kubelet.until_allocatable(I915, 2)
    await node.kubelet.stop()
    await node.kubelet.hold(step)
    await node.kubelet.start()
    await node.kubelet.held()
    await node.end_held(end)
    await node.kubelet.start()
    await settled(node, 2, "after")
    assert len(node.sandbox.sockets()) == 1
    assert serving.process.alive


@ends
async def test_kubelets_may_restart_at_any_time_after_their_start(node: Node, end: End) -> None:
    # The steps above are those that the kubelet shows. These offsets go through what lies
    # between: seeing kubelet.sock, binding, connecting, Register, ListAndWatch, the list.
    node.machine.add_gpus(2)
    serving = await node.serve()
    for milliseconds in (*range(0, 40, 2), *range(40, 200, 20)):
        await node.kubelet.restart(end)
        await anyio.sleep(milliseconds / 1000)
        await node.kubelet.restart(end)
        await settled(node, 2, f"after-{milliseconds}")
    assert len(node.sandbox.sockets()) == 1
    assert serving.process.alive


async def test_kubelets_may_restart_at_any_time_after_the_start_of_a_plugin(node: Node) -> None:
    node.machine.add_gpus(2)
    for milliseconds in range(0, 500, 20):
        serving = await node.serve()
        await anyio.sleep(milliseconds / 1000)
        await node.kubelet.restart("stop")
        await settled(node, 2, f"after-{milliseconds}")
        await serving.process.kill()
        await node.kubelet.until_allocatable(I915, 0)


async def test_a_plugin_that_is_killed_and_started_again_is_back_with_the_same_devices(node: Node) -> None:
    node.machine.add_gpus(2)
    first = await node.serve(shares=2)
    await node.kubelet.until_allocatable(I915, 4)
    devices = await node.kubelet.devices(I915)
    left_behind = node.sandbox.sockets()
    for _ in range(3):
        await first.process.kill()
        await node.kubelet.until_allocatable(I915, 0)
        assert (await node.kubelet.capacity()).capacity == {I915: 4}
        first = await node.serve(shares=2)
        await node.kubelet.until_allocatable(I915, 4)
        assert await node.kubelet.devices(I915) == devices
        # A killed process cannot remove its socket; the next one does it, or they would add up.
        await node.until("one socket", lambda: len(node.sandbox.sockets()) == 1)
        assert node.sandbox.sockets() != left_behind
        left_behind = node.sandbox.sockets()
    await settled(node, 4, "after")


async def test_a_socket_that_somebody_removes_is_made_anew(node: Node) -> None:
    node.machine.add_gpu()
    await node.serve()
    await node.kubelet.until_allocatable(I915, 1)
    (name,) = node.sandbox.sockets()
    (node.sandbox.kubelet_dir / name).unlink()
    await node.until("a new socket", lambda: bool(node.sandbox.sockets()))
    await settled(node, 1, "after")
