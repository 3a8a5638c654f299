"""Values that tests start from, each with a default for all that the test does not care about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplug.model import HEALTHY, DeviceSpec, DrmNode, Gpu, Offer, Resource, ResourceName, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

A, B, C = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"
I915, XE = ResourceName("gpu.intel.com/i915"), ResourceName("gpu.intel.com/xe")


def make_node(name: str) -> DrmNode:
    number = int(name.removeprefix("card").removeprefix("renderD"))
    return DrmNode(name, f"/dev/dri/{name}", f"/host/dev/dri/{name}", 226, number)


def make_gpu(
    address: str = A,
    *,
    driver: str = "i915",
    nodes: Sequence[str] = ("card0", "renderD128"),
    missing: Sequence[str] = (),
    numa_node: int | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Gpu:
    return Gpu(
        address,
        "pci",
        driver,
        tuple(map(make_node, nodes)),
        tuple(missing),
        vendor=0x8086,
        device=0x56A0,
        pci_class=0x030000,
        numa_node=numa_node,
        attributes=attributes or {},
    )


def make_offer(gpu: Gpu | None = None, *, shares: int = 1, verdict: Verdict = HEALTHY) -> Offer:
    gpu = make_gpu() if gpu is None else gpu
    specs = tuple(DeviceSpec(node.path, node.host_path) for node in gpu.nodes)
    return Offer(gpu, "i915", shares, specs, verdict=verdict)


def make_resource(*offers: Offer, name: ResourceName = I915) -> Resource:
    return Resource(name, offers)
