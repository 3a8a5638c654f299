"""How soon the kubelet knows of a GPU, beside the least that a program needs which lets nodes settle."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

import anyio
import pytest
from anyio import to_thread

from gpuplug.host.sysfs import SETTLING
from gpuplug.host.watch import COALESCE

from .gpus import DRI, Gpus
from .launch import SHARE
from .serving import I915, Witnesses
from .waiting import SECONDS

PLUGS: Final = 100
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
        print(time.time(), newest, flush=True)
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


def _first_about(lines: IO[str], made: float) -> float:
    """Read the floor's word on these nodes; it may have spoken of earlier ones that were on their way out."""
    while True:
        at, newest = map(float, lines.readline().split())
        if newest >= made:
            return at


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


@pytest.mark.long
async def test_the_kubelet_knows_of_a_gpu_soon_after_the_kernel_does(gpus: Gpus, watched: Witnesses) -> None:
    witness = watched.each[0]
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    listed: list[float] = []
    least: list[float] = []
    clock = time.time() - time.monotonic()
    with floor() as beside:
        assert beside.stdout is not None
        for _ in range(PLUGS):
            await gpus.unbind(address)
            await watched.come_to_have(I915, set())
            assert not DRI.exists()
            await gpus.bind(address, "i915")
            await watched.come_to_have(I915, {address})
            latest = witness.kubelet.resource(I915).latest
            assert latest is not None
            # The card is the last node of a GPU, and its event is sent as soon as it is made.
            begun = gpus.nodes(address)["card"].path.stat().st_ctime
            listed.append(latest.at + clock - begun)
            with anyio.fail_after(SECONDS):
                made = gpus.nodes(address)["renderD"].path.stat().st_ctime
                at = await to_thread.run_sync(_first_about, beside.stdout, made, abandon_on_cancel=True)
            least.append(at - begun)
    ours, bare = Figures.of(listed), Figures.of(least)
    row = {
        "what": "100 plugs: p50 and p99 in ms, gpuplug / floor",
        "p50": f"{ours.p50:.0f} / {bare.p50:.0f} ({ours.p50 / bare.p50:.1f}x)",
        "p99": f"{ours.p99:.0f} / {bare.p99:.0f} ({ours.p99 / bare.p99:.1f}x)",
    }
    with (SHARE / "measured").open("a") as file:
        file.write(json.dumps(row) + "\n")
