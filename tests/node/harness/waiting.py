"""Waits for what the node itself says, until a deadline; who waits in vain is told the last state seen."""

import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

PATIENCE = float(os.environ.get("GPUPLUG_PATIENCE", "1"))
"""Every deadline is so many times longer: for machines that are slow in themselves, such as emulated ones."""
_PAUSE = 0.03
"""Between two looks. It decides how soon a change is noticed, never whether a test passes."""


async def eventually(
    what: str, look: Callable[[], Awaitable[T]], good: Callable[[T], bool], *, seconds: float = 30
) -> T:
    """Look again and again until the state is good, and return it.

    A look that raises ``OSError`` counts as "not yet": its message is the state.

    :raises AssertionError: after `seconds`, with the last state
    """
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        state: T | str
        try:
            found = await look()
        except OSError as error:
            state = f"{type(error).__name__}: {error}"
        else:
            if good(found):
                return found
            state = str(found)
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last seen: {state}")
        await anyio.sleep(_PAUSE)
