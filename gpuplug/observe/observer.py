"""The witness of a process that was asked to ``--listen``: it keeps the current Report, and counts.

All that is shown is made from what is kept here, so that no two views can disagree.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuplug.core.inventory import diff
from gpuplug.latest import Latest
from gpuplug.model import Inventory, Resource, ResourceName, Surroundings
from gpuplug.observe.report import Report, ServingState, build_report
from gpuplug.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplug.model import PciDisplay
    from gpuplug.observe.metrics import Counts
    from gpuplug.observe.report import DriverReport
    from gpuplug.witness import Registration


class Observer(Witness):
    """Keep what is true now, and why, as one value that is replaced at each change."""

    __slots__ = (
        "_around",
        "_counts",
        "_drivers",
        "_inventory",
        "_notes",
        "_pending",
        "_serving",
        "lists",
        "looked_at",
        "report",
    )

    def __init__(self, drivers: Sequence[DriverReport], counts: Counts, notes: Sequence[str] = ()) -> None:
        """Begin with what is so from the start.

        :param notes: what is wrong with the drivers' options, in words.
        """
        self.report: Final = Latest[Report | None](None)
        """What is true now; ``None`` until the machine was looked at."""
        self.looked_at = 0.0
        """When the last look at the machine ended, in seconds since the epoch; 0 before the first."""
        self.lists: Final[dict[ResourceName, int]] = {}
        """How many different lists each resource has had."""
        self._drivers = drivers
        self._notes = notes
        self._counts = counts
        self._inventory: Inventory | None = None
        self._around = Surroundings()
        self._serving: dict[ResourceName, ServingState] = {}
        self._pending: dict[ResourceName, float] = {}

    def looked(self, inventory: Inventory, asked: float) -> None:
        """Keep what the machine has, and since when a list that differs is on its way."""
        self.looked_at = time.time()
        before = self._inventory
        if inventory == before:
            return
        self._inventory = inventory
        difference = diff(before or Inventory(), inventory)
        changed = [resource.name for resource in (*difference.added, *difference.changed)]
        for name in (*changed, *difference.gone):
            self.lists[name] = self.lists.get(name, 0) + 1
            if before is not None:
                self._pending.setdefault(name, asked)
        self._around = replace(self._around, displays=self._displays_that_still_fit(inventory))
        self._publish()

    def _displays_that_still_fit(self, inventory: Inventory) -> tuple[PciDisplay, ...]:
        """Leave out what had a DRM device when the bus was last surveyed and has none now.

        What became of it is seen by the next survey, a moment later.
        """
        listed = inventory.judgements.keys() | {rejected.address for rejected in inventory.rejected}
        return tuple(d for d in self._around.displays if d.address in listed or not d.drm)

    def surveyed(self, around: Surroundings) -> None:
        """Keep what the machine has besides DRM devices."""
        if around != self._around:
            self._around = around
            self._publish()

    def became(self, name: ResourceName, *, streaming: bool, phase: str, reason: str) -> None:
        """Keep how a resource stands with the kubelet."""
        if name not in self._serving:
            self._counts.begin(name)
        if reason:  # the kubelet is away: how long it stays so is not ours to count
            self._pending.pop(name, None)
        self._serving[name] = ServingState(streaming, phase, reason)
        self._publish()

    def registered(self, name: ResourceName, outcome: Registration) -> None:
        """Count a registration."""
        self._counts.registered(name, outcome)

    def sent(self, resource: Resource) -> None:
        """Count the time from the event to the list, if this list is the newest one."""
        inventory = self._inventory or Inventory()
        if resource == inventory.served.get(resource.name, Resource(resource.name)):
            asked = self._pending.pop(resource.name, None)
            if asked is not None:
                self._counts.listed(time.monotonic() - asked)

    def allocated(self, name: ResourceName, seconds: float, *, failed: bool) -> None:
        """Count an Allocate."""
        self._counts.allocated(name, seconds, failed=failed)

    @property
    def connected(self) -> dict[ResourceName, bool]:
        """Whether the kubelet follows the list of each resource, of those too that have no GPU any more."""
        return {name: state.streaming for name, state in self._serving.items()}

    def _publish(self) -> None:
        if self._inventory is not None:
            self.report.set(
                build_report(self._inventory, self._drivers, self._around, self._serving, self._notes)
            )
