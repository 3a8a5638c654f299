"""1. The decisive test: what an unprivileged container may open, by errno.

No hardware stands behind 226:0 and 226:128 here, so a node that the device cgroup lets through answers ENXIO:
the kernel looked for a driver and found none. On a machine with DRM it would be a true OK. Both count as let
through, and the table at the end says which was seen. EPERM is the cgroup's own answer, EACCES that of the
file's mode.
"""

from typing import Any

import pytest

from gpuplug.testing import Machine

from .harness.kubelet_http import Pod
from .harness.ledger import Ledger
from .harness.manifests import STAY, UNPRIVILEGED, ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, capacity, start_gpuplug
from .harness.releases import Release

pytestmark = pytest.mark.case("1 the device cgroup lets the right container through")

LET_THROUGH = {"OK", "ENXIO"}
EVERY_ATTEMPT = {
    (f"/dev/dri/{name}", access) for name in ("card0", "renderD128") for access in ("r", "w", "rw")
}

GPU = ContainerOrder("main", resources={I915: 1})


def results(said: dict[str, Any]) -> set[str]:
    """Return how the kernel answered, if every node was tried in every way by an ordinary user."""
    assert said["uid"] == UNPRIVILEGED
    assert {(each["path"], each["access"]) for each in said["attempts"]} == EVERY_ATTEMPT
    return {each["result"] for each in said["attempts"]}


def host_path_only(machine: Machine) -> ContainerOrder:
    return ContainerOrder("main", STAY, host_paths={"/dev/dri": str(machine.dri)})


def the_kernel_allows(node: Node, pod: Pod, rules: set[str]) -> bool:
    """Whether these are the container's rules for DRM nodes, in the kernel's own list (version 1 has one)."""
    if node.cgroups.unified:
        return True
    listed = (node.cgroup_of(pod.containers["main"]) / "devices.list").read_text().splitlines()
    return {rule for rule in listed if rule.startswith("c 226:")} == rules


async def test_a_container_opens_its_gpu_only_with_the_resource(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu("0000:03:00.0")
    start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("with", GPU)
    node.order("without", host_path_only(machine))

    granted = await node.running_pod("with")
    told = results(await node.said("with"))
    ledger.outcome("the resource", release, told)
    assert told <= LET_THROUGH
    assert the_kernel_allows(node, granted, {"c 226:0 rw", "c 226:128 rw"})

    denied = await node.running_pod("without")
    told = results(await node.said("without"))
    ledger.outcome("a host path alone", release, told)
    assert told == {"EPERM"}
    assert the_kernel_allows(node, denied, set())


async def test_a_node_closed_to_others_is_refused_by_its_mode_and_not_by_the_cgroup(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu("0000:03:00.0")
    for path in machine.dri.iterdir():
        path.chmod(0o600)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    node.order("closed", GPU)

    granted = await node.running_pod("closed")
    told = results(await node.said("closed"))
    ledger.outcome("the resource, nodes of mode 0600", release, told)
    assert told == {"EACCES"}
    assert the_kernel_allows(node, granted, {"c 226:0 rw", "c 226:128 rw"})
