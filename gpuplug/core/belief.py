"""What the kubelet says of Devices, through its pod-resources API: which there are, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A container that holds Devices of one resource."""

    namespace: str
    pod: str
    """A static pod's name ends with that of the node."""
    container: str
    resource: str
    devices: tuple[str, ...]
    """Device ids, sorted; those of Devices that are gone are still there."""


@dataclass(frozen=True, slots=True)
class Belief:
    """All that the kubelet says, at one moment."""

    allocatable: Mapping[str, Mapping[str, frozenset[int]]] | None = None
    """Resource → Device id → NUMA nodes, none where none was told; what is unhealthy is not there.

    ``None`` where the kubelet does not say what it can give out.
    """
    holders: tuple[Holder, ...] = ()
    """Sorted; before Kubernetes 1.34 with pods that have ended."""
