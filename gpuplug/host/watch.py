"""Know at once when something may have changed below a folder: inotify on the event loop.

Nothing is read from an event but where it came from. Whatever happens, the answer is to
arm the watches anew, on what exists now, and then to tick; so the look that follows a tick
sees at least the change that caused it, and a watch on a folder that was removed, replaced
or re-made is never kept.

inotify_simple and a reader on the loop are used rather than watchfiles, whose ``watch``
is a loop that sleeps and looks (``sleep(step)`` in its ``lib.rs``): it took 0.09 % of a core
for ever at a step of 50 ms, where this whole process idles at 0.007 %, and adds two steps to
every change. With a mask of our own the many openings of /dev/null wake nobody, either.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing
from ctypes import CDLL
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import anyio
import anyio.to_thread
import inotify_simple
from inotify_simple import INotify, flags
from loguru import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from inotify_simple import Event

COALESCE: Final = 0.01
"""Seconds from the first event of a burst to the tick: a GPU's nodes come 1 to 6 ms apart."""
POLL: Final = 1.0
"""Seconds between ticks while inotify cannot be had."""
RETRY: Final = 30.0
"""Seconds until inotify is tried again."""
REARM: Final = 60.0
"""Seconds after which the watches are set anew unasked: no event tells of a mount that hides a folder."""

_C_LIBRARY: Final = CDLL(None, use_errno=True)
_MASK: Final = (
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)
_CAUSES: Final = {
    errno.EMFILE: "fs.inotify.max_user_instances (or the limit of open files)",
    errno.ENFILE: "fs.file-max",
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.ENOMEM: "the memory of the node",
    errno.EACCES: "the right to read a folder that is to be watched",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to watch, which need not exist, and need not stay."""

    path: str


class Notifier(Protocol):
    """The part of ``inotify_simple.INotify`` that is used."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def add_watch(self, path: str, mask: int) -> int:
        """Watch a folder; return the watch's descriptor."""
        ...

    def rm_watch(self, wd: int) -> None:
        """Stop watching."""
        ...

    def read(self, timeout: int | None = None) -> Iterable[Event]:
        """Return the events that are there."""
        ...

    def close(self) -> None:
        """Give the instance back."""
        ...


def open_notifier() -> Notifier:
    """Open inotify; one instance serves the whole process.

    :raises OSError: EMFILE where the user's instances, or the process' files, are used up.
    """
    # Left to itself it looks for the C library by running ldconfig, gcc and ld; we run in it.
    inotify_simple._libc = _C_LIBRARY  # noqa: SLF001
    notifier: Notifier = INotify(nonblocking=True)
    return notifier


@dataclass(frozen=True, slots=True)
class _Interest:
    """Why a folder is watched: for a place, and for one name in it or for all."""

    place: Place
    name: str | None


async def watch(
    places: Sequence[Place],
    tick: Callable[[frozenset[Place]], None],
    *,
    open_: Callable[[], Notifier] = open_notifier,
    poll: float = POLL,
    retry: float = RETRY,
    rearm: float = REARM,
) -> None:
    """Call ``tick`` with the places that may have changed, for ever.

    All places are ticked once the watches stand, so that a look made after the first tick
    misses nothing. Where inotify is exhausted, all are ticked every ``poll`` seconds, the
    limit is named once, and inotify is tried again every ``retry`` seconds. Every ``rearm``
    seconds it is seen to that the watches are still on what bears the places' names.
    """
    everything = frozenset(places)
    said = ""
    while True:
        try:
            with closing(open_()) as notifier:
                watches = await anyio.to_thread.run_sync(_arm, notifier, places, {})
                if said:
                    logger.info("inotify works again: changes are seen at once")
                said = ""
                tick(everything)
                await _follow(notifier, places, watches, tick, rearm)
        except OSError as error:
            cause = f"{error.strerror}: {_CAUSES.get(error.errno or 0, 'a fault')}"
            if cause != said:
                logger.warning("inotify cannot be used ({}): looking every {:g} s", cause, poll)
            said = cause
        await _poll(everything, tick, poll, retry)


async def _follow(
    notifier: Notifier,
    places: Sequence[Place],
    watches: Mapping[int, frozenset[_Interest]],
    tick: Callable[[frozenset[Place]], None],
    rearm: float,
) -> NoReturn:
    """Turn events into ticks until something fails with an OSError."""
    everything = frozenset(places)
    due = anyio.current_time() + rearm
    while True:
        with anyio.CancelScope(deadline=due):
            await anyio.wait_readable(notifier.fileno())
            await anyio.sleep(COALESCE)
        touched = _touched(notifier.read(timeout=0), watches, everything)
        if not touched and anyio.current_time() < due:
            continue
        before, watches = watches, await anyio.to_thread.run_sync(_arm, notifier, places, watches)
        due = anyio.current_time() + rearm
        if not touched and watches != before:
            touched = everything
        if touched:
            tick(touched)


def _touched(
    events: Iterable[Event], watches: Mapping[int, frozenset[_Interest]], everything: frozenset[Place]
) -> frozenset[Place]:
    """Tell which places the events are about."""
    places: set[Place] = set()
    for event in events:
        if event.mask & flags.Q_OVERFLOW:
            return everything
        for interest in watches.get(event.wd, ()):
            if not event.name or interest.name in {None, event.name}:
                places.add(interest.place)
    return frozenset(places)


def _arm(
    notifier: Notifier, places: Sequence[Place], before: Mapping[int, frozenset[_Interest]]
) -> dict[int, frozenset[_Interest]]:
    """Watch what exists now: each place, and every folder on the way to it, from the root down.

    So whatever is renamed or removed on the way is heard of, and what comes into being below
    a folder after that was watched. Watching one that is watched already is free, and gives
    the same descriptor.
    """
    watches: dict[int, frozenset[_Interest]] = {}
    for place in places:
        for path, name in _way(place.path):
            try:
                descriptor = notifier.add_watch(path, _MASK)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    break  # it is not there (any more), or is a file
                if error.errno == errno.EACCES and name is not None:
                    continue  # a folder above may be passed through without being read
                raise
            watches[descriptor] = watches.get(descriptor, frozenset()) | {_Interest(place, name)}
    for descriptor in before.keys() - watches.keys():
        try:
            notifier.rm_watch(descriptor)
        except OSError:
            continue  # its folder is gone, and the watch with it
    return watches


def _way(path: str) -> Iterator[tuple[str, str | None]]:
    """Yield each folder from the root down to ``path``, with the name in it that leads on."""
    folder = "/"
    for name in path.strip("/").split("/"):
        yield folder, name
        folder = os.path.join(folder, name)
    yield folder, None


async def _poll(
    everything: frozenset[Place], tick: Callable[[frozenset[Place]], None], poll: float, retry: float
) -> None:
    """Tick at an even pace for ``retry`` seconds."""
    with anyio.move_on_after(retry):
        while True:
            tick(everything)
            await anyio.sleep(poll)
