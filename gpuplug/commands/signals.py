"""How ``gpuplug serve`` is told to stop: in order by one signal, at once by a second one; and to log more."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PATIENCE: Final = 0.5
"""Seconds after which a second signal ends the process at once.

An earlier one is the first one's double: a signal to the process group reaches a process
twice when its parent passes signals on.
"""
LONGEST_STOP: Final = 1.5
"""Seconds after which the process ends even if something hangs: a read in the kernel, say."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class DetailSignal:
    """A handler for SIGUSR1, which makes the log say more, and in the end as much as at the start."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change
        self._loop: asyncio.AbstractEventLoop | None = None
        signal.signal(signal.SIGUSR1, self._on_signal)

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Change in this loop from now on: between two lines of the log, never in the middle of one."""
        self._loop = loop

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._change)


class StopSignals:
    """Handlers for SIGTERM and SIGINT, from the moment this is made to the end of the process.

    anyio's receiver puts the default handlers back when it is left, and a signal that comes
    then kills the process in the middle of its orderly end.
    """

    def __init__(self, before_exit: Callable[[], object] = lambda: None) -> None:
        """Take the signals from now on.

        :param before_exit: called where the process is ended though it has not come to its end; quick.
        """
        self._before_exit = before_exit
        self._told: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    async def wait(self) -> None:
        """Wait for the first signal; one that came before this counts."""
        self._loop = asyncio.get_running_loop()
        if self._told is None:
            await self._stop.wait()

    def no_more(self) -> None:
        """Ignore signals from now on: everything has ended but the interpreter."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._told is not None:
            if now - self._told >= PATIENCE:
                self._exit(128 + number)
            return
        self._told = now
        # The endpoints have left by then, each on its own, if the machine is not too busy for that.
        signal.signal(signal.SIGALRM, lambda *_: self._exit(0))
        signal.setitimer(signal.ITIMER_REAL, LONGEST_STOP)
        # What comes after the exit functions cannot hang, and has no signal handlers: SIGALRM would kill it.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _exit(self, code: int) -> None:
        try:
            self._before_exit()
        finally:
            os._exit(code)
