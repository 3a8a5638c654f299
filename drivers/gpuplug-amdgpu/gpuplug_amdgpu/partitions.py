"""Which compute partitions are in use, and of which GPU: told by the kernel, never by counting.

The kernel makes seven platform devices for each GPU that can be partitioned, whatever its mode is
(``MAX_XCP`` in amdgpu_xcp.h): ``amdgpu_xcp_0`` and so on, ``amdgpu_xcp.0`` in older kernels. They have
DRM nodes and no kernel driver, and nothing in their sysfs leads to the GPU; to open the render node of
one that is not in use is an error (``amdgpu_xcp_open_device``). The first partition is the GPU itself.

KFD lists what is in use: each of its topology nodes has the minor of its render node, and where on the
PCI bus it is. It shows a node only to those whose device cgroup allows that render node
(``kfd_devcgroup_check_permission``), so not to a confined container. The modes can be read by all.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gpuplug import Declined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplug import Gpu

_TOPOLOGY: Final = "/sys/class/kfd/kfd/topology/nodes/"
_GPUS: Final = "/sys/bus/pci/drivers/amdgpu/"
_COMPUTE: Final = "current_compute_partition"
_MEMORY: Final = "current_memory_partition"
ATTRIBUTES: Final = (f"{_TOPOLOGY}*/properties", f"{_GPUS}*/{_COMPUTE}", f"{_GPUS}*/{_MEMORY}")
"""The sysfs attributes that tell of partitions."""

_NAME: Final = re.compile(r"amdgpu_xcp[._][0-9]+", re.ASCII)
_MODE: Final = re.compile(r"[A-Z]{3}", re.ASCII)
"""SPX, DPX, TPX, QPX, CPX: one to all of the GPU's dies in a partition (amdgpu_gfx.c)."""
_NPS: Final = re.compile(r"NPS[1-9]", re.ASCII)
_WHOLE: Final = "SPX"
_PROPERTY: Final = re.compile(
    r"^(drm_render_minor|location_id|domain) ([0-9]{1,10})$", re.ASCII | re.MULTILINE
)


def is_partition(gpu: Gpu) -> bool:
    """Tell whether this is a compute partition, other than a GPU's first one."""
    return gpu.bus == "platform" and not gpu.kernel_driver and bool(_NAME.fullmatch(gpu.address))


def parent_of(gpu: Gpu, wanted: str) -> str | Declined:
    """Return the address of the partition's GPU, empty where it is not known; or why it is not offered.

    :param wanted: the option ``partitions``.
    """
    if wanted == "none":
        return Declined("--amdgpu-partitions is none")
    listed = dict(filter(None, (_listed(text) for text in _below(gpu, _TOPOLOGY).values())))
    parents = [listed[node.name] for node in gpu.nodes if node.name in listed]
    if parents:
        return parents[0]
    if wanted == "all":
        return ""
    modes = set(_below(gpu, _GPUS, _COMPUTE).values())
    if listed or modes == {_WHOLE}:
        return Declined("it is a partition that is not in use in the mode that its GPU is in")
    return Declined(
        f"whether this partition is in use is not known: {_TOPOLOGY} shows no GPU, as in a container that"
        " may not open them; --amdgpu-partitions=all offers it nonetheless"
    )


def mode_of(gpu: Gpu, parent: str) -> str:
    """Name the partition modes of a GPU as AMD's plugin does, ``cpx_nps4``; empty where it has none.

    :param parent: the address of the GPU; empty where it is not known, which all GPUs of one mode answer.
    """
    if parent:
        return _mode(gpu, parent)
    modes = {_mode(gpu, path.split("/")[-2]) for path in _below(gpu, _GPUS, _COMPUTE)}
    return modes.pop() if len(modes) == 1 else ""


def _mode(gpu: Gpu, address: str) -> str:
    compute = gpu.attributes.get(f"{_GPUS}{address}/{_COMPUTE}", "")
    memory = gpu.attributes.get(f"{_GPUS}{address}/{_MEMORY}", "")
    if not _MODE.fullmatch(compute) or not _NPS.fullmatch(memory):
        return ""
    return f"{compute}_{memory}".lower()


def _below(gpu: Gpu, folder: str, name: str = "") -> Mapping[str, str]:
    """Give the attributes from a folder of sysfs, or those of them with this file name."""
    return {
        path: text
        for path, text in gpu.attributes.items()
        if path.startswith(folder) and path.endswith(f"/{name}" if name else "")
    }


@lru_cache(maxsize=256)
def _listed(properties: str) -> tuple[str, str] | None:
    """Read the render node and the PCI address out of a topology node; ``None`` for one of a CPU."""
    found = {key: int(value) for key, value in _PROPERTY.findall(properties)}
    minor, location = found.get("drm_render_minor", 0), found.get("location_id")
    if not minor or location is None:
        return None
    # The upper half of location_id has the number of the partition (kfd_topology_add_device).
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"renderD{minor}", f"{found.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"
