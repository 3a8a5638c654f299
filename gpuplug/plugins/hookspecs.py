"""The hooks of a Driver: what a package may say about the GPUs that it serves.

Every hook is synchronous and pure: the core reads sysfs, the driver decides. A hook
that a driver leaves out has a default. Each Driver is asked about the GPUs that it
claimed, and nothing it does can cost more than those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplug.model import Declined, Device, DeviceSpec, Gpu, Mount, Verdict
    from gpuplug.options import DriverOption
    from gpuplug.settings import Settings

PROJECT: Final = "gpuplug"
"""The entry-point group, and pluggy's project name."""

VERSION: Final = 1
"""The version of the hooks, which a driver may state as ``GPUPLUG_HOOKS``.

It grows by one with every hook, argument or field that is added, so that a driver that needs it can
say so; what is there stays as it is.
"""
OLDEST: Final = 1
"""The oldest version whose drivers still work: it grows only if something is taken away or changed."""
UNSTATED: Final = 1
"""The version that a driver is taken to be written for if it states none."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a driver module as a hook."""


@hookspec
def gpuplug_sysfs_attributes() -> Iterable[str]:
    """Name the sysfs attributes that the driver wants in ``gpu.attributes``.

    Paths or globs, relative to the GPU's bus device; asked once, when the driver is loaded. One
    that begins with ``/sys/`` is read from there, once for all GPUs, and is found under its full path.
    Example: ``return ["sriov_numvfs", "drm/card*/lmem_total_bytes", "/sys/module/foogpu/version"]``
    """
    return ()


@hookspec
def gpuplug_companion_nodes() -> Iterable[str]:
    """Name device nodes outside /dev/dri that containers need as well, for ``gpu.companions``.

    Paths below /dev, without wildcards; asked once, when the driver is loaded. Those that are
    there as character devices are in ``gpu.companions``; none is handed out by itself.
    Example: ``return ["/dev/kfd"]``
    """
    return ()


@hookspec
def gpuplug_options() -> Iterable[DriverOption]:
    """Declare the options of the driver: ``--<driver>-<name>``, and ``GPUPLUG_<DRIVER>_<NAME>``.

    Asked once, when the driver is loaded. What the operator chose, or the default, is in
    ``settings.options[name]`` of every other hook.
    Example: ``return [DriverOption("memory", int, 0, "GiB that a GPU must have")]``
    """
    return ()


@hookspec(firstresult=True)
def gpuplug_resource_name(gpu: Gpu, settings: Settings) -> str | Declined | None:  # noqa: ARG001
    """Claim the GPU by naming its resource, ``domain/name``; ``None`` says "not mine".

    ``Declined(reason)`` says "mine, and not to be advertised". A driver that marks its implementation
    with ``@hookimpl(trylast=True)`` is a fallback: it is asked only about GPUs that no other driver
    claims or declines.
    Example: ``return "gpu.intel.com/xe" if gpu.kernel_driver == "xe" else None``
    """
    return None


@hookspec(firstresult=True)
def gpuplug_device_specs(gpu: Gpu, settings: Settings) -> Sequence[DeviceSpec] | None:  # noqa: ARG001
    """Say which nodes a container gets; the default is every DRM node present, ``rw``.

    Example: ``return [DeviceSpec(n.path, n.host_path) for n in gpu.nodes if n.is_render]``
    """
    return None


@hookspec(firstresult=True)
def gpuplug_mounts(gpu: Gpu, settings: Settings) -> Sequence[Mount] | None:  # noqa: ARG001
    """Say which mounts a container gets besides; the default is none.

    Example: ``return [Mount("/usr/lib/foogpu", "/usr/lib/foogpu")]``
    """
    return None


@hookspec(firstresult=True)
def gpuplug_envs(devices: Sequence[Device], settings: Settings) -> Mapping[str, str] | None:  # noqa: ARG001
    """Say which environment variables a container with these Devices gets.

    The default is ``GPUPLUG_GPUS`` and ``GPUPLUG_RENDER_NODES``; what is returned is added to it.
    Example: ``return {"FOOGPU_COUNT": str(len({d.gpu.address for d in devices}))}``
    """
    return None


@hookspec(firstresult=True)
def gpuplug_health(gpu: Gpu, settings: Settings) -> Verdict | None:  # noqa: ARG001
    """Judge the GPU's health; the default is healthy while all its nodes are present.

    Example: ``return Verdict(gpu.attributes.get("wedged") != "1", "the GPU is wedged")``
    """
    return None
