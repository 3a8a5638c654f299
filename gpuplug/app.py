"""The story: what ``gpuplug serve`` does, from the machine to the kubelet.

::

    /sys/class/drm + /dev/dri ── scan ──► Snapshot        (in a thread that can be given up, read only)
    Snapshot ── settled, build ─────────► Inventory       (in the same one, for it asks the drivers; pure)
    old, new Inventory ── diff ─────────► InventoryDiff   (pure)
    InventoryDiff ── Endpoints.apply ───► one Endpoint per Resource, each with its Latest list

A tick means "look again", and comes from inotify (/dev/dri, the kubelet's folder) or from
the slow resync. Everything runs in one task group: what fails there ends the process, and
what can be expected to fail is handled where it happens and tried again.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from loguru import logger

from gpuplug.allocator import FreshAllocator
from gpuplug.asking import Asking
from gpuplug.core.identity import SOCKET_PREFIX
from gpuplug.core.inventory import build, diff, settled
from gpuplug.host.memory import give_back
from gpuplug.host.pci import survey
from gpuplug.host.sockets import remove_abandoned
from gpuplug.host.sysfs import Roots, scan
from gpuplug.host.watch import Place, open_notifier, watch
from gpuplug.kubelet.endpoint import Endpoints, KubeletDirectory
from gpuplug.latest import Latest
from gpuplug.model import Inventory
from gpuplug.observe.changes import around, changes
from gpuplug.observe.refusals import ALL_MODULES
from gpuplug.witness import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskStatus

    from gpuplug.host.watch import Notifier
    from gpuplug.model import Snapshot
    from gpuplug.observe.changes import Line
    from gpuplug.plugins.loader import Loaded
    from gpuplug.settings import Settings
    from gpuplug.witness import Witness

DRIVERS_PROBE: Final = 1.0
"""Seconds after a tick until GPUs without a DRM device are told of: kernel drivers may be at it."""


async def serve(
    settings: Settings,
    loaded: Loaded,
    *,
    notifier: Callable[[], Notifier] = open_notifier,
    witness: Witness = NOBODY,
    task_status: TaskStatus[Endpoints] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve every GPU of the machine until cancelled; leave no socket behind.

    :param notifier: opens inotify.
    :param witness: told what happens: with ``--listen`` it keeps what /metrics and its like show.
    :param task_status: told the Endpoints once everything is set up.
    """
    for broken in loaded.broken:
        logger.warning("driver {} is not used: {}", broken.name, broken.reason)
    for note in loaded.notes:
        logger.warning("{}", note)
    roots = Roots.of(settings)
    machine_ticks: Latest[None] = Latest(None)
    kubelet = KubeletDirectory(settings.kubelet_dir, os.urandom(3).hex(), Latest(None))
    await _clean_up(settings.kubelet_dir)
    async with anyio.create_task_group() as tasks:
        ask = Asking(partial(machine_ticks.set, None))
        allocate = FreshAllocator(roots, loaded.drivers, settings, ask)
        endpoints = Endpoints(tasks, kubelet, allocate, settings.allocation_policy, witness)
        ticks = {Place(roots.dri): machine_ticks, Place(settings.kubelet_dir): kubelet.ticks}
        for path in loaded.companion_nodes:
            ticks[Place(f"{roots.prefix}{path}")] = machine_ticks
        watching = partial(watch, tuple(ticks), partial(_tick, ticks), open_=notifier)
        tasks.start_soon(watching, name="watch")
        tasks.start_soon(_resync, settings.resync, partial(_tick, ticks, frozenset(ticks)), name="resync")
        tasks.start_soon(_tell_of_displays, roots, machine_ticks, witness, name="displays")
        task_status.started(endpoints)
        await _follow_machine(settings, loaded, roots, machine_ticks, endpoints, witness, ask)


async def _follow_machine(
    settings: Settings,
    loaded: Loaded,
    roots: Roots,
    ticks: Latest[None],
    endpoints: Endpoints,
    witness: Witness,
    ask: Asking,
) -> None:
    """Look, decide and publish, at every tick."""

    def look(known: Inventory) -> tuple[Snapshot, Inventory]:
        seen = settled(scan(roots, loaded.sysfs_attributes, loaded.companion_nodes), known)
        return seen, build(seen, loaded.drivers, settings, known)

    inventory: Inventory | None = None
    asked = time.monotonic()
    while True:
        version, began = ticks.version, time.monotonic()
        known = inventory or Inventory()
        snapshot, latest = await ask(partial(look, known))
        took = 1000 * (time.monotonic() - began)
        logger.debug("looked at the machine: {} GPUs in {:.1f} ms", len(latest.judgements), took)
        _say(changes(inventory, latest))
        witness.looked(latest, asked)
        endpoints.apply(diff(known, latest))
        if inventory is None:
            await anyio.to_thread.run_sync(give_back)
        inventory = latest
        # What was seen in the middle of coming or going is looked at again when that is over.
        with anyio.move_on_after(snapshot.settled_in or None):
            await ticks.newer(version)
        if not snapshot.settled_in:
            asked = time.monotonic()


async def _tell_of_displays(roots: Roots, ticks: Latest[None], witness: Witness) -> None:
    """Tell of GPUs that no kernel driver made a DRM device for, and why: at the start, and if it changes."""
    known = None
    while True:
        version = ticks.version
        await anyio.sleep(DRIVERS_PROBE)
        seen = await anyio.to_thread.run_sync(survey, roots, ALL_MODULES)
        _say(around(known, seen))
        witness.surveyed(seen)
        known = seen
        await ticks.newer(version)


def _say(lines: Iterable[Line]) -> None:
    for line in lines:
        (logger.bind(gpu=line.gpu) if line.gpu else logger).log(line.level, "{}", line.text)


def _tick(ticks: dict[Place, Latest[None]], touched: frozenset[Place]) -> None:
    for place in touched:
        ticks[place].set(None)


async def _resync(seconds: float, tick: partial[None]) -> None:
    """Look again now and then, whatever the events say."""
    while True:
        await anyio.sleep(seconds)
        tick()


async def _clean_up(directory: str) -> None:
    """Remove the sockets of a process like this one that was killed."""
    removed = await anyio.to_thread.run_sync(remove_abandoned, directory, SOCKET_PREFIX)
    if removed:
        logger.info("removed what a killed process left behind: {}", ", ".join(removed))
