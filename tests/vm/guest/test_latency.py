"""How soon the kubelet knows of a GPU, beside the least that a program needs which lets nodes settle."""

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

import anyio
from anyio import to_thread

from gpuplug.host.sysfs import SETTLING
from gpuplug.host.watch import COALESCE

from .gpus import DRI, Gpus
from .serving import I915, SHARE, Witnesses

PLUGS: Final = 100
_UEVENTS: Final = 15
_FLOOR: Final = """
import ctypes, os, sys, time
from inotify_simple import INotify, flags
coalesce, settling = float(sys.argv[1]), float(sys.argv[2])
mask = flags.CREATE | flags.DELETE
with INotify() as notifier:
    notifier.add_watch("/dev", mask)
    print("ready", flush=True)
    while True:
        notifier.read()
        time.sleep(coalesce)
        notifier.read(timeout=0)
        try:
            notifier.add_watch("/dev/dri", mask)
            newest = max(os.stat(f"/dev/dri/{name}").st_ctime for name in os.listdir("/dev/dri"))
        except (OSError, ValueError):
            continue
        time.sleep(max(0.0, newest + settling - time.time()))
        print(time.monotonic(), flush=True)
"""
"""inotify, a pause for the burst, the nodes' rest: what is left of gpuplug if it had nothing to do."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is said of a hundred durations, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Figures":
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return cls(1000 * cuts[49], 1000 * cuts[98])


@contextmanager
def uevents() -> Iterator[socket.socket]:
    """Hear of the kernel's events as they are sent."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _UEVENTS) as listener:
        listener.bind((0, 1))
        listener.settimeout(20)
        yield listener


def card_added(listener: socket.socket) -> float:
    """Wait for the event of a card node, the last of a GPU; return when it was heard."""
    while True:
        message = listener.recv(65536)
        if message.startswith(b"add@") and b"/drm/card" in message:
            return time.monotonic()


def _first_after(lines: IO[str], begun: float) -> float:
    """Read the floor's word on this GPU; it may have spoken of nodes that were on their way out."""
    return next(at for at in map(float, lines) if at > begun)


@contextmanager
def floor() -> Iterator["subprocess.Popen[str]"]:
    """Run the floor beside gpuplug, on the same events."""
    line = [sys.executable, "-c", _FLOOR, str(COALESCE), str(SETTLING)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


async def test_the_kubelet_knows_of_a_gpu_soon_after_the_kernel_does(gpus: Gpus, watched: Witnesses) -> None:
    witness = watched.each[0]
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    listed: list[float] = []
    least: list[float] = []
    with uevents() as listener, floor() as beside:
        assert beside.stdout is not None
        for _ in range(PLUGS):
            await gpus.unbind(address)
            await watched.come_to_have(I915, set())
            assert not DRI.exists()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gpus.bind, address, "i915")
                begun = await to_thread.run_sync(card_added, listener)
            await witness.comes_to_have(I915, {address})
            latest = witness.kubelet.resource(I915).latest
            assert latest is not None
            listed.append(latest.at - begun)
            least.append(await to_thread.run_sync(_first_after, beside.stdout, begun) - begun)
    ours, bare = Figures.of(listed), Figures.of(least)
    row = {
        "what": "100 plugs: p50 and p99 in ms, gpuplug / floor",
        "p50": f"{ours.p50:.0f} / {bare.p50:.0f} ({ours.p50 / bare.p50:.1f}x)",
        "p99": f"{ours.p99:.0f} / {bare.p99:.0f} ({ours.p99 / bare.p99:.1f}x)",
    }
    with (SHARE / "measured").open("a") as file:
        file.write(json.dumps(row) + "\n")
