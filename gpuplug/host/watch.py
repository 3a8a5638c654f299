"""Know at once when something may have changed below a folder: inotify on the event loop.

Nothing is read from an event but where it came from. Whatever happens, the answer is to
arm the watches anew, on what exists now, and then to tick; so the look that follows a tick
sees at least the change that caused it, and a watch on a folder that was removed, replaced
or re-made is never kept.

inotify_simple and a reader on the loop are used rather than watchfiles, whose ``watch``
is a loop that sleeps and looks (``sleep(step)`` in its ``lib.rs``): it costs a node CPU
time for ever, ten times more than the rest of this process, and adds two steps to every
change. With a mask of our own the many openings of /dev/null wake nobody, either.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import anyio
import anyio.to_thread
from inotify_simple import INotify, flags
from loguru import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from inotify_simple import Event

COALESCE: Final = 0.01
"""Seconds from the first event of a burst to the tick: a GPU's nodes come 1 to 6 ms apart."""
POLL: Final = 1.0
"""Seconds between ticks while inotify cannot be had."""
RETRY: Final = 30.0
"""Seconds until inotify is tried again."""

_MASK: Final = (
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)
_EXHAUSTED: Final = {
    errno.EMFILE: "fs.inotify.max_user_instances (or the limit of open files)",
    errno.ENFILE: "fs.file-max",
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.ENOMEM: "the memory of the node",
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
) -> None:
    """Call ``tick`` with the places that may have changed, for ever.

    All places are ticked once the watches stand, so that a look made after the first tick
    misses nothing. Where inotify is exhausted, all are ticked every ``poll`` seconds, the
    limit is named once, and inotify is tried again every ``retry`` seconds.
    """
    everything = frozenset(places)
    degraded = False
    while True:
        try:
            with closing(open_()) as notifier:
                watches = await anyio.to_thread.run_sync(_arm, notifier, places, {})
                if degraded:
                    logger.info("inotify works again: changes are seen at once")
                degraded = False
                tick(everything)
                await _follow(notifier, places, watches, tick)
        except OSError as error:
            if not degraded:
                cause = _EXHAUSTED.get(error.errno or 0, "a fault")
                logger.warning(
                    "inotify cannot be used ({}: {}): looking every {:g} s", error.strerror, cause, poll
                )
        degraded = True
        await _poll(everything, tick, poll, retry)


async def _follow(
    notifier: Notifier,
    places: Sequence[Place],
    watches: Mapping[int, frozenset[_Interest]],
    tick: Callable[[frozenset[Place]], None],
) -> NoReturn:
    """Turn events into ticks until something fails with an OSError."""
    while True:
        await anyio.wait_readable(notifier.fileno())
        await anyio.sleep(COALESCE)
        touched = _touched(notifier.read(timeout=0), watches, frozenset(places))
        if touched:
            watches = await anyio.to_thread.run_sync(_arm, notifier, places, watches)
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
    """Watch what exists now: each place, and the nearest folder above it that is there.

    Watching a folder that is watched already is free, and gives the same descriptor.
    """
    watches: dict[int, frozenset[_Interest]] = {}
    for place in places:
        above, name = _nearest(place.path)
        for path, interest in ((above, _Interest(place, name)), (place.path, _Interest(place, None))):
            try:
                descriptor = notifier.add_watch(path, _MASK)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES}:
                    continue  # it is not there (any more), is a file, or is hidden from us
                raise
            watches[descriptor] = watches.get(descriptor, frozenset()) | {interest}
    for descriptor in before.keys() - watches.keys():
        try:
            notifier.rm_watch(descriptor)
        except OSError:
            continue  # its folder is gone, and the watch with it
    return watches


def _nearest(path: str) -> tuple[str, str]:
    """Return the nearest existing folder above ``path``, and the name in it that leads there."""
    above, name = os.path.split(path)
    while above != "/" and not os.path.isdir(above):
        above, name = os.path.split(above)
    return above, name


async def _poll(
    everything: frozenset[Place], tick: Callable[[frozenset[Place]], None], poll: float, retry: float
) -> None:
    """Tick at an even pace for ``retry`` seconds."""
    with anyio.move_on_after(retry):
        while True:
            tick(everything)
            await anyio.sleep(poll)
