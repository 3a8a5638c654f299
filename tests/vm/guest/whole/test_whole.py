"""All at once, nothing left out: hotplug, a kubelet, containerd, gpuplug, and a pod that uses the GPU.

The node is the one of tests/node, with its kubelet and containerd from that suite's cache.
"""

import sys
from functools import partial

import pytest

from tests.node.harness.manifests import STAY, UNPRIVILEGED, ContainerOrder
from tests.node.harness.node import booted, build
from tests.node.harness.plugins import PLUGIN_DIR, capacity
from tests.node.harness.releases import RELEASES
from tests.node.harness.waiting import eventually
from tests.vm.guest.gpus import DRI, Gpus
from tests.vm.guest.serving import I915

_SECONDS = 240.0
"""Until a wait is given up: emulated, a kubelet takes a while to be healthy."""

pytestmark = pytest.mark.one_kernel


async def test_a_pod_opens_the_gpu_that_was_plugged_in_a_moment_before_and_outlives_its_removal(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.node.harness.node.eventually", partial(eventually, seconds=_SECONDS))
    release = RELEASES[1]
    async with booted(release, build(release)) as node:
        plugin = node.start(
            "gpuplug", [sys.executable, "-m", "gpuplug", "serve", "--kubelet-dir", PLUGIN_DIR]
        )
        await plugin.wrote("no GPU", seconds=_SECONDS)
        address = await gpus.plug(0)
        assert set(await capacity(node, I915, 1, seconds=_SECONDS)) == {address}
        for path in DRI.iterdir():
            path.chmod(0o666)
        node.order("with", ContainerOrder("main", resources={I915: 1}))
        node.order("without", ContainerOrder("main", STAY, host_paths={"/dev/dri": str(DRI)}))

        before = await node.running_pod("with")
        said = await node.said("with")
        assert said["uid"] == UNPRIVILEGED
        assert {each["path"] for each in said["attempts"]} == {str(path) for path in DRI.iterdir()}
        assert {each["result"] for each in said["attempts"]} == {"OK"}
        await node.running_pod("without")
        assert {each["result"] for each in (await node.said("without"))["attempts"]} == {"EPERM"}

        await gpus.unplug(0)
        await capacity(node, I915, 0, seconds=_SECONDS)
        after = await node.running_pod("with")
        assert after.containers["main"].id == before.containers["main"].id
