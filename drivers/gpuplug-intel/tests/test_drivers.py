"""Intel's GPUs are claimed by kernel driver, whatever else is true of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpuplug_intel import i915, xe

from gpuplug import Gpu

if TYPE_CHECKING:
    from types import ModuleType

DRIVERS = {"i915": i915, "xe": xe}


@pytest.mark.parametrize(("name", "module"), DRIVERS.items())
@pytest.mark.parametrize(
    "gpu",
    [
        Gpu("0000:03:00.0", "pci", "", (), vendor=0x8086, device=0x56A0, pci_class=0x030000),
        Gpu("0000:00:02.0", "pci", "", (), vendor=0x8086, device=0x9A49, pci_class=0x030000, numa_node=0),
        Gpu("0000:03:00.0", "pci", "", (), vendor=0x8086, device=0x0BDA, pci_class=0x038000),
        Gpu("10000:e1:00.0", "pci", "", ()),
        Gpu("i915.0", "platform", "", ()),
    ],
    ids=lambda gpu: f"{gpu.address}-{gpu.device}",
)
def test_a_gpu_is_claimed_by_its_kernel_driver_on_any_bus(name: str, module: ModuleType, gpu: Gpu) -> None:
    bound = Gpu(gpu.address, gpu.bus, name, gpu.nodes, (), gpu.vendor, gpu.device, gpu.pci_class)
    assert module.gpuplug_resource_name(bound) == f"gpu.intel.com/{name}"


@pytest.mark.parametrize("module", DRIVERS.values())
@pytest.mark.parametrize("kernel_driver", ["", "amdgpu", "vfio-pci", "virtio-pci", "i915x", "I915", "xe2"])
def test_an_intel_gpu_on_another_kernel_driver_is_not_claimed(module: ModuleType, kernel_driver: str) -> None:
    gpu = Gpu("0000:03:00.0", "pci", kernel_driver, (), vendor=0x8086, device=0x56A0, pci_class=0x030000)
    assert module.gpuplug_resource_name(gpu) is None


def test_a_gpu_that_is_bound_to_xe_leaves_i915() -> None:
    gpu = Gpu("0000:03:00.0", "pci", "xe", ())
    assert i915.gpuplug_resource_name(gpu) is None
    assert xe.gpuplug_resource_name(gpu) == "gpu.intel.com/xe"
