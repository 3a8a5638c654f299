"""Options of driver packages: a driver declares them, and they are read as those of gpuplug are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_BOOLEANS: Final = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
"""As Go's flags are read (``strconv.ParseBool``)."""
_METAVARS: Final[dict[object, str]] = {bool: "BOOL", int: "N", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True, slots=True)
class DriverOption:
    """One option of a driver: ``--<driver>-<name>``, and ``GPUPLUG_<DRIVER>_<NAME>`` in the environment.

    Its value reaches the driver's hooks as ``settings.options[name]``.
    """

    name: str
    """Lower-case words with dashes between them: ``memory-limit``."""
    type: Callable[[str], Any]
    """``str``, ``int``, ``float``, ``bool``, or a function from a text to a value.

    A function raises ``ValueError`` for a text that it refuses; the error's text is shown to the operator.
    """
    default: Any
    """What holds where neither the option nor its variable is given: a value, not a text."""
    help: str
    """One phrase for ``gpuplug serve --help``."""
    choices: tuple[Any, ...] = ()
    """The values that are allowed; none stands for all."""

    @property
    def metavar(self) -> str:
        """What stands for the value in a help text."""
        if self.choices:
            return "|".join(map(str, self.choices))
        return _METAVARS.get(self.type, "VALUE")


def parse(option: DriverOption, text: str) -> object:
    """Read the value of an option.

    :raises ValueError: saying what is wrong with the text, as the end of a sentence that begins with it.
    """
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise ValueError("is not text in UTF-8")
    value = _parse(option, text)
    if option.choices and value not in option.choices:
        raise ValueError(f"is not one of {', '.join(map(str, option.choices))}")
    return value


def _parse(option: DriverOption, text: str) -> object:
    if option.type is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError("is not true or false")
        return _BOOLEANS[text.lower()]
    if option.type is int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ValueError("is not a whole number")
        return int(text)
    if option.type is float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("is not a number")
        return number
    return option.type(text)


def fault(option: DriverOption) -> str:
    """Say what is wrong with the declaration of an option; empty if nothing is."""
    checks = (
        (
            _is_text(option.name) and bool(_NAME.fullmatch(option.name)),
            "its name is not made of lower-case words with dashes between them",
        ),
        (callable(option.type), "its type is not str, int, float, bool or a function"),
        (
            _is_text(option.help) and bool(option.help.strip()) and "\n" not in option.help,
            "its help is not one phrase",
        ),
        (isinstance(option.choices, tuple), "its choices are not a tuple"),
        (_default_fits(option), f"its default {option.default!r} is not what its type gives"),
    )
    for good, what in checks:
        if not good:
            return what
    if option.choices and option.default not in option.choices:
        return f"its default {option.default!r} is not one of its choices"
    return ""


def _is_text(value: object) -> bool:
    """Tell whether it is what its annotation says: no driver is type-checked here."""
    return isinstance(value, str)


def _default_fits(option: DriverOption) -> bool:
    value = option.default
    if option.type is bool or isinstance(value, bool):
        return isinstance(value, bool) and option.type not in {int, float, str}
    if option.type is float:
        return isinstance(value, int | float)
    return isinstance(value, option.type) if option.type in {int, str} else True


def flag(driver: str, option: DriverOption) -> str:
    """Return what is typed for an option of the driver of that name."""
    return f"--{_slug(driver)}-{option.name}"


def variable(driver: str, option: DriverOption) -> str:
    """Return the environment variable that is read where the option is not given."""
    return f"GPUPLUG{flag(driver, option).removeprefix('-').replace('-', '_').upper()}"


def belongs_to(word: str, driver: str) -> bool:
    """Tell whether a flag looks like one of the driver of that name."""
    return word.startswith(f"--{_slug(driver)}-")


def _slug(driver: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", driver.lower()).strip("-")


def written(value: object) -> str:
    """Write a value as it would be given."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | set | frozenset):
        return ",".join(map(str, sorted(value, key=str) if isinstance(value, set | frozenset) else value))
    return str(value)
