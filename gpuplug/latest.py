"""``Latest``: the newest value of something, and a wake-up for whoever follows it."""

from __future__ import annotations

from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Latest(Generic[T]):
    """One cell with one writer and any number of readers.

    Each reader remembers the version that it has seen, so a slow one skips what
    is outdated and never holds up the others: there is no queue to fill.

    ``set`` must be called in the event loop's thread.
    """

    __slots__ = ("_changed", "_value", "_version")

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = anyio.Event()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value was set; grows by one each time."""
        return self._version

    def set(self, value: T) -> None:
        """Keep a new value and wake every reader, even if it equals the old one."""
        self._value = value
        self._version += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def newer(self, version: int) -> tuple[int, T]:
        """Wait until there is a value newer than ``version``; return its version and it."""
        while self._version <= version:
            await self._changed.wait()
        return self._version, self._value
