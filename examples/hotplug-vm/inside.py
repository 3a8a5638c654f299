"""What runs in the virtual machine: gpuplug, a kubelet that says what it hears, and the letters."""

# ruff: noqa: INP001 - a program, not a package

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpuplug.testing import FakeKubelet
from tests.vm.guest.gpus import QEMU_DEVICES, Gpus
from tests.vm.guest.launch import DAEMON_SET
from tests.vm.guest.serving import Witness, witness
from tests.vm.harness.machine import PORTS

if TYPE_CHECKING:
    from gpuplug.testing import FakeKubelet

LETTERS = {"i": "i915", "x": "xe", "m": "amdgpu", "f": "foogpu"}
HELP = "i, x, m, f: plug in a GPU of i915, xe, amdgpu, foogpu  u: pull the last out  b: rebind it  q: quit"


def say(line: str) -> None:
    """Print at once: a person waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def show(seen: Witness) -> None:
    """Say what the kubelet has of each resource, whenever that changes."""
    shown: dict[str, list[str]] = {}
    while True:
        now = await seen.kubelet.wait_for(partial(_changed, shown), within=86_400)
        for name, devices in now.items():
            say(f"  kubelet: {name}: {', '.join(devices) or 'no device'}")
        shown.update(now)


def _changed(shown: dict[str, list[str]], kubelet: FakeKubelet) -> dict[str, list[str]]:
    names = {registration.resource for registration in kubelet.registrations}
    now = {name: sorted(kubelet.resource(name).healthy) for name in sorted(names)}
    return {name: devices for name, devices in now.items() if shown.get(name) != devices}


async def obey(gpus: Gpus) -> None:
    """Do what each letter says, until there is no more or the last is `q`."""
    plugged: list[str] = []
    while (line := await to_thread.run_sync(sys.stdin.readline)) and (letter := line.strip()) != "q":
        last = len(plugged) - 1
        if letter in LETTERS and len(plugged) < PORTS:
            plugged.append(await gpus.plug(len(plugged), LETTERS[letter]))
            say(f"  plugged in: {plugged[-1]}, a {QEMU_DEVICES[LETTERS[letter]]} on {LETTERS[letter]}")
        elif letter == "u" and plugged:
            await gpus.unplug(last)
            say(f"  pulled out: {plugged.pop()}")
        elif letter == "b" and plugged:
            driver = "i915" if gpus.driver(plugged[-1]) == "xe" else "xe"
            await gpus.rebind(plugged[-1], driver)
            say(f"  rebound: {plugged[-1]} to {driver}")
        else:
            say(f"  {HELP}")


async def main() -> None:
    """Serve, show and obey."""
    gpus = Gpus()
    async with witness("try", DAEMON_SET) as seen, anyio.create_task_group() as tasks:
        tasks.start_soon(show, seen)
        say(f"gpuplug serves.  {HELP}")
        await obey(gpus)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
