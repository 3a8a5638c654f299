"""What the checks are made of: which driver, which GPUs, and how each is asked about."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from gpuplug.errors import DriverError
from gpuplug.settings import NO_OPTIONS, Settings
from gpuplug.testing.conformance import strategies
from gpuplug.testing.conformance.asking import Answers, ask, entry_point_of, fail, loaded
from gpuplug.testing.conformance.watching import Seen, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplug.model import Gpu
    from gpuplug.plugins.driver import LoadedDriver

SETTINGS: Final = (Settings(), Settings(shared_dev_num=4, prefix="/host"))
"""What drivers are asked with."""

__tracebackhide__ = True  # a failure shows the check, and not how it was made


class Checked:
    """A driver that is checked: the author says which it is, and which GPUs it must know."""

    driver: Any = None
    """What the entry point leads to: mostly a module."""
    gpus: Sequence[Gpu] = ()
    """GPUs that it must claim: one of each kind that it knows."""
    declined: Sequence[Gpu] = ()
    """GPUs that are its own, and that it must not offer."""
    others: Sequence[Gpu] = ()
    """GPUs that it must leave to other drivers, beside some that the kit knows."""
    options: Mapping[str, str] = NO_OPTIONS
    """Values for its options, by name, as they would be typed."""
    name: str = ""
    """The name of its entry point; empty for the one that it is installed under."""

    def _loaded(self) -> LoadedDriver:
        if self.driver is None:
            fail(
                f"{type(self).__name__} does not say which driver it is about",
                "there is nothing to check",
                "set `driver` to what the entry point leads to: `driver = gpuplug_foogpu`",
            )
        return loaded(self.driver, self.name or entry_point_of(self.driver) or "driver", self.options)

    def _own(self) -> list[Gpu]:
        return [*self.gpus, *self.declined]

    def _for_each(self, check: Callable[[LoadedDriver, Gpu, Settings], None]) -> None:
        """Run a check on the author's GPUs, and then on some that hypothesis makes."""
        driver = self._loaded()
        asked = [(gpu, settings) for gpu in self._own() for settings in SETTINGS]
        made = strategies.made(tuple(self._own()), driver.sysfs_attributes, driver.companion_nodes)
        for gpu, settings in [*asked, *((gpu, SETTINGS[bool(gpu.numa_node)]) for gpu in made)]:
            try:
                check(driver, gpu, settings)
            except AssertionError as error:
                raise AssertionError(f"{error}\n  it was asked about: {gpu!r}") from None

    def _for_each_answer(self, check: Callable[[Gpu, Answers], None]) -> None:
        """Run a check on what the driver says of GPUs that it claims."""

        def with_answers(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> None:
            try:
                answers = ask(driver, gpu, settings)
            except DriverError:  # a check of its own is about that: one fault is told of once
                return
            if answers.claimed:
                check(gpu, answers)

        self._for_each(with_answers)

    @staticmethod
    def _ask(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> Answers:
        try:
            return ask(driver, gpu, settings)
        except DriverError as error:
            fail(
                f"{gpu.address}: {error}",
                "gpuplug leaves a GPU out whose driver fails: its node shows one GPU less",
                "answer for every GPU that there can be, and of the type that drivers/README.md states: an"
                " attribute may be missing or hold any text, and a GPU may have one node only",
            )


def ask_quietly(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> None:
    """Ask, whatever comes of it: another check sees to the answers."""
    try:
        ask(driver, gpu, settings)
    except DriverError:
        return


def watch(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> Seen:
    """Ask, and see what the driver does meanwhile."""
    with watched() as seen:
        ask_quietly(driver, gpu, settings)
    return seen


def seconds(driver: LoadedDriver, gpu: Gpu) -> float:
    """Ask, and say how long that took."""
    begun = time.perf_counter()
    ask_quietly(driver, gpu, Settings())
    return time.perf_counter() - begun
