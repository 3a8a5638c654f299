"""Put what a driver gave or raised into words: one line each, whatever its objects do when they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES: Final = (Exception, SystemExit)
"""What a driver may raise; code that is imported or called may also call ``exit()``."""
_SHOWN: Final = 80


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
    except FAILURES:
        return ""
