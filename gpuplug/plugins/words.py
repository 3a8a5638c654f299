"""Put what a driver gave or raised into words: one line each, whatever its objects do when they are asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from gpuplug.plugins.attempt import Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES: Final = (Exception, SystemExit)
"""What a driver may raise; code that is imported or called may also call ``exit()``."""
_SHOWN: Final = 80


def is_ours(error: BaseException) -> bool:
    """Say whether what passed through a driver ends this thread or the program, and is not the driver's.

    A driver may raise what is no ``Exception``: Python itself, and extension modules, have such.
    """
    if isinstance(error, Abandoned):
        return True
    return threading.current_thread() is threading.main_thread() and not isinstance(error, FAILURES)


def sentence(error: BaseException) -> str:
    """Name an exception and what it says."""
    told = said(str, error)
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def shown(value: object) -> str:
    """Write a value as Python would, cut short."""
    text = said(repr, value) or f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def said(ask: Callable[[Any], str], value: object) -> str:
    """Put a driver's object into words on one line, or into none if even that fails."""
    try:
        return " ".join(ask(value).encode(errors="backslashreplace").decode().split())
    except BaseException as error:
        if is_ours(error):
            raise
        return ""
