"""``gpuplug demo --gpu foogpu``: one GPU on a kernel driver that is named, for who writes a driver package.

What the driver decides, what a container gets, and a plug and unplug, on a made-up machine.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from gpuplug import app
from gpuplug.commands.inspect import look
from gpuplug.commands.say import describe, say, say_answer
from gpuplug.errors import SettingError
from gpuplug.testing import FakeKubelet, Machine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuplug.observe.report import GpuReport
    from gpuplug.plugins.loader import Loaded
    from gpuplug.settings import Settings

ADDRESS: Final = "0000:03:00.0"
_NOBODY: Final = 0xFFF0
"""A PCI vendor id that nobody has."""


def parse_gpu(text: str) -> tuple[str, dict[str, str]]:
    """Read ``KERNEL_DRIVER[,FILE=TEXT…]``: the kernel driver, and files below the GPU's folder in sysfs.

    :raises SettingError: naming what cannot be used.
    """
    driver, *pairs = text.split(",")
    if not driver or "/" in driver or not driver.isprintable():
        raise SettingError(f"--gpu: {driver!r} is not the name of a kernel driver")
    files = {}
    for pair in pairs:
        name, equals, content = pair.partition("=")
        if not equals or not name or {"", ".", ".."} & set(name.split("/")) or "\0" in pair:
            raise SettingError(f"--gpu: {pair!r} is not FILE=TEXT, a file below the GPU's folder in sysfs")
        files[name] = f"{content}\n"
    return driver, files


async def show_gpu(
    loaded: Loaded,
    settings: Settings,
    folder: Path,
    gpu: tuple[str, Mapping[str, str]],
    *,
    keep: bool,
    within: float = 5.0,
) -> str:
    """Show what becomes of the GPU.

    :param gpu: its kernel driver, and its files in sysfs.
    :param folder: an empty folder, with a path short enough for sockets in it.
    :param within: seconds that each step may take.
    :return: what did not happen; empty if all did.
    """
    machine = Machine(folder / "machine")
    driver, files = gpu
    made = machine.add_gpu(ADDRESS, driver=driver, vendor=_NOBODY, device=1, attributes=files)
    for path in sorted(loaded.companion_nodes):
        machine.add_device(path.removeprefix("/dev/"))
    say(f"The machine has one GPU:\n  {describe(machine, made)}")
    for name, text in sorted(files.items()):
        say(f"    {name}: {text.strip()}")
    settings = replace(settings, prefix=str(machine.root), kubelet_dir=str(folder / "kubelet"))
    report = await anyio.to_thread.run_sync(look, settings, loaded)
    for problem in (*report.problems, *(each.problem for each in report.drivers if each.problem)):
        say(f"\nA driver package has a fault: {problem}")
    (found,) = (each for each in report.gpus if each.address == ADDRESS)
    if found.offer is None or found.resource is None:
        reason = found.refusal.reason if found.refusal else ""
        advice = found.refusal.advice if found.refusal else ""
        return f"it is not advertised: {reason}\nwhat to do: {advice}"
    say(f"\nDriver {found.offer.driver} ({found.package or 'no package'}) claims it as {found.resource}.")
    async with FakeKubelet(folder / "kubelet") as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(app.serve, settings, loaded)
        try:
            await _play(machine, kubelet, found, driver, within)
        except TimeoutError as error:
            tasks.cancel_scope.cancel()
            return str(error)
        if keep:
            say(f"\nIt stays until you press Ctrl-C. The GPU's sysfs is in {machine.device(ADDRESS)}")
            await anyio.sleep_forever()
        tasks.cancel_scope.cancel()
    return ""


async def _play(machine: Machine, kubelet: FakeKubelet, found: GpuReport, driver: str, within: float) -> None:
    """Play the scenes; raise TimeoutError if the kubelet does not get to know what it should."""
    resource, offer = str(found.resource), found.offer
    ids = set() if offer is None else {str(id_) for id_ in offer.ids()}
    if offer is not None and not offer.verdict.healthy:
        await kubelet.wait_for(lambda k: k.resource(resource).devices.keys() == ids, within=within)
        say(f"It is unhealthy, and given to no pod: {offer.verdict.reason}")
        return
    await kubelet.wait_for_devices(resource, ids, within=within)
    say(f"\nThe kubelet has {resource}: {', '.join(sorted(ids))}")
    say(f"A container with `limits: {{{resource}: 1}}` gets:")
    say_answer((await kubelet.allocate(resource, [[ADDRESS]])).container_responses[0])
    begun = time.monotonic()
    machine.unbind(ADDRESS)
    await kubelet.wait_for_devices(resource, set(), within=within)
    say(f"\nIt is unbound from {driver}: {_ms(begun)} later the kubelet has no device.")
    begun = time.monotonic()
    machine.bind(ADDRESS, driver)
    await kubelet.wait_for_devices(resource, ids, within=within)
    say(f"It is bound again: {_ms(begun)} later the kubelet has it back.")


def _ms(begun: float) -> str:
    return f"{1000 * (time.monotonic() - begun):.0f} ms"
