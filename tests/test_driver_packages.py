"""The driver packages of this repository together, in a real ``gpuplug serve`` on a machine of many makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplug.testing.variants import add_amd_gpu, add_virtio_gpu
from tests.running import running_kubelet
from tests.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplug.testing import FakeKubelet, Machine

I915, AMD, VIRTIO, MALI = "0000:00:02.0", "0000:03:00.0", "0000:05:00.0", "fd940000.gpu"


def build(machine: Machine) -> None:
    machine.add_device("kfd")
    machine.add_gpu(I915)
    machine.add_gpu(AMD, driver="amdgpu", vendor=0x1002, device=0x744C)
    add_virtio_gpu(machine, VIRTIO)
    machine.add_gpu(MALI, bus="platform", driver="panfrost", card=False)
    machine.add_gpu("0000:06:00.0", driver="ast", vendor=0x1A03, device=0x2000, render=False)


async def paths(kubelet: FakeKubelet, resource: str, address: str) -> list[str]:
    answer = (await kubelet.allocate(resource, [[address]])).container_responses[0]
    return [spec.container_path for spec in answer.devices]


async def test_each_gpu_goes_to_its_own_package_and_the_named_rest_to_the_fallback(
    machine: Machine, kubelet_dir: Path
) -> None:
    build(machine)
    named = "--drm-kernel-drivers=amdgpu,i915,panfrost,virtio_gpu"
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir, named) as serve:
        for resource, address in (
            ("gpu.intel.com/i915", I915),
            ("amd.com/gpu", AMD),
            ("gpuplug.dev/panfrost", MALI),
            ("gpuplug.dev/virtio_gpu", VIRTIO),
        ):
            await kubelet.wait_for_devices(resource, {address}, within=20)
        for resource, address, nodes in (
            ("gpu.intel.com/i915", I915, ["/dev/dri/card0", "/dev/dri/renderD128"]),
            ("amd.com/gpu", AMD, ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"]),
            ("gpuplug.dev/panfrost", MALI, ["/dev/dri/renderD131"]),
            ("gpuplug.dev/virtio_gpu", VIRTIO, ["/dev/dri/card2", "/dev/dri/renderD130"]),
        ):
            assert await paths(kubelet, resource, address) == nodes
        assert "no driver package claims kernel driver ast" in serve.log
        assert "both claim" not in serve.log
        machine.rebind(AMD, "vfio-pci", card=False, render=False)
        machine.rebind(I915, "amdgpu")
        await kubelet.wait_for_devices("amd.com/gpu", {I915}, within=20)
        await kubelet.wait_for_devices("gpu.intel.com/i915", set(), within=20)


async def test_partitions_are_offered_as_far_as_they_are_in_use(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_device("kfd")
    add_amd_gpu(machine, compute="DPX", memory="NPS1", in_use=2)
    mixed = "--amdgpu-resource-naming-strategy=mixed"
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir, mixed) as serve:
        await kubelet.wait_for_devices("amd.com/dpx_nps1", {AMD, "amdgpu_xcp_0"}, within=20)
        given = await paths(kubelet, "amd.com/dpx_nps1", "amdgpu_xcp_0")
        assert given == ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"]
        assert serve.log.count("does not offer it") == 6
