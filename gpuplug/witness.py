"""Whoever wants to know what happens while the node's GPUs are served.

The story and the endpoints tell a ``Witness`` what they do; this one does nothing with it, and is
the one that ``gpuplug serve`` has unless ``--listen`` asks for more. Every method is called in the
event loop, and must be quick and never fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpuplug.model import Inventory, Resource, ResourceName, Surroundings

Registration = Literal["streaming", "refused", "no_stream"]
"""What came of a Register: a stream, an error or no answer, or an answer and no stream."""


class Witness:
    """A witness that keeps nothing."""

    __slots__ = ()

    def looked(self, inventory: Inventory, asked: float) -> None:
        """See what the machine has; told after each look, also where nothing is different.

        :param asked: when the look was asked for, on the monotonic clock.
        """

    def surveyed(self, around: Surroundings) -> None:
        """See what the machine has besides DRM devices."""

    def became(self, name: ResourceName, *, streaming: bool, phase: str, reason: str) -> None:
        """See how a resource stands with the kubelet: at first, at each change and each failure."""

    def registered(self, name: ResourceName, outcome: Registration) -> None:
        """See what came of a Register."""

    def sent(self, resource: Resource) -> None:
        """See that a list went to the kubelet."""

    def allocated(self, name: ResourceName, seconds: float, *, failed: bool) -> None:
        """See that an Allocate was answered, and how long we took."""


NOBODY = Witness()
