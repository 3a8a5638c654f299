"""The story of an operator, on a whole cluster: apply, use, unplug, upgrade, roll back, remove."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from tests.node.harness.node import REPOSITORY

from .conftest import Images
from .harness.cluster import Cluster, ControlPlane
from .harness.plugin import (
    I915,
    LABEL,
    NAMESPACE,
    applied,
    as_list,
    condition,
    containers,
    plugin_pod,
    sockets,
    unplug_all,
)
from .harness.rendered import KUSTOMIZE, rendered

GPU = "0000:03:00.0"
CONSUMER = "app.kubernetes.io/name=gpu-consumer"
LET_THROUGH = ("opens", "ENXIO")
"""ENXIO: the device cgroup let it through, and there is no GPU behind the number on this machine."""


def example(folder: str) -> dict[str, Any]:
    (path,) = (REPOSITORY / "examples" / folder).glob("*.yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


async def running(cluster: Cluster, label: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many pods run, with every container started."""

    def started(pods: list[dict[str, Any]]) -> bool:
        return len(pods) == count and all(condition(pod, "Ready") == "True" for pod in pods)

    found: list[dict[str, Any]] = await cluster.until(
        f"{count} pods with {label} to run", lambda: cluster.pods(label), started
    )
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


async def said(cluster: Cluster, pod: str, container: str, words: str) -> str:
    """Wait until a container has said something, and return all that it said."""
    found: str = await cluster.until(
        f"{pod} to say {words!r}",
        lambda: cluster.kubectl("logs", pod, "-c", container),
        lambda log: words in log,
    )
    return found


async def why_a_pod_waits(cluster: Cluster) -> str:
    """Ask for a GPU that is not there, and return the scheduler's reason."""
    media = example("03-media-server")
    cluster.kubectl("apply", "-f", "-", given=as_list(media))
    (waiting,) = await cluster.until(
        "a reason why the next pod waits",
        lambda: cluster.pods("app.kubernetes.io/name=media-server"),
        lambda pods: bool(pods) and condition(pods[0], "PodScheduled") == "False",
    )
    await cluster.run("delete", "-f", "-", given=as_list(media))
    return condition(waiting, "PodScheduled", "message")


@pytest.fixture
def cleaning() -> Iterator[ExitStack]:
    """Undo what a story did, from its end to its beginning, however far it came."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("folder", "shares"), [("base", 1), ("overlays/shared", 4)])
async def test_from_apply_to_delete(
    cluster: Cluster,
    plane: ControlPlane,
    images: Images,
    measured: list[str],
    cleaning: ExitStack,
    folder: str,
    shares: int,
) -> None:
    manifests = str(KUSTOMIZE / folder)
    cluster.machine.add_gpu(GPU)
    cleaning.callback(unplug_all, cluster)
    cleaning.callback(cluster.kubectl, "delete", "--ignore-not-found", "-k", manifests)

    # Apply, and wait as an operator does: ready means that the GPU can be had.
    cluster.kubectl("apply", "-k", manifests)
    assert "successfully rolled out" in await cluster.rolled_out()
    first = await plugin_pod(cluster)
    await cluster.allocatable(I915, shares)

    # A Deployment's pods get it, one per share, and open it as an ordinary user.
    consumer = example("02-consumer")
    consumer["spec"]["replicas"] = shares
    cleaning.callback(cluster.kubectl, "delete", "--ignore-not-found", "-f", "-", given=as_list(consumer))
    cluster.kubectl("apply", "-f", "-", given=as_list(consumer))
    before = await running(cluster, CONSUMER, shares)
    log = await said(cluster, before[0]["metadata"]["name"], "check", "renderD128:")
    assert "uid 1000" in log
    assert f"GPUPLUG_GPUS={GPU}" in log
    lines = [line for line in log.splitlines() if line.startswith("/dev/dri/")]
    assert [line.split(":")[0] for line in lines] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert all(any(word in line for word in LET_THROUGH) for line in lines), log

    # The GPU goes: the next pod waits, with the scheduler's reason, and those that run stay.
    cluster.machine.remove_gpu(GPU)
    await cluster.allocatable(I915, 0)
    reason = await why_a_pod_waits(cluster)
    measured.append(f"{folder}: the scheduler on a pod without a GPU: {reason}")
    assert f"Insufficient {I915}" in reason

    # It comes back, and a new image rolls through: no pod that runs is disturbed.
    cluster.machine.add_gpu(GPU)
    await cluster.allocatable(I915, shares)
    newer = rendered(plane.programs["kubectl"], folder).changed(image=images.next_reference)
    cluster.kubectl("apply", "-f", "-", given=newer.text())
    assert "successfully rolled out" in await cluster.rolled_out()
    second = await plugin_pod(cluster)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["status"]["containerStatuses"][0]["image"] == images.next_reference
    await cluster.allocatable(I915, shares)
    assert len(sockets(cluster)) == 1
    cluster.kubectl("rollout", "undo", "daemonset/gpuplug", "-n", NAMESPACE)
    assert "successfully rolled out" in await cluster.rolled_out()
    third = await plugin_pod(cluster)
    assert third["status"]["containerStatuses"][0]["image"] == images.reference
    after = await running(cluster, CONSUMER, shares)
    assert [containers(pod) for pod in after] == [containers(pod) for pod in before]

    # Remove it: nothing of it is left, and whoever holds a GPU keeps it.
    last = cluster.follow("last-words", "logs", "-f", "-n", NAMESPACE, third["metadata"]["name"])
    began = time.monotonic()
    await cluster.run("delete", "-k", manifests)
    assert sockets(cluster) == [], f"after {time.monotonic() - began:.1f} s:\n{last.tail()}"
    assert cluster.pods(LABEL, NAMESPACE) == []
    after = await running(cluster, CONSUMER, shares)
    assert [containers(pod) for pod in after] == [containers(pod) for pod in before]


async def test_a_media_server_gets_one_gpu_for_one_of_its_containers(
    cluster: Cluster, plane: ControlPlane
) -> None:
    cluster.machine.add_gpu(GPU)
    media = example("03-media-server")
    async with applied(cluster, rendered(plane.programs["kubectl"], "base")):
        await cluster.allocatable(I915, 1)
        cluster.kubectl("apply", "-f", "-", given=as_list(media))
        (pod,) = await running(cluster, "app.kubernetes.io/name=media-server", 1)
        name = pod["metadata"]["name"]
        log = await said(cluster, name, "server", "renderD128:")
        assert any(f"/dev/dri/renderD128: {word}" in log for word in LET_THROUGH)
        assert "no node in /dev/dri: this container was given no GPU" in await said(
            cluster, name, "library", "GPU"
        )
        await cluster.run("delete", "-f", "-", given=as_list(media))


async def test_intels_daemonset_may_keep_its_name_and_its_arguments(
    cluster: Cluster, plane: ControlPlane
) -> None:
    manifests = rendered(plane.programs["kubectl"], "overlays/intel")
    cluster.machine.add_gpu(GPU)
    cluster.kubectl("apply", "-f", "-", given=manifests.text())
    try:
        assert "successfully rolled out" in await cluster.rolled_out("daemonset/intel-gpu-plugin")
        assert all(word.startswith("-") for word in manifests.container["args"])
        await cluster.allocatable(I915, 1)
        await cluster.allocatable(f"{I915}_monitoring", 1)
    finally:
        await cluster.run("delete", "-f", "-", given=manifests.text())
        unplug_all(cluster)


async def test_a_node_without_a_gpu_is_ready_and_says_so(cluster: Cluster, plane: ControlPlane) -> None:
    async with applied(cluster, rendered(plane.programs["kubectl"], "base")):
        pod = await plugin_pod(cluster)
        assert "no GPU" in cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"])
        shown = cluster.kubectl(
            "exec", "-n", NAMESPACE, "daemonset/gpuplug", "--", "gpuplug", "inspect", check=False
        )
        assert "Nothing is advertised" in shown
