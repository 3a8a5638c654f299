"""Kernel drivers that are slow, fail, or make other nodes than most."""

import shutil
import subprocess
from pathlib import Path

from anyio import to_thread

from .gpus import DRI, Gpus, listed
from .serving import I915, Witness, Witnesses
from .waiting import until


def lists_with(witness: Witness, address: str) -> int:
    """Count the lists in which the kubelet saw a GPU as healthy."""
    return sum(
        address in each.devices and each.devices[address].healthy
        for each in witness.kubelet.resource(I915).lists
    )


async def test_a_gpu_whose_card_follows_is_listed_once_and_whole(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(card_delay_ms=6)
    before = [lists_with(witness, gpus.address(0)) for witness in watched.each]
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    for witness, earlier in zip(watched.each, before, strict=True):
        assert set(await witness.allocated(I915, address)) == {str(DRI / "card0"), str(DRI / "renderD128")}
        assert lists_with(witness, address) == earlier + 1


async def test_a_card_that_comes_very_late_is_part_of_what_allocate_names_then(
    gpus: Gpus, watched: Witnesses
) -> None:
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    await gpus.unbind(address)
    await watched.come_to_have(I915, set())
    gpus.behave(card_delay_ms=1500)
    # The write that binds it returns once the driver is done; what happens meanwhile is what counts.
    binding = subprocess.Popen(["sh", "-c", f"echo {address} > /sys/bus/pci/drivers/i915/bind"])
    try:
        render = DRI / "renderD128"
        await until("the render node", render.exists)
        # sysfs has all of the render node by now, and nothing yet of a card.
        assert Path("/sys/class/drm/renderD128/device/vendor").read_text().strip() == "0x8086"
        assert set(gpus.nodes(address)) == {"renderD"}
    finally:
        assert await to_thread.run_sync(binding.wait, 20) == 0
    await watched.come_to_have(I915, {address})
    for witness in watched.each:
        assert set(await witness.allocated(I915, address)) == {str(DRI / "card0"), str(render)}


def failed_probes() -> int:
    """Count the probes that failed, by the kernel's log."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return said.count("failed with error -5")


async def test_a_probe_that_fails_at_once_leaves_nothing(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(fail=1)
    await _see_that_nothing_is_left(gpus, watched)


async def test_a_probe_that_fails_after_it_made_nodes_leaves_nothing(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(fail=2, card_delay_ms=100)
    await _see_that_nothing_is_left(gpus, watched)


async def _see_that_nothing_is_left(gpus: Gpus, watched: Witnesses) -> None:
    """Plug in a GPU that fails, and one that works after that."""
    before = failed_probes()
    failing = await gpus.plug(0)
    await until("the probe to fail", lambda: failed_probes() > before)
    gpus.behave(fail=0, card_delay_ms=0)
    steady = await gpus.plug(1)
    await watched.come_to_have(I915, {steady})
    assert not gpus.nodes(failing)


async def test_a_gpu_with_a_render_node_alone_is_given_with_that(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(nodes=1)
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    await until("the card to be gone", lambda: set(gpus.nodes(address)) == {"renderD"})
    for witness in watched.each:
        assert set(await witness.allocated(I915, address)) == {str(DRI / "renderD128")}


async def test_a_gpu_with_a_card_node_alone_is_given_with_that(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(nodes=2)
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    for witness in watched.each:
        assert set(await witness.allocated(I915, address)) == {str(DRI / "card0")}


async def test_a_device_that_outlives_its_nodes_is_gone_with_them(gpus: Gpus, watched: Witnesses) -> None:
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    gpus.behave(remove_delay_ms=1500)
    unbinding = subprocess.Popen(
        ["sh", "-c", f"echo {address} > /sys/bus/pci/devices/{address}/driver/unbind"]
    )
    try:
        await watched.come_to_have(I915, set())
        assert Path(f"/sys/bus/pci/devices/{address}/vendor").read_text().strip() == "0x8086"
        assert unbinding.poll() is None
    finally:
        assert await to_thread.run_sync(unbinding.wait, 20) == 0


async def test_nodes_that_udev_opens_later_make_no_second_list(gpus: Gpus, watched: Witnesses) -> None:
    udevd = subprocess.Popen(
        ["/lib/systemd/systemd-udevd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await until("udev to answer", _udev_answers)
        earlier = [lists_with(witness, gpus.address(0)) for witness in watched.each]
        address = await gpus.plug(0)
        await watched.come_to_have(I915, {address})
        node = DRI / "renderD128"
        await until("udev to open the node to its group", lambda: node.stat().st_mode & 0o060 == 0o060)
        subprocess.run(["udevadm", "settle"], check=True)
        assert "by-path" in listed()
        assert {path.resolve() for path in (DRI / "by-path").iterdir()} == {node, DRI / "card0"}
        for witness, before in zip(watched.each, earlier, strict=True):
            assert set(await witness.allocated(I915, address)) == {str(node), str(DRI / "card0")}
            assert lists_with(witness, address) == before + 1
        # udev's links are in the same folder (by-path), so it may stay when the last GPU goes.
        await gpus.unplug(0)
        await watched.come_to_have(I915, set())
        subprocess.run(["udevadm", "settle"], check=True)
    finally:
        udevd.terminate()
        await to_thread.run_sync(udevd.wait, 60)
        shutil.rmtree(DRI, ignore_errors=True)


def _udev_answers() -> bool:
    ping = ["udevadm", "control", "--ping", "--timeout=1"]
    return subprocess.run(ping, capture_output=True, check=False).returncode == 0
