"""GPUs as literals: what the tests of a driver ask it about."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplug.model import CompanionNode, DrmNode, Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DRM_MAJOR: Final = 226


def make_node(name: str, prefix: str = "") -> DrmNode:
    """Make a node by its name, such as ``card0`` or ``renderD128``.

    :param prefix: the folder that stands for ``/``, as with ``--prefix``.
    """
    number = int(name.removeprefix("card").removeprefix("renderD"))
    return DrmNode(name, f"/dev/dri/{name}", f"{prefix}/dev/dri/{name}", DRM_MAJOR, number)


def make_gpu(  # noqa: PLR0913 - a GPU has that many properties, all but one with a default
    kernel_driver: str,
    address: str = "0000:03:00.0",
    *,
    bus: str = "pci",
    nodes: Iterable[str] = ("card0", "renderD128"),
    missing: Iterable[str] = (),
    vendor: int | None = None,
    device: int | None = None,
    numa_node: int | None = None,
    attributes: Mapping[str, str] | None = None,
    companions: Iterable[str] = (),
    prefix: str = "",
) -> Gpu:
    """Make a GPU; all that is not said is as on a machine with one GPU.

    :param nodes: names of the nodes that it has.
    :param missing: names of nodes that sysfs lists and /dev/dri does not have.
    :param attributes: what sysfs has of what the driver asks for.
    :param companions: paths of the nodes outside /dev/dri that the machine has, such as ``/dev/kfd``.
    :param prefix: the folder that stands for ``/``, as with ``--prefix``.
    """
    return Gpu(
        address=address,
        bus=bus,
        kernel_driver=kernel_driver,
        nodes=tuple(make_node(name, prefix) for name in sorted(nodes)),
        missing=tuple(missing),
        vendor=vendor,
        device=device,
        pci_class=0x030000 if bus == "pci" else None,
        numa_node=numa_node,
        attributes=MappingProxyType(dict(attributes or {})),
        companions=MappingProxyType(
            {path: CompanionNode(path, f"{prefix}{path}", 500, n) for n, path in enumerate(companions)}
        ),
    )
