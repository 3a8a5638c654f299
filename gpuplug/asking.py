"""Ask drivers beside the event loop, so that none of them can hold it up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

from gpuplug.plugins.attempt import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplug.plugins.attempt import Call

T = TypeVar("T")


class Asking:
    """Runs what asks drivers, one piece of work at a time, each in a thread of its own.

    A driver that does not return is given up, and so is the thread; the work is begun anew, and
    must not mind that. Whoever is cancelled does not wait for the thread.
    """

    def __init__(self, given_up: Callable[[], object] = bool) -> None:
        """Begin with nobody asking.

        :param given_up: called in the event loop when a driver has been given up.
        """
        self._one_at_a_time = anyio.Lock()
        self._given_up = given_up

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what the work gives, or raise what it raises."""
        async with self._one_at_a_time:
            while True:
                attempt, call = await self._attempt(work)
                if call is None:
                    return attempt.result()
                attempt.give_up(call)
                self._given_up()

    @staticmethod
    async def _attempt(work: Callable[[], T]) -> tuple[Attempt[T], Call | None]:
        """Wait until the work has ended, or a driver has held it up for too long; give that call."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
                loop.call_soon_threadsafe(ended.set)

        attempt = Attempt(work, end)
        while True:
            with anyio.move_on_after(attempt.step):
                await ended.wait()
                return attempt, None
            call = attempt.held_up()
            if call is not None:
                return attempt, call
