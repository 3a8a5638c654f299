"""What gpuplug would advertise of a made-up machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuplug.core.inventory import build
from gpuplug.host.pci import survey
from gpuplug.host.sysfs import Roots, scan
from gpuplug.model import Inventory
from gpuplug.observe.refusals import ALL_MODULES
from gpuplug.observe.report import DriverReport, build_report
from gpuplug.plugins.loader import from_modules
from gpuplug.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplug.observe.report import Report
    from gpuplug.testing.machine import Machine


def report_on(machine: Machine, drivers: Mapping[str, object], settings: Settings | None = None) -> Report:
    """See the machine, and let these drivers decide as they would in ``gpuplug serve``.

    :param drivers: modules, or objects with hooks, by the name of their entry points.
    """
    loaded = from_modules(drivers)
    roots = Roots(str(machine.root))
    settings = replace(settings or Settings(), prefix=str(machine.root))
    snapshot = scan(roots, loaded.sysfs_attributes, loaded.companion_nodes)
    inventory = build(snapshot, loaded.drivers, settings, Inventory())
    known = tuple(DriverReport(driver.name) for driver in loaded.drivers)
    return build_report(inventory, known, survey(roots, ALL_MODULES))
