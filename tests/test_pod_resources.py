"""What the kubelet's pod-resources API answers becomes a Belief; what goes wrong, one line of advice."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import anyio
import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.belief import Belief, Holder
from gpuplug.errors import KubeletError
from gpuplug.kubelet.pod_resources import ask, read_allocatable, read_holders
from gpuplug.kubelet.podresources import (
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    NumaNode,
    PodResources,
    TopologyInfo,
)
from gpuplug.testing import FakePodResources
from tests.rights import as_somebody_else
from tests.running import I915, A, B, open_files
from tests.values import XE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "kubelet.sock"


async def failing(path: Path, within: float = 5.0) -> str:
    """Ask where that fails, and return the error's text: one line, and no socket left open."""
    before = [name for name in open_files() if name.startswith("socket:")]
    with pytest.raises(KubeletError) as failure:
        await ask(str(path), within=within)
    await anyio.wait_all_tasks_blocked()
    left = [name for name in open_files() if name.startswith("socket:")]
    assert len(left) <= len(before) + 1  # the other side may not have hung up yet
    text = str(failure.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


async def test_the_kubelet_is_asked_who_holds_what_and_what_there_is(path: Path) -> None:
    async with FakePodResources(path) as kubelet:
        assert await ask(str(path)) == Belief({}, ())
        kubelet.offer(I915, A, f"{A}::1", numa_nodes=[0])
        kubelet.offer(I915, B)
        kubelet.offer(XE, "both", numa_nodes=[0, 1])
        kubelet.give("media", "b", "main", I915, f"{A}::1", A)
        kubelet.give("default", "a", "main", XE, "both")
        kubelet.give("default", "a", "main", I915, "gone")
        kubelet.give("default", "idle", "main", I915)
        zero = frozenset({0})
        assert await ask(str(path)) == Belief(
            {I915: {A: zero, f"{A}::1": zero, B: frozenset()}, XE: {"both": frozenset({0, 1})}},
            (
                Holder("default", "a", "main", I915, ("gone",)),
                Holder("default", "a", "main", XE, ("both",)),
                Holder("media", "b", "main", I915, (A, f"{A}::1")),
            ),
        )
        kubelet.withdraw(I915, A)
        kubelet.withdraw(XE)
        kubelet.end_pod("default", "a")
        belief = await ask(str(path))
        assert belief.allocatable == {I915: {f"{A}::1": zero, B: frozenset()}}
        assert [holder.pod for holder in belief.holders] == ["b"]


async def test_all_of_a_full_node_is_read(path: Path) -> None:
    """The kubelet makes an entry of every Device: 12,800 of them are about 1 MB."""
    ids = [f"0000:{bus:02x}:00.0::{share}" for bus in range(128) for share in range(1, 101)]
    async with FakePodResources(path) as kubelet:
        kubelet.offer(I915, *ids, numa_nodes=[1])
        for number, id_ in enumerate(ids[:200]):
            kubelet.give("default", f"pod-{number}", "main", I915, id_)
        belief = await ask(str(path))
    assert belief.allocatable is not None
    assert belief.allocatable[I915].keys() == set(ids)
    assert len(belief.holders) == 200


# what goes wrong


async def test_no_socket_at_all(path: Path) -> None:
    text = await failing(path)
    assert text.startswith("No such file or directory: start the kubelet")
    assert "--pod-resources-socket" in text


async def test_a_kubelet_that_was_killed(path: Path) -> None:
    async with FakePodResources(path) as kubelet:
        await kubelet.stop(remove_socket=False)
        assert (await failing(path)).startswith("Connection refused: nobody listens there: start the kubelet")


async def test_a_kubelet_that_hangs(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        text = await failing(path, within=0.1)
    assert text == "the kubelet did not answer within 0.1 s: look at the kubelet's log"


async def test_a_kubelet_that_ends_in_the_middle(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        async def hang_up() -> None:
            await anyio.wait_readable(listener)
            listener.accept()[0].close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang_up)
            assert await failing(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights up")
async def test_who_may_not_is_told_to_be_root(path: Path, short_path: Path) -> None:
    short_path.chmod(0o755)
    async with FakePodResources(path):
        path.chmod(0o600)
        with as_somebody_else():
            text = await failing(path)
    assert text.startswith("Permission denied: run this as root")


async def test_a_kubelet_without_the_api_is_named_as_old(path: Path) -> None:
    async with FakePodResources(path) as kubelet:
        kubelet.faults.missing |= {"List", "GetAllocatableResources"}
        text = await failing(path)
    assert "the kubelet has no pod-resources API v1, which came with Kubernetes 1.20" in text


@pytest.mark.parametrize("switched_off", [False, True])
async def test_a_kubelet_that_tells_only_who_holds_what_is_listened_to(
    path: Path, switched_off: bool
) -> None:
    async with FakePodResources(path) as kubelet:
        if switched_off:
            words = (Status.UNKNOWN, "Pod Resources API GetAllocatableResources disabled")
            kubelet.faults.refuse["GetAllocatableResources"] = words
        else:
            kubelet.faults.missing.add("GetAllocatableResources")
        kubelet.give("default", "a", "main", I915, A)
        assert await ask(str(path)) == Belief(None, (Holder("default", "a", "main", I915, (A,)),))


async def test_a_kubelet_that_was_asked_too_often_says_so(path: Path) -> None:
    async with FakePodResources(path) as kubelet:
        kubelet.faults.refuse["List"] = (Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
        text = await failing(path)
    assert text == "the kubelet refused: rejected by rate limit: look at the kubelet's log"


# the answers, in any shape

ids = st.sampled_from([A, f"{A}::1", B, "card0"])
entries = st.builds(
    ContainerDevices,
    st.sampled_from([I915, "example.com/widget"]),
    st.lists(ids, max_size=3),
    st.none() | st.lists(st.builds(NumaNode, st.integers(0, 3)), max_size=2).map(TopologyInfo),
)


@given(devices=st.lists(entries, max_size=6))
def test_a_device_is_there_once_with_all_its_numa_nodes(devices: list[ContainerDevices]) -> None:
    found = read_allocatable(AllocatableResourcesResponse(devices))
    pairs = {(entry.resource_name, id_) for entry in devices for id_ in entry.device_ids}
    assert {(name, id_) for name, some in found.items() for id_ in some} == pairs
    for name, id_ in pairs:
        said = [entry for entry in devices if entry.resource_name == name and id_ in entry.device_ids]
        assert found[name][id_] == {node.id for one in said if one.topology for node in one.topology.nodes}


pods = st.builds(
    PodResources,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["default", "media"]),
    st.lists(
        st.builds(ContainerResources, st.sampled_from(["main", "side"]), st.lists(entries, max_size=3)),
        max_size=2,
        unique_by=lambda container: container.name,
    ),
)


def held(answer: ListPodResourcesResponse) -> Iterator[tuple[str, ...]]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for entry in container.devices:
                for id_ in entry.device_ids:
                    yield pod.namespace, pod.name, container.name, entry.resource_name, id_


@given(answer=st.lists(pods, max_size=3, unique_by=lambda pod: (pod.namespace, pod.name)))
def test_a_container_holds_each_device_once(answer: list[PodResources]) -> None:
    response = ListPodResourcesResponse(answer)
    found = read_holders(response)
    listed = [
        (one.namespace, one.pod, one.container, one.resource, id_) for one in found for id_ in one.devices
    ]
    assert listed == sorted(set(held(response)))
    assert list(found) == sorted(found)
