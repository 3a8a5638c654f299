"""9. What `gpuplug status` says is what the kubelet says, whatever becomes of GPUs, pods and programs.

The kubelet's answers are read by a reader of their own here (`harness.pod_resources`), so that no fault of
gpuplug's can hide behind itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuplug.testing import Machine

from .harness import pod_resources
from .harness.manifests import ContainerOrder
from .harness.node import REPOSITORY, Node
from .harness.plugins import (
    I915,
    PLUGIN_DIR,
    WIDGET,
    XE,
    allocatable,
    capacity,
    held,
    start_gpuplug,
    start_small_plugin,
    status,
)

CONFINED = {
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
pytestmark = pytest.mark.case("9 gpuplug status says what the kubelet says")

FIRST, SECOND, THIRD = "0000:03:00.0", "0000:04:00.0", "0000:06:00.0"
GPU = ContainerOrder("main", resources={I915: 1})


async def told(node: Node, code: int) -> dict[str, Any]:
    """Run the command, see how it ends, and read its JSON."""
    ended, text = await status(node, "--json")
    assert ended == code, text
    made: dict[str, Any] = json.loads(text)
    return made


async def assert_it_is_what_the_kubelet_says(node: Node, made: dict[str, Any]) -> None:
    """Compare holders, Devices and free ones with the kubelet's own answers."""
    holders = await held(node)
    assert {
        (one["pod"], one["container"], gpu["resource"], one["device"])
        for gpu in made["gpus"]
        for one in gpu["held"]
    } == {
        (holder.pod, holder.container, holder.resource, id_)
        for holder in holders
        if holder.resource != WIDGET
        for id_ in holder.ids
    }
    for resource in made["resources"]:
        devices = set(await allocatable(node, resource["name"]))
        taken = {id_ for holder in holders if holder.resource == resource["name"] for id_ in holder.ids}
        assert resource["at_kubelet"] == len(devices)
        assert resource["held"] == len(taken)
        assert resource["free"] == len(devices - taken)


def kinds(made: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(one["code"], one["about"]) for one in made["disagreements"]]


async def test_it_shows_who_holds_which_share_and_what_is_free(node: Node, machine: Machine) -> None:
    machine.add_gpu(FIRST, numa_node=0)
    machine.add_gpu(SECOND)
    machine.add_gpu(THIRD, driver="xe", numa_node=0)
    machine.add_gpu("0000:07:00.0", driver="nouveau")
    start_gpuplug(node, shares=2)
    start_small_plugin(node)
    await capacity(node, I915, 4)
    await capacity(node, XE, 2)
    await capacity(node, WIDGET, 2)
    made = await told(node, 0)
    assert [(one["name"], one["free"]) for one in made["resources"]] == [(I915, 4), (XE, 2)]

    node.order("one", GPU)
    node.order(
        "both", ContainerOrder("a", resources={I915: 1}), ContainerOrder("b", resources={I915: 1, XE: 1})
    )
    node.order("other", ContainerOrder("main", resources={WIDGET: 1}))
    node.order("none", ContainerOrder("main"))
    for name in ("one", "both", "other", "none"):
        await node.running_pod(name)
    made = await told(node, 0)
    await assert_it_is_what_the_kubelet_says(node, made)
    assert [(one["name"], one["held"], one["free"]) for one in made["resources"]] == [
        (I915, 3, 1),
        (XE, 1, 1),
    ]
    assert {(one["namespace"], one["pod"]) for gpu in made["gpus"] for one in gpu["held"]} == {
        ("default", "one-node"),
        ("default", "both-node"),
    }
    assert made["others"] == [{"name": WIDGET, "at_kubelet": 2, "held": 1}]
    assert [one["address"] for one in made["refused"]] == ["0000:07:00.0"]

    code, text = await status(node)
    assert code == 0, text
    assert f"Kubelet and machine agree. {I915}: 3 held, 1 free; {XE}: 1 held, 1 free." in text
    assert "share 0: default/" in text

    await node.withdraw("both")
    made = await told(node, 0)
    await assert_it_is_what_the_kubelet_says(node, made)


async def test_a_pod_whose_gpu_is_gone_is_named_until_the_gpu_is_back(node: Node, machine: Machine) -> None:
    machine.add_gpu(FIRST)
    machine.add_gpu(SECOND)
    start_gpuplug(node)
    await capacity(node, I915, 2)
    node.order("holder", GPU)
    await node.running_pod("holder")
    ((address,),) = [sorted(one.ids) for one in await held(node)]

    machine.remove_gpu(address)
    await capacity(node, I915, 1)
    made = await told(node, 4)
    assert kinds(made) == [("held-in-vain", [address])]
    assert "default/holder-node, container main, holds it" in made["disagreements"][0]["reason"]
    await assert_it_is_what_the_kubelet_says(node, made)

    machine.add_gpu(address)
    await capacity(node, I915, 2)
    made = await told(node, 0)
    await assert_it_is_what_the_kubelet_says(node, made)


async def test_the_last_gpu_that_is_gone_is_named_too(node: Node, machine: Machine) -> None:
    machine.add_gpu(FIRST)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("holder", GPU)
    await node.running_pod("holder")
    machine.remove_gpu(FIRST)
    await capacity(node, I915, 0)
    assert kinds(await told(node, 4)) == [("held-in-vain", [FIRST])]


async def test_it_asks_from_a_container_that_has_the_socket_read_only(node: Node, machine: Machine) -> None:
    machine.add_gpu(FIRST)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    python = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, str(REPOSITORY)}
    folder = str(Path(pod_resources.SOCKET).parent)
    read_only = [*(path for path in sorted(python) if Path(path).exists()), str(node.machine_root), folder]
    asking = ContainerOrder(
        "main",
        [sys.executable, "-m", "gpuplug", "status", "--prefix", str(node.machine_root), "--json"],
        host_paths={path: path for path in read_only},
        read_only=tuple(read_only),
        security=CONFINED,
    )
    node.order("asks", asking, user=0, restart="Never")
    pod = await node.ended_pod("asks")
    said = await node.logged("asks")
    assert pod.containers["main"].exit_code == 0, said
    made = json.loads("\n".join(said))
    assert [(one["name"], one["free"]) for one in made["resources"]] == [(I915, 1)]


async def test_programs_that_do_not_run_are_named(node: Node, machine: Machine) -> None:
    machine.add_gpu(FIRST)
    made = await told(node, 4)
    assert kinds(made) == [("not-registered", [I915])]

    plugin = start_gpuplug(node)
    await capacity(node, I915, 1)
    assert kinds(await told(node, 0)) == []
    await plugin.stop()
    await capacity(node, I915, 0)
    assert [code for code, _ in kinds(await told(node, 4))] in (["not-registered"], ["gpu-unknown"])

    code, text = await status(node, "--pod-resources-socket", f"{PLUGIN_DIR}/kubelet.sock")
    assert code == 1, text
    assert "or --pod-resources-socket names another program's socket" in text
    assert text.count("\n") == 1

    await node.program("kubelet").stop()
    code, text = await status(node)
    assert code == 1, text
    assert text.startswith("gpuplug: /var/lib/kubelet/pod-resources/kubelet.sock: ")
    assert "start the kubelet" in text
    assert text.count("\n") == 1
