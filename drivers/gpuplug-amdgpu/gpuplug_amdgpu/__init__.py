"""GPUs on the kernel driver ``amdgpu``, as ``amd.com/gpu``: the name that AMD's own plugin uses.

A container gets the card and the render node, and /dev/kfd where it is there, without which ROCm
finds nothing. Compute partitions (AMD Instinct MI300 and later) are DRM devices of their own:
``gpuplug_amdgpu.partitions`` tells which of them are in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplug import Declined, DeviceSpec, DriverOption, hookimpl
from gpuplug_amdgpu.partitions import ATTRIBUTES, is_partition, mode_of, parent_of

if TYPE_CHECKING:
    from gpuplug import Gpu, Settings

GPUPLUG_HOOKS: Final = 1
KFD: Final = "/dev/kfd"
"""The way to compute on any of the GPUs; which of them, the render nodes decide (kfd_priv.h)."""


@hookimpl
def gpuplug_options() -> list[DriverOption]:
    """Declare how resources are named, and which partitions are offered."""
    return [
        DriverOption(
            "resource-naming-strategy",
            str,
            "single",
            "single: all is amd.com/gpu; mixed: named after the partition modes, as amd.com/cpx_nps4",
            ("single", "mixed"),
        ),
        DriverOption(
            "partitions",
            str,
            "listed",
            "compute partitions to offer: those that the kernel lists as in use, all, or none",
            ("listed", "all", "none"),
        ),
    ]


@hookimpl
def gpuplug_sysfs_attributes() -> tuple[str, ...]:
    """Ask for what tells of partitions."""
    return ATTRIBUTES


@hookimpl
def gpuplug_companion_nodes() -> list[str]:
    """Ask for /dev/kfd."""
    return [KFD]


@hookimpl
def gpuplug_resource_name(gpu: Gpu, settings: Settings) -> str | Declined | None:
    """Claim by kernel driver; partitions are platform devices without one, and claimed by name."""
    if gpu.kernel_driver == "amdgpu":
        parent: str | Declined = gpu.address
    elif is_partition(gpu):
        parent = parent_of(gpu, settings.options["partitions"])
    else:
        return None
    if isinstance(parent, Declined):
        return parent
    mode = mode_of(gpu, parent) if settings.options["resource-naming-strategy"] == "mixed" else ""
    return f"amd.com/{mode or 'gpu'}"


@hookimpl
def gpuplug_device_specs(gpu: Gpu) -> list[DeviceSpec]:
    """Give the GPU's own nodes, and /dev/kfd where it is there."""
    specs = [DeviceSpec(node.path, node.host_path) for node in gpu.nodes]
    kfd = gpu.companions.get(KFD)
    return specs if kfd is None else [*specs, DeviceSpec(kfd.path, kfd.host_path)]
