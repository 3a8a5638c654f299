"""GPUs on the kernel driver ``xe``, as ``gpu.intel.com/xe``: the name that Intel's own plugin uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplug import hookimpl

if TYPE_CHECKING:
    from gpuplug import Gpu

GPUPLUG_HOOKS: Final = 1
"""The version of the hooks that this was written for."""


@hookimpl
def gpuplug_resource_name(gpu: Gpu) -> str | None:
    """Claim by kernel driver, on any bus: user space for i915 does not run on xe, nor the reverse."""
    return "gpu.intel.com/xe" if gpu.kernel_driver == "xe" else None
