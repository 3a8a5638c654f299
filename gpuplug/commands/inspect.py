"""``gpuplug inspect``: every GPU of this machine, what becomes of it, and why.

It needs no kubelet, and no root where /sys and /dev can be read. Nodes are examined with ``stat``
and never opened. Exit codes: 0 something is advertised, 3 nothing is, 2 a bad option.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gpuplug.commands.folders import check_folder
from gpuplug.commands.output import own_output
from gpuplug.commands.prepare import prepared
from gpuplug.core.inventory import build
from gpuplug.host.attributes import Roots
from gpuplug.host.names import access, pci_names
from gpuplug.host.pci import survey
from gpuplug.host.sysfs import scan
from gpuplug.model import Inventory
from gpuplug.observe.document import Details, document
from gpuplug.observe.refusals import ALL_MODULES
from gpuplug.observe.report import DriverReport, Report, build_report
from gpuplug.options import flag, written
from gpuplug.plugins.attempt import patiently
from gpuplug.settings import Settings, origins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplug.plugins.loader import Loaded, LoadedDriver

NOTHING: Final = 3
"""The exit code where nothing is advertised."""


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Print what is true now, and return 0 if something is advertised, else 3.

    :raises SettingError: for an option, variable or folder that cannot be used.
    """
    with own_output() as out:
        settings, loaded = prepared(given, environ)
        if settings.prefix:
            options = {name: value for name, value in given.items() if isinstance(value, str)}
            check_folder(origins(options, environ)["prefix"], settings.prefix)
        report = look(settings, loaded)
        details = look_up(settings, report)
        code = 0 if report.advertised else NOTHING
        if given["json"]:
            out.write(f"{json.dumps(document(report, details), indent=2)}\n")
        else:
            from gpuplug.commands.tables import show  # noqa: PLC0415 - rich, which JSON does without

            show(report, details, out, environ)
    return code


def look(settings: Settings, loaded: Loaded) -> Report:
    """See the machine, decide as ``serve`` would, and put together what is true."""
    roots = Roots.of(settings)
    snapshot = scan(roots, loaded.sysfs_attributes, loaded.companion_nodes)
    inventory = patiently(lambda: build(snapshot, loaded.drivers, settings, Inventory()))
    return build_report(inventory, driver_reports(loaded), survey(roots, ALL_MODULES), notes=loaded.notes)


def driver_reports(loaded: Loaded) -> tuple[DriverReport, ...]:
    """Say in plain values what has been loaded, and what could not be."""
    return (
        *(
            DriverReport(driver.name, driver.distribution, options=_options(driver))
            for driver in loaded.drivers
        ),
        *(DriverReport(broken.name, broken.distribution, broken.reason) for broken in loaded.broken),
    )


def _options(driver: LoadedDriver) -> tuple[tuple[str, str], ...]:
    return tuple(
        (flag(driver.name, option), written(driver.chosen[option.name])) for option in driver.options
    )


def look_up(settings: Settings, report: Report) -> Details:
    """Look up what a person wants to read besides: owners and modes of nodes, names of PCI ids."""
    roots = Roots.of(settings)
    ids = {
        (gpu.vendor, gpu.device) for gpu in report.gpus if gpu.vendor is not None and gpu.device is not None
    }
    nodes = [node for gpu in report.gpus for node in gpu.nodes]
    return Details(access(roots, nodes), pci_names(roots, ids))
