"""What ``gpuplug serve --listen`` has besides: a witness that keeps what is true, and HTTP to show it."""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from loguru import logger

from gpuplug.commands.inspect import driver_reports
from gpuplug.host.attributes import Roots
from gpuplug.host.listen import spelt
from gpuplug.host.names import access, pci_names
from gpuplug.observe.document import Details
from gpuplug.observe.metrics import Counts
from gpuplug.observe.observer import Observer
from gpuplug.observe.pages import Pages
from gpuplug.observe.web import Server

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from gpuplug.observe.report import Report
    from gpuplug.plugins.loader import Loaded
    from gpuplug.settings import Settings

SWITCH: Final = 0.001
"""Seconds after which a thread that computes lets the event loop go on."""


def watched(
    settings: Settings, loaded: Loaded
) -> tuple[Observer, Callable[[Sequence[socket.socket]], Coroutine[Any, Any, None]]]:
    """Make a witness for ``app.serve``, and what serves its pages on sockets until cancelled."""
    # A page is made in a thread, and Python lets a thread have 5 ms before another one may go on: as long
    # would an Allocate wait that comes in the middle of a scrape.
    sys.setswitchinterval(SWITCH)
    roots = Roots(settings.prefix)
    # Names of ids take a file of a megabyte to find, and change with the GPUs alone.
    names = lru_cache(maxsize=1)(partial(pci_names, roots))

    def look_up(report: Report) -> Details:
        ids = ((gpu.vendor, gpu.device) for gpu in report.gpus)
        wanted = frozenset((v, d) for v, d in ids if v is not None and d is not None)
        return Details(access(roots, [node for gpu in report.gpus for node in gpu.nodes]), names(wanted))

    counts = Counts()
    observer = Observer(driver_reports(loaded), counts, loaded.notes)
    server = Server(Pages(observer, counts, look_up).find)

    async def answer(sockets: Sequence[socket.socket]) -> None:
        where = ", ".join(spelt(listening) for listening in sockets)
        logger.info("/metrics, /readyz, /healthz and /report on http://{}", where)
        await server.serve(sockets)

    return observer, answer
