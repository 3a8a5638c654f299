"""Any DRM device by its kernel driver: for GPUs that have no driver package of their own.

Off unless kernel drivers are named, and a fallback even then: it is not asked about a GPU that another
driver claims or declines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuplug import DriverOption, hookimpl, is_resource_name

if TYPE_CHECKING:
    from gpuplug import Gpu, Settings

GPUPLUG_HOOKS: Final = 1
FIELD: Final = "{kernel_driver}"
LONGEST: Final = 32
"""Characters of a kernel driver's name, so that a template that is taken has room for all of them."""
_KERNEL_DRIVER: Final = re.compile(
    rf"(?!.{{{LONGEST + 1}}})[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII
)


def kernel_drivers(text: str) -> tuple[str, ...]:
    """Read the names of kernel drivers; raise ``ValueError`` for what cannot be one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text.strip() else ()
    for name in names:
        if not _KERNEL_DRIVER.fullmatch(name):
            raise ValueError(f"is not names of kernel drivers with commas between them: {name!r}")
    return names


def template(text: str) -> str:
    """Read the template of resource names; raise ``ValueError`` where it does not make one."""
    if not is_resource_name(filled(text, "k" * LONGEST)) or not is_resource_name(filled(text, "k")):
        raise ValueError(
            f"does not make a resource name, such as gpuplug.dev/{FIELD};"
            f" beside {FIELD}, which may be left out, the name has up to 31 letters, digits, '-', '_' and '.'"
        )
    return text


def filled(text: str, kernel_driver: str) -> str:
    """Put a kernel driver's name into the template."""
    return text.replace(FIELD, kernel_driver)


@hookimpl
def gpuplug_options() -> list[DriverOption]:
    """Declare the kernel drivers to serve, and the names of their resources."""
    return [
        DriverOption(
            "kernel-drivers", kernel_drivers, (), "DRM kernel drivers to serve, as virtio_gpu,panfrost"
        ),
        DriverOption("resource", template, f"gpuplug.dev/{FIELD}", "the resource's name, from this template"),
    ]


@hookimpl(trylast=True)
def gpuplug_resource_name(gpu: Gpu, settings: Settings) -> str | None:
    """Claim what is bound to one of the kernel drivers, on any bus, if no other driver does."""
    if gpu.kernel_driver not in settings.options["kernel-drivers"]:
        return None
    return filled(settings.options["resource"], gpu.kernel_driver)
