"""Load driver packages from their entry points, each behind a typed façade of its own.

A module that cannot be imported, or that misspells a hook, is a named problem and nothing more.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuplug.errors import DriverError
from gpuplug.options import flag
from gpuplug.plugins import hookspecs
from gpuplug.plugins.attempt import IMPORT_LIMIT, asked, patiently
from gpuplug.plugins.driver import LoadedDriver
from gpuplug.plugins.words import FAILURES, is_ours, said, sentence, shown
from gpuplug.settings import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import ModuleType

__all__ = ["BrokenDriver", "Loaded", "LoadedDriver", "from_modules", "load"]


@dataclass(frozen=True, slots=True)
class BrokenDriver:
    """An entry point that could not be loaded, and why."""

    name: str
    reason: str
    distribution: str = ""
    """``name version`` of the distribution that it came in; empty where unknown."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of loading: the Drivers that work, and those that do not."""

    drivers: tuple[LoadedDriver, ...] = ()
    broken: tuple[BrokenDriver, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of those that were not to be loaded."""
    notes: tuple[str, ...] = ()
    """What else a person should know of the drivers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that are installed."""
        names = [driver.name for driver in self.drivers] + [driver.name for driver in self.broken]
        return tuple(sorted({*names, *self.left_out}))

    @property
    def sysfs_attributes(self) -> frozenset[str]:
        """The sysfs attributes that any of the Drivers wants."""
        return frozenset().union(*(driver.sysfs_attributes for driver in self.drivers))

    @property
    def companion_nodes(self) -> frozenset[str]:
        """The companion nodes that any of the Drivers wants."""
        return frozenset().union(*(driver.companion_nodes for driver in self.drivers))


def load(
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Loaded:
    """Load the Drivers that are installed; one that fails costs only itself.

    :param entry_points: instead of those of group ``gpuplug`` in the environment.
    :param only: the names of the Drivers to load; empty for all.
    :param without: the names of Drivers that are not even imported.
    """
    broken: list[BrokenDriver] = []
    found = _installed(broken) if entry_points is None else entry_points
    ordered = sorted(found, key=lambda e: (e.name, e.value))
    wanted = [e for e in ordered if e.name not in without and (not only or e.name in only)]
    left_out = tuple(e.name for e in ordered if e not in wanted)
    outcomes: dict[int, LoadedDriver | BrokenDriver] = {}
    notes: list[str] = []
    patiently(lambda: _load_all(wanted, outcomes, notes))
    loaded = [outcomes[index] for index in range(len(wanted))]
    drivers = tuple(one for one in loaded if isinstance(one, LoadedDriver))
    broken += [one for one in loaded if isinstance(one, BrokenDriver)]
    return without_clashes(Loaded(drivers, tuple(broken), left_out, tuple(notes)))


def _load_all(
    entry_points: Sequence[importlib.metadata.EntryPoint],
    outcomes: dict[int, LoadedDriver | BrokenDriver],
    notes: list[str],
) -> None:
    """Load what has no outcome yet: this goes on where it was given up."""
    for index, entry_point in enumerate(entry_points):
        if index in outcomes:
            continue
        name, origin = entry_point.name, _origin(entry_point)
        if any(isinstance(one, LoadedDriver) and one.name == name for one in outcomes.values()):
            outcomes[index] = BrokenDriver(
                name, f"driver {name}: {entry_point.value} uses a name that is taken", origin
            )
            continue

        def give_up(what: str, index: int = index, name: str = name, origin: str = origin) -> None:
            outcomes[index] = BrokenDriver(name, f"driver {name}: {what}", origin)

        try:
            with asked(give_up, "the import", IMPORT_LIMIT) as heard:
                driver = _load(name, entry_point.load, origin)
        except DriverError as error:
            outcomes[index] = BrokenDriver(name, str(error), origin)
        else:
            outcomes[index] = driver
            notes += driver.notes
            if heard.text.strip() and not driver.notes:
                notes.append(f"driver {name}: its import printed {shown(heard.text)}")
            driver.forget_notes()


def _installed(broken: list[BrokenDriver]) -> Iterable[importlib.metadata.EntryPoint]:
    """Find the entry points of the environment, even if one distribution in it is damaged."""
    try:
        return importlib.metadata.entry_points(group=hookspecs.PROJECT)
    except FAILURES:
        found: dict[str, Iterable[importlib.metadata.EntryPoint]] = {}
    for distribution in importlib.metadata.distributions():
        name = said(lambda d: d.name, distribution) or "a distribution without a name"
        try:
            found.setdefault(name, distribution.entry_points.select(group=hookspecs.PROJECT))
        except FAILURES as error:
            broken.append(BrokenDriver(name, f"its entry points cannot be read: {sentence(error)}"))
    return [entry_point for some in found.values() for entry_point in some]


def from_modules(modules: Mapping[str, ModuleType | object]) -> Loaded:
    """Load Drivers from modules that are at hand, by name: for tests and for the demo."""
    return without_clashes(
        Loaded(tuple(LoadedDriver(name, module) for name, module in sorted(modules.items())))
    )


def without_clashes(loaded: Loaded) -> Loaded:
    """Take out Drivers with an option that is one of ours, or of a Driver before it."""
    taken = {option.flag: "gpuplug itself" for option in OPTIONS}
    drivers: list[LoadedDriver] = []
    broken = list(loaded.broken)
    for driver in loaded.drivers:
        mine = {flag(driver.name, option): f"driver {driver.name}" for option in driver.options}
        clash = next((word for word in mine if word in taken), None)
        if clash is None:
            taken |= mine
            drivers.append(driver)
        else:
            reason = f"driver {driver.name}: its option {clash} is one of {taken[clash]}"
            broken.append(BrokenDriver(driver.name, reason, driver.distribution))
    return replace(loaded, drivers=tuple(drivers), broken=tuple(broken))


def _load(name: str, find: Callable[[], object], origin: str) -> LoadedDriver:
    try:
        module = find()
    except BaseException as error:
        if is_ours(error):
            raise
        raise DriverError(f"driver {name} cannot be imported: {sentence(error)}") from error
    return LoadedDriver(name, module, origin)


def _origin(entry_point: importlib.metadata.EntryPoint) -> str:
    distribution = entry_point.dist
    if distribution is None:
        return ""
    try:
        return f"{distribution.name} {distribution.version}"
    except Exception:  # noqa: BLE001 - damaged metadata; it is shown to people, and nothing depends on it
        return ""
