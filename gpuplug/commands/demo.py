"""``gpuplug demo``: all of it on a made-up machine, with no root, no GPU and no cluster.

The serving code is the one of ``gpuplug serve``, on real sockets and real inotify. Made up
are the machine (a folder with the sysfs and devfs of one) and the kubelet (in this process).
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from gpuplug import app, log
from gpuplug.commands.demo_gpu import parse_gpu, show_gpu
from gpuplug.commands.prepare import WORDS, prepared
from gpuplug.commands.say import describe, say, say_answer
from gpuplug.errors import SettingError
from gpuplug.plugins import loader
from gpuplug.settings import Settings
from gpuplug.testing import FakeKubelet, Machine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

I915: Final = "gpu.intel.com/i915"
XE: Final = "gpu.intel.com/xe"
_FIRST, _SECOND, _THIRD = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Run the demonstration and return 0; 1 if something did not happen.

    :raises SettingError: for an option or a variable that cannot be used.
    """
    keep, named, words = bool(given["keep"]), given["gpu"], given.get(WORDS)
    play: Callable[[Path], Awaitable[str]]
    failure = ""
    if named is not None:
        gpu = parse_gpu(str(named))
        settings, loaded = prepared(given, environ)
        play = partial(show_gpu, loaded, settings, gpu=gpu, keep=keep)
    elif isinstance(words, list):
        raise SettingError(f"unknown option or argument: {words[0]!r}")
    else:
        loaded = loader.load()
        failure = missing_drivers(loaded)
        play = partial(show, loaded, keep=keep)
    log.set_up("info" if keep else "error", "text")
    with tempfile.TemporaryDirectory(prefix="gpuplug-demo-") as folder:
        failure = failure or anyio.run(_until_interrupted, play, Path(folder))
    if failure:
        print(f"gpuplug demo: {failure}", file=sys.stderr)  # noqa: T201 - as a command's other errors
    return 1 if failure else 0


def missing_drivers(loaded: loader.Loaded) -> str:
    """Say which of the drivers that the demonstration needs are not installed; empty if all are."""
    missing = {"i915", "xe"} - {driver.name for driver in loaded.drivers}
    return f"no driver {' and no driver '.join(sorted(missing))}: install gpuplug-intel" if missing else ""


async def _until_interrupted(show: Callable[[Path], Awaitable[str]], folder: Path) -> str:
    failures: list[str] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:

            async def play() -> None:
                failures.append(await show(folder))
                tasks.cancel_scope.cancel()

            tasks.start_soon(play)
            async for _ in signals:
                tasks.cancel_scope.cancel()
    return "".join(failures)


async def show(loaded: loader.Loaded, folder: Path, *, keep: bool, within: float = 5.0) -> str:
    """Set the stage, machine, kubelet and gpuplug itself, and show everything.

    :param folder: an empty folder, with a path short enough for sockets in it.
    :param within: seconds that each step may take.
    :return: what did not happen; empty if all did.
    """
    machine = Machine(folder / "machine")
    say(
        "gpuplug demo: a made-up machine, a kubelet in this process, and the code of `gpuplug serve`.\n\n"
        "The machine has two GPUs:"
    )
    for gpu in (
        machine.add_gpu(_FIRST, driver="i915", numa_node=0),
        machine.add_gpu(_SECOND, driver="xe", device=0xE20B, numa_node=1),
    ):
        say(f"  {describe(machine, gpu)}")
    settings = Settings(prefix=str(machine.root), kubelet_dir=str(folder / "kubelet"))
    async with FakeKubelet(folder / "kubelet") as kubelet, anyio.create_task_group() as tasks:
        begun = time.monotonic()
        tasks.start_soon(app.serve, settings, loaded)
        try:
            await _Show(machine, kubelet, begun, within).play()
        except TimeoutError as error:
            tasks.cancel_scope.cancel()
            return str(error)
        if keep:
            say(
                f"\nIt stays until you press Ctrl-C. The machine is in {machine.root}; for example\n"
                f"  rm {machine.dri}/card0\nmakes the first GPU unhealthy."
            )
            await anyio.sleep_forever()
        tasks.cancel_scope.cancel()
    say("\ngpuplug was told to stop: its sockets are gone. That is all.")
    return ""


@dataclass(frozen=True, slots=True)
class _Show:
    """The scenes, in their order."""

    machine: Machine
    kubelet: FakeKubelet
    begun: float
    within: float

    async def play(self) -> None:
        """Play every scene.

        :raises TimeoutError: if the kubelet does not get to know what it should.
        """
        say("\ngpuplug starts, serves one socket per resource, and registers:")
        for resource, address in ((I915, _FIRST), (XE, _SECOND)):
            await self._arrives(resource, {address}, "after the start", self.begun)
        await self._allocate()
        say(f"\nA third GPU is plugged in, {_THIRD} with i915:")
        self.machine.add_gpu(_THIRD, driver="i915", numa_node=1)
        await self._arrives(I915, {_FIRST, _THIRD}, "later")
        say("\nIt is unplugged:")
        self.machine.remove_gpu(_THIRD)
        await self._arrives(I915, {_FIRST}, "later")
        say(f"\n{_SECOND} is rebound from the kernel driver xe to i915:")
        self.machine.rebind(_SECOND, "i915")
        rebound = time.monotonic()
        await self._arrives(XE, set(), "later", rebound)
        await self._arrives(I915, {_FIRST, _SECOND}, "later", rebound)
        say("\nThe kubelet restarts; it deletes all sockets and knows nothing any more:")
        await self.kubelet.restart()
        restarted = time.monotonic()
        await self._arrives(I915, {_FIRST, _SECOND}, "after its socket was there", restarted)
        await self._arrives(XE, set(), "after its socket was there", restarted)

    async def _arrives(self, resource: str, devices: set[str], when: str, since: float | None = None) -> None:
        """Wait for a list at the kubelet, and say how long it took."""
        since = time.monotonic() if since is None else since
        await self.kubelet.wait_for_devices(resource, devices, within=self.within)
        latest = self.kubelet.resource(resource).latest
        took = 1000 * ((latest.at if latest else since) - since)
        shown = ", ".join(sorted(devices)) or "no device"
        say(f"  {took:5.0f} ms {when} the kubelet has {resource}: {shown}")

    async def _allocate(self) -> None:
        say(f"\nA container with `limits: {{{I915}: 1}}` is admitted; Allocate answers:")
        say_answer((await self.kubelet.allocate(I915, [[_FIRST]])).container_responses[0])
