"""The StatusReport as a document for machines: the JSON of ``gpuplug status --json``.

README.md in this folder describes every field; within one version of the schema fields are added and
none is removed or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpuplug.observe.status import GpuStatus, Held, StatusReport

SCHEMA: Final = "gpuplug.status/v1"


def status_document(status: StatusReport) -> dict[str, Any]:
    """Make the document; it has only what JSON has."""
    return {
        "schema": SCHEMA,
        "agree": status.agree,
        "kubelet_tells_devices": status.told,
        "resources": [
            {
                "name": resource.name,
                "gpus": resource.gpus,
                "devices": resource.devices,
                "healthy": resource.healthy,
                "at_kubelet": resource.offered,
                "held": resource.held,
                "free": resource.free,
            }
            for resource in status.resources
        ],
        "gpus": [_gpu(gpu) for gpu in status.gpus],
        "refused": [
            {"address": gpu.address, "code": gpu.refusal.code.value} for gpu in status.refused if gpu.refusal
        ],
        "disagreements": [
            {
                "code": one.code.value,
                "resource": one.resource,
                "about": list(one.about),
                "reason": one.reason,
                "advice": one.advice,
            }
            for one in status.disagreements
        ],
        "monitoring": [
            {"name": one.name, "at_kubelet": one.offered, "held": [_held(held) for held in one.held]}
            for one in status.monitoring
        ],
        "others": [
            {"name": other.name, "at_kubelet": other.offered if status.told else None, "held": other.held}
            for other in status.others
        ],
    }


def _gpu(gpu: GpuStatus) -> dict[str, Any]:
    return {
        "address": gpu.address,
        "resource": gpu.resource,
        "state": gpu.state,
        "reason": gpu.reason or None,
        "devices": gpu.shares,
        "at_kubelet": gpu.offered,
        "free": gpu.free,
        "held": [_held(held) for held in gpu.held],
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "device": held.device,
        "share": held.share,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
    }
