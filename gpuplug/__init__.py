"""gpuplug: GPUs as schedulable Kubernetes resources.

This module is all that the author of a driver package imports, and nothing else.
"""

from gpuplug.core.identity import is_resource_name
from gpuplug.errors import DriverError, GpuplugError
from gpuplug.model import (
    CompanionNode,
    Declined,
    Device,
    DeviceId,
    DeviceSpec,
    DrmNode,
    Gpu,
    Mount,
    Verdict,
)
from gpuplug.options import DriverOption
from gpuplug.plugins.hookspecs import hookimpl
from gpuplug.settings import Settings

__all__ = [
    "CompanionNode",
    "Declined",
    "Device",
    "DeviceId",
    "DeviceSpec",
    "DriverError",
    "DriverOption",
    "DrmNode",
    "Gpu",
    "GpuplugError",
    "Mount",
    "Settings",
    "Verdict",
    "hookimpl",
    "is_resource_name",
]
