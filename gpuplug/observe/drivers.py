"""The drivers that are installed, what each declares and claims, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuplug.options import flag, variable, written
from gpuplug.plugins.hookspecs import OLDEST, VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplug.observe.report import Report
    from gpuplug.plugins.loader import Loaded

SCHEMA: Final = "gpuplug.drivers/v1"
LEFT_OUT: Final = "it is left out by --driver or --no-driver"


@dataclass(frozen=True, slots=True)
class ChosenOption:
    """An option of a driver, and the value that holds."""

    flag: str
    variable: str
    value: str
    default: str
    help: str


@dataclass(frozen=True, slots=True)
class InstalledDriver:
    """One driver: an entry point in the group ``gpuplug``."""

    name: str
    package: str = ""
    """Name of its distribution; empty where unknown."""
    version: str = ""
    hooks: tuple[str, ...] = ()
    """The hooks that it implements."""
    fallback: bool = False
    """Whether it is asked only about GPUs that no other driver claims."""
    options: tuple[ChosenOption, ...] = ()
    resources: tuple[str, ...] = ()
    """Names of the resources of the GPUs that it claims on this machine."""
    gpus: tuple[str, ...] = ()
    """Addresses of these GPUs."""
    loaded: bool = True
    left_out: bool = False
    """Whether the operator left it out; nothing is known of it then."""
    problems: tuple[str, ...] = ()
    """Why it could not be loaded, or what it did wrong when it was asked."""


def installed(loaded: Loaded, report: Report) -> tuple[InstalledDriver, ...]:
    """Say of each driver what it is and does, by name.

    :param report: what came of this machine's GPUs when the drivers were asked.
    """
    found = []
    for driver in loaded.drivers:
        package, _, version = driver.distribution.rpartition(" ")
        mine = [gpu for gpu in report.gpus if gpu.offer is not None and gpu.offer.driver == driver.name]
        found.append(
            InstalledDriver(
                driver.name,
                package,
                version,
                hooks=tuple(sorted(driver.hooks)),
                fallback=driver.fallback,
                options=tuple(
                    ChosenOption(
                        flag(driver.name, option),
                        variable(driver.name, option),
                        written(driver.chosen[option.name]),
                        written(option.default),
                        option.help,
                    )
                    for option in driver.options
                ),
                resources=tuple(sorted({str(gpu.resource) for gpu in mine})),
                gpus=tuple(gpu.address for gpu in mine),
                problems=about(driver.name, report.problems),
            )
        )
    for broken in loaded.broken:
        package, _, version = broken.distribution.rpartition(" ")
        found.append(InstalledDriver(broken.name, package, version, loaded=False, problems=(broken.reason,)))
    found += [InstalledDriver(name, loaded=False, left_out=True) for name in loaded.left_out]
    return tuple(sorted(found, key=lambda driver: (driver.name, driver.package, driver.problems)))


def about(name: str, problems: Sequence[str]) -> tuple[str, ...]:
    """Choose the problems that are about a driver: their first words name it."""
    return tuple(problem for problem in problems if name in problem.partition(":")[0].split())


def drivers_document(drivers: Sequence[InstalledDriver]) -> dict[str, Any]:
    """Make what ``gpuplug drivers --json`` prints; README.md in this folder describes it."""
    return {
        "schema": SCHEMA,
        "hooks": {"oldest": OLDEST, "version": VERSION},
        "drivers": [
            {
                "name": driver.name,
                "package": driver.package or None,
                "version": driver.version or None,
                "loaded": driver.loaded,
                "left_out": driver.left_out,
                "hooks": list(driver.hooks),
                "fallback": driver.fallback,
                "options": [
                    {
                        "option": option.flag,
                        "variable": option.variable,
                        "value": option.value,
                        "default": option.default,
                        "help": option.help,
                    }
                    for option in driver.options
                ],
                "resources": list(driver.resources),
                "gpus": list(driver.gpus),
                "problems": list(driver.problems),
            }
            for driver in drivers
        ],
    }
