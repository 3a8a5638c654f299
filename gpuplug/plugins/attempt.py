"""Run what asks drivers in a thread that can be given up, if a driver does not return.

Python cannot end a thread from outside. So whoever waits sees who is being asked, and for how
long: if it is the same call again and again, the driver is named, the thread is left to itself,
and the work is begun anew, which does not ask that driver any more.
"""

from __future__ import annotations

import ctypes
import io
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

HOOK_LIMIT: Final = 1.0
"""Seconds after which a hook that has not returned is given up."""
IMPORT_LIMIT: Final = 3.0
"""Seconds after which the import of a driver is given up."""
LOOKS: Final = 4
"""How often the same call must be seen within its limit: a machine that stands still is not its fault."""


class Abandoned(BaseException):
    """Ends a thread that was given up; no code of a driver is meant to catch it."""


@dataclass(eq=False, slots=True)
class Call:
    """A driver that is being asked, in one thread."""

    give_up: Callable[[str], None]
    """Told in words what did not return, if it does not."""
    what: str
    """The hook, or what else is asked of the driver."""
    limit: float
    output: _Heard
    before: Call | None = None
    """The call that this one is part of."""


_inside: dict[int, Call] = {}
"""The innermost call of each thread that is asking a driver."""
_given_up: WeakSet[threading.Thread] = WeakSet()
"""The threads that were left to themselves."""


class _Heard(io.TextIOBase):
    """Stands for standard output and standard error while a driver is asked: what it prints is kept.

    Other threads, which have nothing to do with the driver, get through.
    """

    def __init__(self, stream: Any, thread: int) -> None:  # noqa: ANN401 - whatever stands there
        self.stream = stream
        self.thread = thread
        self.text = ""

    def write(self, text: str) -> int:
        """Keep the beginning of what is printed."""
        if threading.get_ident() != self.thread:
            return int(self.stream.write(text))
        if len(self.text) < _KEPT:
            self.text += str(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what others have written."""
        if threading.get_ident() != self.thread:
            self.stream.flush()


_KEPT: Final = 200


@contextmanager
def asked(give_up: Callable[[str], None], what: str, limit: float = HOOK_LIMIT) -> Iterator[_Heard]:
    """Note that a driver is being asked in this thread, and keep what it prints from going anywhere."""
    thread = threading.get_ident()
    _end_if_given_up()
    before = _inside.get(thread)
    heard = before.output if before is not None else _Heard(sys.stdout, thread)
    errors = sys.stderr
    call = Call(give_up, what, limit, heard, before)
    _inside[thread] = call
    if before is None:
        sys.stdout, sys.stderr = heard, _Errors(heard, errors)
    try:
        yield heard
    finally:
        if before is None:
            _inside.pop(thread, None)
            _restore(heard)
        else:
            _inside[thread] = before
    _end_if_given_up()


def _end_if_given_up() -> None:
    """Go no further in a thread whose driver returned after all: its work has been begun anew elsewhere."""
    if threading.current_thread() in _given_up:
        raise Abandoned


class _Errors(_Heard):
    """The same for standard error, into the same text."""

    def __init__(self, heard: _Heard, stream: Any) -> None:  # noqa: ANN401
        super().__init__(stream, heard.thread)
        self.heard = heard

    def write(self, text: str) -> int:
        """Keep it with what goes to standard output."""
        if threading.get_ident() != self.thread:
            return int(self.stream.write(text))
        return self.heard.write(text)


def _restore(heard: _Heard) -> None:
    """Put the streams back, unless others have been put there meanwhile."""
    if sys.stdout is heard:
        sys.stdout = heard.stream
    if isinstance(sys.stderr, _Errors) and sys.stderr.heard is heard:
        sys.stderr = sys.stderr.stream


class Attempt(Generic[T]):
    """One run of some work in a thread of its own, which may be given up."""

    def __init__(self, work: Callable[[], T], ended: Callable[[], None]) -> None:
        """Begin.

        :param ended: called in the thread when it has ended, unless it was given up.
        """
        self._work = work
        self._ended = ended
        self._result: T | None = None
        self._error: BaseException | None = None
        self._abandoned = False
        self._seen: Call | None = None
        self._times = 0
        self._cpu = 0.0
        self._runs = False
        self._thread = threading.Thread(target=self._run, name="gpuplug drivers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._error = error
        if not self._abandoned:
            self._ended()

    def result(self) -> T:
        """Return what the work gave, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    @property
    def step(self) -> float:
        """Seconds until the next look at who is being asked."""
        call = _inside.get(self._thread.ident or 0)
        return (call.limit if call is not None else HOOK_LIMIT) / LOOKS

    def held_up(self) -> Call | None:
        """Look who is being asked; give the call that has been seen too often."""
        call = _inside.get(self._thread.ident or 0)
        self._times = self._times + 1 if call is not None and call is self._seen else 1
        self._seen = call
        cpu = _processor_time(self._thread.native_id or 0)
        self._runs, self._cpu = cpu != self._cpu, cpu
        return call if call is not None and self._times > LOOKS else None

    def give_up(self, call: Call) -> None:
        """Leave the thread to itself: it ends now, or where it only waits, as soon as the driver returns."""
        self._abandoned = True
        ident = self._thread.ident or 0
        _given_up.add(self._thread)
        _restore(call.output)
        outer: Call | None = call
        while outer is not None:
            outer.give_up(f"{call.what} did not return within {_spelt(call.limit)}")
            outer = outer.before
        # One that waits is not told: until it wakes, each thread would look at every turn whether it is
        # meant, and Python 3.11 would not go on from there where it is traced (by coverage, say).
        if self._runs:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Abandoned))


def _processor_time(thread: int) -> float:
    """Seconds that a thread of this process has run; 0 once it has ended."""
    with suppress(OSError):
        # The clock id of one thread, made as <linux/posix-timers.h> has it: its scheduler clock.
        return time.clock_gettime(~thread << 3 | 6)
    return 0.0


def _spelt(seconds: float) -> str:
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def patiently(work: Callable[[], T]) -> T:
    """Do work that asks drivers; it is begun anew as often as one of them has to be given up.

    :raises BaseException: what the work raises.
    """
    while True:
        ended = threading.Event()
        attempt = Attempt(work, ended.set)
        while not ended.wait(attempt.step):
            call = attempt.held_up()
            if call is not None:
                attempt.give_up(call)
                break
        else:
            return attempt.result()
