"""What the options of Intel's plugin do in real containers: links of /dev/dri/by-path, and monitoring."""

from typing import Any

import pytest

from gpuplug.testing import Machine

from .harness.ledger import Ledger
from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, capacity, start_gpuplug
from .harness.releases import Release
from .test_access import LET_THROUGH

pytestmark = pytest.mark.case("options of Intel's plugin in real containers")

ONE, OTHER = "0000:03:00.0", "0000:04:00.0"
MONITORING = f"{I915}_monitoring"


def results(said: dict[str, Any]) -> dict[str, set[str]]:
    """Give how each path answered."""
    found: dict[str, set[str]] = {}
    for attempt in said["attempts"]:
        found.setdefault(attempt["path"], set()).add(attempt["result"])
    return found


async def test_links_and_monitoring_reach_the_containers_that_are_meant(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu(ONE)
    machine.add_gpu(OTHER)
    folder = machine.dri / "by-path"
    folder.mkdir()
    paths = {}
    for address in (ONE, OTHER):
        for name in machine.nodes_of(address):
            kind = "card" if name.startswith("card") else "render"
            (folder / f"pci-{address}-{kind}").symlink_to(f"../{name}")
            paths[address, kind] = f"/dev/dri/by-path/pci-{address}-{kind}"
    start_gpuplug(node, "-enable-monitoring", "-allow-ids=0x56a0", "-v=2")
    await capacity(node, I915, 2)
    await capacity(node, MONITORING, 1)

    tried = ("/probe", "open", "-stay", *paths.values())
    node.order("one", ContainerOrder("main", tried, {I915: 1}))
    await node.running_pod("one")
    said = await node.said("one")
    given = said["env"]["GPUPLUG_GPUS"]
    told = results(said)
    for (address, _), path in paths.items():
        assert told[path] <= LET_THROUGH if address == given else told[path] == {"ENOENT"}
    ledger.outcome("a link of its own GPU in by-path", release, told[paths[given, "render"]])

    node.order("watcher", ContainerOrder("main", resources={MONITORING: 1}))
    await node.running_pod("watcher")
    said = await node.said("watcher")
    assert said["env"]["GPUPLUG_GPUS"] == f"{ONE},{OTHER}"
    told = results(said)
    nodes = {f"/dev/dri/{name}" for address in (ONE, OTHER) for name in machine.nodes_of(address)}
    assert nodes <= set(told)
    assert set.union(*(told[path] for path in nodes)) <= LET_THROUGH
    ledger.outcome("all GPUs, for monitoring", release, set.union(*(told[path] for path in nodes)))
