"""AMD's GPUs and their partitions, as literals: what is claimed, under which name, and with which nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import gpuplug_amdgpu as driver
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug import CompanionNode, Declined, DeviceSpec, DrmNode, Gpu, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

A, B = "0000:03:00.0", "0001:c1:1f.7"
CARD = DrmNode("card1", "/dev/dri/card1", "/host/dev/dri/card1", 226, 1)
RENDER = DrmNode("renderD129", "/dev/dri/renderD129", "/host/dev/dri/renderD129", 226, 129)
KFD = CompanionNode("/dev/kfd", "/host/dev/kfd", 511, 0)
NAVI = Gpu(A, "pci", "amdgpu", (CARD, RENDER), vendor=0x1002, device=0x744C, pci_class=0x030000)
PARTITION = Gpu("amdgpu_xcp_0", "platform", "", (CARD, RENDER))


def settings(strategy: str = "single", partitions: str = "listed") -> Settings:
    return Settings(options={"resource-naming-strategy": strategy, "partitions": partitions})


def modes(address: str, compute: str, memory: str) -> dict[str, str]:
    folder = f"/sys/bus/pci/drivers/amdgpu/{address}"
    return {f"{folder}/current_compute_partition": compute, f"{folder}/current_memory_partition": memory}


def topology(number: int, minor: int, location: int = 0x300, domain: int = 0) -> dict[str, str]:
    """Describe a node of KFD's topology, with some of the lines that it has besides."""
    text = (
        f"cpu_cores_count 0\nsimd_count 912\nlocation_id {location}\ndomain {domain}\n"
        f"drm_render_minor {minor}\nhive_id 9034655720432782706\nunique_id 11940228331418201223\n"
    )
    return {f"/sys/class/kfd/kfd/topology/nodes/{number}/properties": text}


CPU = topology(0, 0, 0)


def name(gpu: Gpu, chosen: Settings, *attributes: Mapping[str, str]) -> str | Declined | None:
    merged = {path: text for some in attributes for path, text in some.items()}
    return driver.gpuplug_resource_name(replace(gpu, attributes=merged), chosen)


# whole GPUs


@pytest.mark.parametrize("bus", ["pci", "platform"])
@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_a_gpu_is_claimed_by_its_kernel_driver_on_any_bus(bus: str, strategy: str) -> None:
    assert name(replace(NAVI, bus=bus), settings(strategy)) == "amd.com/gpu"


@pytest.mark.parametrize("kernel_driver", ["", "radeon", "vfio-pci", "i915", "amdgpu2", "AMDGPU"])
def test_a_gpu_of_amd_on_another_kernel_driver_is_not_claimed(kernel_driver: str) -> None:
    assert name(replace(NAVI, kernel_driver=kernel_driver), settings()) is None


def test_a_container_gets_the_card_the_render_node_and_kfd_where_it_is_there() -> None:
    own = [DeviceSpec(n.path, n.host_path) for n in (CARD, RENDER)]
    kfd = DeviceSpec("/dev/kfd", "/host/dev/kfd", "rw")
    assert driver.gpuplug_companion_nodes() == ["/dev/kfd"]
    assert driver.gpuplug_device_specs(NAVI) == own
    with_kfd = replace(NAVI, companions={"/dev/kfd": KFD, "/dev/other": replace(KFD, path="/dev/other")})
    assert driver.gpuplug_device_specs(with_kfd) == [*own, kfd]
    assert driver.gpuplug_device_specs(replace(with_kfd, nodes=(RENDER,))) == [own[1], kfd]


# names


@pytest.mark.parametrize(
    ("strategy", "expected"), [("single", "amd.com/gpu"), ("mixed", "amd.com/cpx_nps4")], ids=str
)
def test_the_mixed_strategy_names_a_gpu_after_its_partition_modes(strategy: str, expected: str) -> None:
    others = modes(B, "SPX", "NPS1")
    assert name(NAVI, settings(strategy), modes(A, "CPX", "NPS4"), others) == expected


@pytest.mark.parametrize(
    ("compute", "memory"),
    [("UNKNOWN", "NPS1"), ("SPX", "UNKNOWN"), ("", "NPS1"), ("SPX", ""), ("../", "NPS1")],
)
def test_a_mode_that_is_no_mode_does_not_become_a_name(compute: str, memory: str) -> None:
    assert name(NAVI, settings("mixed"), modes(A, compute, memory)) == "amd.com/gpu"


# partitions


@pytest.mark.parametrize("address", ["amdgpu_xcp_0", "amdgpu_xcp_27", "amdgpu_xcp.3"])
@pytest.mark.parametrize("wanted", ["listed", "all"])
def test_a_partition_that_kfd_lists_is_claimed_and_has_the_modes_of_its_gpu(
    address: str, wanted: str
) -> None:
    seen = [CPU, topology(4, 128), topology(5, 129, 1 << 28 | 0xC1FF, 1)]
    both = [modes(A, "SPX", "NPS1"), modes(B, "CPX", "NPS4")]
    gpu = replace(PARTITION, address=address)
    assert name(gpu, settings("single", wanted), *seen, *both) == "amd.com/gpu"
    assert name(gpu, settings("mixed", wanted), *seen, *both) == "amd.com/cpx_nps4"


def test_a_partition_that_kfd_does_not_list_is_declined() -> None:
    said = name(PARTITION, settings(), CPU, topology(4, 128), modes(A, "CPX", "NPS1"))
    assert said == Declined("it is a partition that is not in use in the mode that its GPU is in")


def test_a_confined_process_sees_no_topology_and_tells_by_the_modes_where_they_suffice() -> None:
    whole = [CPU, modes(A, "SPX", "NPS1"), modes(B, "SPX", "NPS1")]
    said = name(PARTITION, settings(), *whole)
    assert said == Declined("it is a partition that is not in use in the mode that its GPU is in")
    said = name(PARTITION, settings(), CPU, modes(A, "CPX", "NPS1"), modes(B, "SPX", "NPS1"))
    assert isinstance(said, Declined)
    assert "is not known" in said.reason
    assert "--amdgpu-partitions=all" in said.reason
    assert isinstance(name(PARTITION, settings()), Declined)


def test_the_operator_may_offer_partitions_unseen() -> None:
    alike = [modes(A, "CPX", "NPS1"), modes(B, "CPX", "NPS1")]
    assert name(PARTITION, settings("mixed", "all"), *alike) == "amd.com/cpx_nps1"
    assert name(PARTITION, settings("single", "all"), *alike) == "amd.com/gpu"
    differing = [modes(A, "CPX", "NPS1"), modes(B, "DPX", "NPS1")]
    assert name(PARTITION, settings("mixed", "all"), *differing) == "amd.com/gpu"
    assert name(PARTITION, settings("mixed", "all")) == "amd.com/gpu"


def test_the_operator_may_offer_no_partitions() -> None:
    assert isinstance(name(PARTITION, settings(partitions="none"), topology(1, 129)), Declined)
    assert name(NAVI, settings(partitions="none")) == "amd.com/gpu"


@pytest.mark.parametrize(
    "gpu",
    [
        replace(PARTITION, bus="pci"),
        replace(PARTITION, kernel_driver="panfrost"),
        replace(PARTITION, address="amdgpu_xcp_"),
        replace(PARTITION, address="amdgpu_xcp_1x"),
        replace(PARTITION, address="vgem"),
    ],
)
def test_what_only_resembles_a_partition_is_left_alone(gpu: Gpu) -> None:
    assert name(gpu, settings(), topology(1, 129)) is None


@given(text=st.text() | st.binary(max_size=40).map(lambda b: f"drm_render_minor {b!r}\nlocation_id 1\n"))
def test_a_topology_of_nonsense_lists_nothing(text: str) -> None:
    nonsense = {"/sys/class/kfd/kfd/topology/nodes/7/properties": text}
    assert isinstance(name(PARTITION, settings(), nonsense), Declined)


def test_what_is_asked_of_sysfs_is_what_the_decisions_are_made_of() -> None:
    assert set(driver.gpuplug_sysfs_attributes()) == {
        "/sys/class/kfd/kfd/topology/nodes/*/properties",
        "/sys/bus/pci/drivers/amdgpu/*/current_compute_partition",
        "/sys/bus/pci/drivers/amdgpu/*/current_memory_partition",
    }
