"""What the kernel does, as far as gpuplug is built upon it: should it change, so should the code."""

import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread
from inotify_simple import INotify, flags

from gpuplug.host.sysfs import Roots, scan

from .gpus import DRI, Gpus
from .qmp import QmpError
from .serving import Witnesses
from .waiting import until

_EVERY_EVENT = 0xFFF
_HEAR_UEVENTS = """
import socket, sys
listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
listener.bind((0, 1))
listener.settimeout(float(sys.argv[1]))
print("listening", flush=True)
try:
    while b"/drm/renderD" not in listener.recv(65536):
        pass
    print("heard")
except TimeoutError:
    print("silence")
"""


async def test_inotify_is_silent_on_sysfs_and_on_dev_tells_of_the_folder_alone(gpus: Gpus) -> None:
    with INotify(nonblocking=True) as on_sysfs, INotify(nonblocking=True) as on_dev:
        on_sysfs.add_watch(
            "/sys/class/drm", _EVERY_EVENT & ~(flags.ACCESS | flags.OPEN | flags.CLOSE_NOWRITE)
        )
        on_dev.add_watch("/dev", flags.CREATE | flags.DELETE)
        address = await gpus.plug(0)
        await gpus.bound(address, "i915")
        assert [event.name for event in on_dev.read(timeout=0)] == ["dri"]
        await gpus.unbind(address)
        assert [event.name for event in on_dev.read(timeout=0)] == ["dri"]
        assert on_sysfs.read(timeout=0) == []


async def test_the_folder_comes_back_as_another_and_an_old_watch_stays_silent(gpus: Gpus) -> None:
    address = await gpus.plug(0)
    await gpus.bound(address, "i915")
    with INotify(nonblocking=True) as old:
        old.add_watch(str(DRI), flags.CREATE | flags.DELETE)
        await gpus.unbind(address)
        assert old.read(timeout=0)
        await gpus.bind(address, "i915")
        assert DRI.exists()
        assert old.read(timeout=0) == []


@pytest.mark.parametrize(
    ("namespaces", "outcome"), [(["--net"], "heard"), (["--user", "--map-root-user", "--net"], "silence")]
)
async def test_uevents_reach_a_network_namespace_but_no_user_namespace(
    gpus: Gpus, namespaces: list[str], outcome: str
) -> None:
    patience = "20" if outcome == "heard" else "3"
    line = ["unshare", *namespaces, sys.executable, "-S", "-c", _HEAR_UEVENTS, patience]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        address = await gpus.plug(0)
        await gpus.bound(address, "i915")
        assert listener.stdout.readline() == f"{outcome}\n"


async def test_a_virtio_gpu_is_bound_below_its_pci_device_and_cannot_be_hot_plugged(gpus: Gpus) -> None:
    home = Path("/sys/bus/pci/devices/0000:00:05.0")
    subprocess.run(["modprobe", "virtio-gpu"], check=True)
    try:
        await until(
            "its nodes", lambda: DRI.exists() and [*home.glob("drm/card*"), *home.glob("virtio*/drm/card*")]
        )
        assert (home / "driver").readlink().name == "virtio-pci"
        assert any("-" in path.name for path in Path("/sys/class/drm").iterdir())  # a connector is no GPU
        (found,) = (await to_thread.run_sync(scan, Roots())).gpus
        assert (found.address, found.kernel_driver) == (home.name, "virtio_gpu")
        with pytest.raises(QmpError, match="pluggable"):
            await gpus.plug(0, "virtio-gpu-pci")
    finally:
        # The console uses it, so the module cannot go; its driver can let go of the device.
        (child,) = [path.name for path in home.glob("virtio[0-9]*")]
        Path("/sys/bus/virtio/drivers/virtio_gpu/unbind").write_text(child)


async def test_a_gpu_without_a_bus_device_of_its_own_is_named_and_left_out(watched: Witnesses) -> None:
    subprocess.run(["modprobe", "vgem"], check=True)
    try:
        await watched.logged("vgem")
        (found,) = (await to_thread.run_sync(scan, Roots())).gpus
        assert (found.vendor, found.device, found.pci_class) == (None, None, None)
        for witness in watched.each:
            assert "not advertised" in next(line for line in witness.said().splitlines() if "vgem" in line)
    finally:
        subprocess.run(["rmmod", "vgem"], check=True)
