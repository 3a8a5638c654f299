"""AMD's driver keeps to what every driver must do, with each of its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpuplug_amdgpu

from gpuplug.testing import make_gpu
from gpuplug.testing.conformance import Conformance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplug import Gpu

GPU = "/sys/bus/pci/drivers/amdgpu/0000:03:00.0"
MODES = {f"{GPU}/current_compute_partition": "CPX", f"{GPU}/current_memory_partition": "NPS4"}
TOPOLOGY = {
    "/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 48\ndrm_render_minor 0\n",
    "/sys/class/kfd/kfd/topology/nodes/1/properties": "location_id 768\ndomain 0\ndrm_render_minor 129\n",
}
NAVI = make_gpu("amdgpu", vendor=0x1002, device=0x744C, companions=["/dev/kfd"], numa_node=0)
INSTINCT = make_gpu("amdgpu", vendor=0x1002, device=0x74A0, attributes=MODES | TOPOLOGY)
PARTITION = make_gpu(
    "",
    "amdgpu_xcp_0",
    bus="platform",
    nodes=["card1", "renderD129"],
    attributes=MODES | TOPOLOGY,
    companions=["/dev/kfd"],
)
IDLE = make_gpu("", "amdgpu_xcp_6", bus="platform", nodes=["renderD135"], attributes=MODES | TOPOLOGY)
UNKNOWN = make_gpu("", "amdgpu_xcp_6", bus="platform", nodes=["renderD135"], attributes=MODES)
OTHERS = (make_gpu("radeon", vendor=0x1002), make_gpu("", "vgem", bus="platform"))


class TestAmdgpu(Conformance):
    driver = gpuplug_amdgpu
    gpus = (NAVI, INSTINCT)
    declined: Sequence[Gpu] = (IDLE, UNKNOWN)
    others = OTHERS


class TestAmdgpuWithMixedNames(TestAmdgpu):
    options = {"resource-naming-strategy": "mixed", "partitions": "all"}  # noqa: RUF012 - read only
    declined = ()


class TestAmdgpuWithoutPartitions(TestAmdgpu):
    options = {"partitions": "none"}  # noqa: RUF012 - read only
    declined = (PARTITION, IDLE, UNKNOWN)
