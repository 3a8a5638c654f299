"""What is shown over HTTP: ``/metrics``, ``/readyz``, ``/healthz`` and ``/report``, all of the one Report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from gpuplug.observe.document import encoded
from gpuplug.observe.metrics import CONTENT_TYPE, Metrics
from gpuplug.observe.readiness import readiness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpuplug.observe.document import Details
    from gpuplug.observe.metrics import Counts
    from gpuplug.observe.observer import Observer
    from gpuplug.observe.report import Report

KEPT: Final = 0.1
"""Seconds for which a page that takes a thread is shown again instead of made anew."""
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    status: int
    body: bytes
    content_type: str = _TEXT


def page(status: int, *lines: str) -> Page:
    """Make a page of plain text."""
    return Page(status, "".join(f"{line}\n" for line in lines).encode())


class _Kept:
    """A page that is made in a thread, by one at a time, however many ask."""

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make = make
        self._lock = anyio.Lock()
        self._page: Page | None = None
        self._of: object = None
        self._until = 0.0

    async def get(self, of: object) -> Page:
        """Give the page, anew if it is old or of another value than this."""
        async with self._lock:
            if self._page is None or self._of is not of or time.monotonic() >= self._until:
                self._page = await anyio.to_thread.run_sync(self._make)
                self._of, self._until = of, time.monotonic() + KEPT
            return self._page


class Pages:
    """The pages by path."""

    def __init__(self, observer: Observer, counts: Counts, look_up: Callable[[Report], Details]) -> None:
        """Make the pages.

        :param look_up: finds what ``/report`` has besides the Report; it reads files, in a thread.
        """
        self._observer = observer
        self._look_up = look_up
        self._metrics = Metrics(observer, counts)
        self._scraped = _Kept(lambda: Page(200, self._metrics.render(), CONTENT_TYPE))
        self._reported = _Kept(self._report)
        self._began = time.monotonic()
        self._pages: Final[dict[str, Callable[[], Awaitable[Page]]]] = {
            "/metrics": lambda: self._scraped.get(observer.report.value),
            "/readyz": self._readyz,
            "/healthz": self._healthz,
            "/report": lambda: self._reported.get(observer.report.value),
            "/": self._index,
        }

    def find(self, path: str) -> Callable[[], Awaitable[Page]] | None:
        """Find what makes the page of a path, if it is one of ours."""
        return self._pages.get(path)

    async def _index(self) -> Page:
        return page(200, "gpuplug", *(path for path in self._pages if path != "/"))

    async def _readyz(self) -> Page:
        state = readiness(self._observer.report.value)
        return page(200 if state.ready else 503, "ready" if state.ready else "not ready", *state.lines)

    async def _healthz(self) -> Page:
        """Answer from the event loop: where it is stuck nothing is answered, which is the answer."""
        ago = "not yet" if not (at := self._observer.looked_at) else f"{max(0, time.time() - at):.0f} s ago"
        up = time.monotonic() - self._began
        return page(200, "ok", f"the event loop answers, after {up:.0f} s; last look at the machine: {ago}")

    def _report(self) -> Page:
        report = self._observer.report.value
        if report is None:
            return page(503, *readiness(None).lines)
        return Page(200, encoded(report, self._look_up(report)), "application/json")
