"""Ask a driver about a GPU as gpuplug does, and fail with words that say what to do."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpuplug.errors import DriverError
from gpuplug.model import Declined, Device, DeviceId
from gpuplug.options import flag
from gpuplug.plugins.chosen import configured
from gpuplug.plugins.driver import LoadedDriver
from gpuplug.plugins.hookspecs import PROJECT
from gpuplug.plugins.loader import Loaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplug.model import DeviceSpec, Gpu, Mount, Verdict
    from gpuplug.settings import Settings

__tracebackhide__ = True  # a failure shows the check, and not how it was made


@dataclass(frozen=True, slots=True)
class Answers:
    """All that a driver says of one GPU; only the claim, where it does not claim it."""

    claim: str | Declined | None
    specs: tuple[DeviceSpec, ...] = ()
    mounts: tuple[Mount, ...] = ()
    envs: Mapping[str, str] | None = None
    verdict: Verdict | None = None

    @property
    def claimed(self) -> bool:
        """Whether it is to be advertised."""
        return isinstance(self.claim, str)


def fail(what: str, why: str, instead: str) -> NoReturn:
    """Fail a check: what was seen, what it would cost, and what to do."""
    raise AssertionError(f"{what}\n  why it matters: {why}\n  what to do: {instead}") from None


def entry_point_of(module: object) -> str:
    """Return the name of the installed entry point that leads to a driver; empty where there is none."""
    for entry_point in importlib.metadata.entry_points(group=PROJECT):
        try:
            found = entry_point.load()
        except Exception:  # noqa: BLE001, S112 - another package's fault, and not what is asked here
            continue
        if found is module:
            return entry_point.name
    return ""


def loaded(module: object, name: str, options: Mapping[str, str]) -> LoadedDriver:
    """Load a driver as gpuplug would, with values for its options as they would be typed.

    :raises AssertionError: if it cannot be loaded, or an option cannot be used.
    """
    try:
        driver = LoadedDriver(name, module)
    except DriverError as error:
        fail(
            f"gpuplug does not load it: {error}",
            "a driver that cannot be loaded serves no GPU; gpuplug goes on without it and says so",
            "compare its functions with drivers/README.md: each hook has @hookimpl, its exact name, and no"
            " other arguments than those there, of which any may be left out",
        )
    known = {option.name: option for option in driver.options}
    for option in options:
        if option not in known:
            fail(
                f"the test gives a value for {option!r}, which is no option of the driver",
                "what the test chooses would have no effect",
                f"choose from those that gpuplug_options declares: {', '.join(known) or 'none'}",
            )
    words = [f"{flag(name, known[option])}={text}" for option, text in options.items()]
    (configured_driver,) = configured(Loaded((driver,)), words, {}).drivers
    return configured_driver


def ask(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> Answers:
    """Ask all hooks about one GPU, in the order in which gpuplug does.

    :raises DriverError: if a hook raises, or answers with something else than it should.
    """
    claim = driver.resource_name(gpu, settings)
    if not isinstance(claim, str):
        return Answers(claim)
    specs = driver.device_specs(gpu, settings)
    mounts = driver.mounts(gpu, settings)
    verdict = driver.health(gpu, settings)
    envs = driver.envs([Device(DeviceId(gpu.address), gpu, verdict.healthy)], settings)
    return Answers(claim, specs, mounts, envs, verdict)
