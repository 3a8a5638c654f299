"""Give each Driver what the operator chose for its options: from the command line, or from variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuplug.errors import DriverError, SettingError
from gpuplug.options import belongs_to, flag, variable, written
from gpuplug.plugins.loader import BrokenDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplug.options import DriverOption
    from gpuplug.plugins.loader import Loaded

_BARE: Final = "true"
"""What an option of type ``bool`` means without a value."""


def configured(loaded: Loaded, words: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    """Read the options of all Drivers; one whose own function fails costs that Driver alone.

    An option wins over its variable; an empty variable counts as not set. Options of a Driver that
    could not be loaded, or was not to be, are passed over: what is wrong with one Driver must not
    keep the others from being served.

    :param words: what the command line has besides the options of gpuplug.
    :raises SettingError: naming the option or the variable, and the value.
    """
    known = {flag(d.name, option): option for d in loaded.drivers for option in d.options}
    absent = [*(driver.name for driver in loaded.broken), *loaded.left_out]
    given: dict[str, str] = {}
    notes = list(loaded.notes)
    for word, text in _options(words, known, absent):
        if word in known:
            given[word] = text
        else:
            notes.append(f"option {word} is not used, for its driver is not loaded")
    drivers = []
    broken = list(loaded.broken)
    for driver in loaded.drivers:
        values: dict[str, object] = {}
        try:
            for option in driver.options:
                source = flag(driver.name, option)
                if source not in given:
                    source = variable(driver.name, option)
                text = given.get(source) or environ.get(source, "")
                if source not in given and not text:
                    continue
                try:
                    values[option.name] = driver.read(option, text)
                except ValueError as error:
                    raise SettingError(f"{source}: {text!r} {error}") from None
        except DriverError as error:
            broken.append(BrokenDriver(driver.name, str(error), driver.distribution))
            continue
        driver.choose(values)
        drivers.append(driver)
    return replace(loaded, drivers=tuple(drivers), broken=tuple(broken), notes=tuple(notes))


def spelt_options(loaded: Loaded) -> str:
    """Write as options what differs from the defaults that the Drivers declare, wherever it comes from."""
    return " ".join(
        f"{flag(driver.name, option)}={written(driver.chosen[option.name])}"
        for driver in loaded.drivers
        for option in driver.options
        if written(driver.chosen[option.name]) != written(option.default)
    )


def _options(
    words: Sequence[str], known: Mapping[str, DriverOption], absent: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Split words into options and their values; a value follows after ``=`` or as a word of its own."""
    left = list(words)
    while left:
        whole = left.pop(0)
        word, equals, text = whole.partition("=")
        option = known.get(word)
        if option is None and not any(belongs_to(word, name) for name in absent):
            raise SettingError(f"unknown option or argument: {whole!r}")
        if not equals:
            follows = bool(left) and not left[0].startswith("-")
            if option is not None and option.type is bool:
                text = left.pop(0) if follows and left[0].lower() in {"true", "false"} else _BARE
            elif follows:
                text = left.pop(0)
            elif option is not None:
                raise SettingError(f"{word}: a value must follow it")
        yield word, text
