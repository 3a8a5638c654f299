"""Waits for what the machine itself says, until a deadline; who waits in vain is told the last state seen."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

SECONDS = 20.0
"""Until a wait is given up: emulated, on a machine that others use too, all takes its time."""
_PAUSE = 0.005


async def until(what: str, look: Callable[[], T], *, seconds: float = SECONDS) -> T:
    """Look again and again until what is seen is true, and return it.

    :raises AssertionError: after `seconds`, with the last state
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {found!r}")
        await anyio.sleep(_PAUSE)
    return found
