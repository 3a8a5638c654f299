"""The Report as a document for machines: the JSON of ``gpuplug inspect --json``.

README.md in this folder describes every field; within one version of the schema fields are added and
none is removed or changed.
"""

from __future__ import annotations

import io
import json
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpuplug.core.identity import device_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplug.host.names import Access, PciName
    from gpuplug.model import DrmNode, Offer
    from gpuplug.observe.refusals import Refusal
    from gpuplug.observe.report import GpuReport, Report, ResourceReport

SCHEMA: Final = "gpuplug.report/v1"


@dataclass(frozen=True, slots=True)
class Details:
    """What a person wants to read besides: looked up only for a command."""

    access: Mapping[str, Access] = field(default_factory=dict)
    """Who may open a node, by the node's name."""
    names: Mapping[tuple[int, int], PciName] = field(default_factory=dict)
    """Names of PCI ids."""


def document(report: Report, details: Details) -> dict[str, Any]:
    """Make the document; it has only what JSON has."""
    return _document(report, [_gpu(gpu, details) for gpu in report.gpus])


def encoded(report: Report, details: Details) -> bytes:
    """Make the document as JSON on one line, GPU by GPU: a node may have many, and memory is dear there."""
    # No text of a value has these characters in it: its quotation marks are escaped.
    before, gpus, after = json.dumps(_document(report, [])).partition('"gpus": []')
    text = io.BytesIO()
    text.write(f"{before}{gpus.removesuffix(']')}".encode())
    for number, gpu in enumerate(report.gpus):
        text.write(f"{', ' if number else ''}{json.dumps(_gpu(gpu, details))}".encode())
    text.write(f"]{after}\n".encode())
    return text.getvalue()


def _document(report: Report, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "advertised": bool(report.advertised),
        "resources": [_resource(resource) for resource in report.resources],
        "gpus": gpus,
        "nothing": _refusal(report.nothing),
        "drivers": [
            {
                "name": driver.name,
                "package": driver.package or None,
                "problem": driver.problem or None,
                "options": [{"option": option, "value": value} for option, value in driver.options],
            }
            for driver in report.drivers
        ],
        "problems": list(report.problems),
        "machine": {
            "drm_class": report.around.drm_class,
            "dxg": report.around.dxg,
            "gpu_modules": sorted(report.around.modules),
        },
    }


def _resource(resource: ResourceReport) -> dict[str, Any]:
    serving = resource.serving
    return {
        "name": resource.name,
        "gpus": resource.gpus,
        "devices": resource.devices,
        "healthy": resource.healthy,
        "kubelet": None
        if serving is None
        else {"streaming": serving.streaming, "phase": serving.phase, "reason": serving.reason or None},
    }


def _gpu(gpu: GpuReport, details: Details) -> dict[str, Any]:
    return {
        "address": gpu.address,
        "bus": gpu.bus or None,
        "pci": _pci(gpu, details),
        "kernel_driver": gpu.kernel_driver or None,
        "numa_node": gpu.numa_node,
        "sriov": {
            "role": role(gpu),
            "physical_function": gpu.physical_function or None,
            "virtual_functions": gpu.virtual_functions,
            "total_functions": gpu.total_functions,
        },
        "nodes": [_node(node, details.access.get(node.name)) for node in gpu.nodes],
        "missing_nodes": list(gpu.missing),
        "advertised": None if gpu.offer is None else _offer(gpu, gpu.offer),
        "refused": _refusal(gpu.refusal),
    }


def role(gpu: GpuReport) -> str | None:
    """Name the SR-IOV role: ``pf`` (virtual functions are turned on), ``vf``, or ``None``."""
    if gpu.physical_function:
        return "vf"
    return "pf" if gpu.virtual_functions else None


def _pci(gpu: GpuReport, details: Details) -> dict[str, Any] | None:
    if gpu.vendor is None or gpu.device is None:
        return None
    name = details.names.get((gpu.vendor, gpu.device))
    return {
        "vendor": f"{gpu.vendor:04x}",
        "device": f"{gpu.device:04x}",
        "class": None if gpu.pci_class is None else f"{gpu.pci_class:06x}",
        "vendor_name": name.vendor or None if name else None,
        "device_name": name.device or None if name else None,
    }


def _node(node: DrmNode, access: Access | None) -> dict[str, Any]:
    return {
        "path": node.path,
        "render": node.is_render,
        "mode": None if access is None else f"{stat.S_IMODE(access.mode):04o}",
        "uid": None if access is None else access.uid,
        "gid": None if access is None else access.gid,
        "user": None if access is None else access.user or None,
        "group": None if access is None else access.group or None,
    }


def _offer(gpu: GpuReport, offer: Offer) -> dict[str, Any]:
    return {
        "resource": gpu.resource,
        "driver": offer.driver,
        "package": gpu.package or None,
        "shares": offer.shares,
        "first_device": device_id(gpu.address, 0),
        "last_device": device_id(gpu.address, offer.shares - 1),
        "healthy": offer.verdict.healthy,
        "health_reason": offer.verdict.reason or None,
    }


def _refusal(refusal: Refusal | None) -> dict[str, Any] | None:
    if refusal is None:
        return None
    return {"code": refusal.code.value, "reason": refusal.reason, "advice": refusal.advice}
