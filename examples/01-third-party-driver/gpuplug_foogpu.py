"""GPUs on the kernel driver ``foogpu``, as the resource ``gpu.example.com/foo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplug import Verdict, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplug import Device, Gpu

GPUPLUG_HOOKS = 1


@hookimpl
def gpuplug_sysfs_attributes() -> list[str]:
    """Ask for a file of the GPU's in /sys; gpuplug reads it."""
    return ["foo_state"]


@hookimpl
def gpuplug_resource_name(gpu: Gpu) -> str | None:
    """Claim every GPU that this kernel driver is bound to."""
    return "gpu.example.com/foo" if gpu.kernel_driver == "foogpu" else None


@hookimpl
def gpuplug_health(gpu: Gpu) -> Verdict | None:
    """Keep a GPU whose firmware has stopped from pods, until it runs again."""
    if gpu.attributes.get("foo_state") == "halted":
        return Verdict(healthy=False, reason="its firmware has stopped")
    return None


@hookimpl
def gpuplug_envs(devices: Sequence[Device]) -> dict[str, str]:
    """Tell libfoo which GPUs the container has."""
    return {"FOO_VISIBLE_GPUS": ",".join(sorted({device.gpu.address for device in devices}))}
