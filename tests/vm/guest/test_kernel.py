"""What the kernel does, as far as gpuplug is built upon it: should it change, so should the code."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from anyio import to_thread
from inotify_simple import INotify, flags

from gpuplug.host.sysfs import Roots, scan

from .gpus import DRI, Gpus
from .qmp import QmpError
from .serving import VIRTIO, Witnesses
from .waiting import until

_EVERY_EVENT = 0xFFF
_HEAR_UEVENTS = """
import socket, sys
listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
listener.bind((0, 1))
listener.setblocking(False)
print("listening", flush=True)
sys.stdin.readline()
try:
    while b"/drm/renderD" not in listener.recv(65536):
        pass
    print("heard")
except BlockingIOError:
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


async def test_the_render_node_comes_before_the_card_and_goes_after_it(gpus: Gpus) -> None:
    await gpus.plug(0)
    await until("both nodes", (DRI / "card0").exists)
    with INotify(nonblocking=True) as notifier:
        notifier.add_watch(str(DRI), flags.CREATE | flags.DELETE)
        address = await gpus.plug(1)
        await until("both nodes", (DRI / "card1").exists)
        await gpus.unbind(address)
        seen = [(bool(event.mask & flags.CREATE), event.name) for event in notifier.read(timeout=0)]
    made = [(True, "renderD129"), (True, "card1")]
    assert seen == [*made, *[(False, name) for _, name in reversed(made)]]


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_mount_of_the_folder_keeps_the_kernel_from_telling_that_it_went(
    gpus: Gpus, *, mounted: bool
) -> None:
    address = await gpus.plug(0)
    await gpus.bound(address, "i915")
    mount = f"mount --bind {DRI} /mnt && " if mounted else ""
    line = ["unshare", "--mount", "sh", "-c", f"{mount}echo ready && exec sleep 60"]
    with INotify(nonblocking=True) as notifier, subprocess.Popen(line, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        try:
            notifier.add_watch(str(DRI), flags.DELETE_SELF)
            await gpus.unbind(address)
            assert not DRI.exists()
            told = [event for event in notifier.read(timeout=0) if event.mask & flags.DELETE_SELF]
            assert bool(told) != mounted
        finally:
            holder.kill()


async def test_uevents_reach_a_network_namespace_but_no_user_namespace(gpus: Gpus) -> None:
    with ExitStack() as stack:
        heard = {}
        for name, namespaces in (("network", ["--net"]), ("user", ["--user", "--map-root-user", "--net"])):
            line = ["unshare", *namespaces, sys.executable, "-I", "-S", "-c", _HEAR_UEVENTS]
            listener = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            heard[name] = stack.enter_context(listener)
        for listener in heard.values():
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listening\n"
        await gpus.bound(await gpus.plug(0), "i915")
        # The kernel has handed a uevent to all who listen by the time that the nodes can be seen.
        said = {name: listener.communicate("now\n", timeout=20)[0] for name, listener in heard.items()}
    assert said == {"network": "heard\n", "user": "silence\n"}


# Its driver's buffers may outlive it when it is unbound, as the console has one.
@pytest.mark.kernel_warns("drm_mm_takedown")
async def test_a_virtio_gpu_is_bound_below_its_pci_device_and_served_when_asked_for(
    gpus: Gpus, watched: Witnesses
) -> None:
    home = Path("/sys/bus/pci/devices/0000:00:05.0")
    subprocess.run(["modprobe", "virtio-gpu"], check=True)
    try:
        await watched.come_to_have(VIRTIO, {home.name})
        assert (home / "driver").readlink().name == "virtio-pci"
        names = {path.name for path in Path("/sys/class/drm").iterdir()}
        assert "version" in names
        assert any("-" in name for name in names)  # a connector
        (others,) = [path.parent for path in home.glob("**/drm/controlD*")]
        assert {path.name for path in others.iterdir()} == {"card0", "controlD64", "renderD128"}
        (found,) = (await to_thread.run_sync(scan, Roots())).gpus
        assert (found.address, found.kernel_driver) == (home.name, "virtio_gpu")
        for witness in watched.each:
            nodes = await witness.allocated(VIRTIO, home.name)
            assert set(nodes) == {str(DRI / "card0"), str(DRI / "renderD128")}
        with pytest.raises(QmpError, match="pluggable"):
            await gpus.plug(0, "virtio-gpu-pci")
    finally:
        # The console uses it, so the module cannot go; its driver can let go of the device.
        (child,) = [path.name for path in home.glob("virtio[0-9]*")]
        Path("/sys/bus/virtio/drivers/virtio_gpu/unbind").write_text(child)
    await watched.come_to_have(VIRTIO, set())
    # And bound again: real hotplug of a real driver.
    Path("/sys/bus/virtio/drivers/virtio_gpu/bind").write_text(child)
    await watched.come_to_have(VIRTIO, {home.name})
    Path("/sys/bus/virtio/drivers/virtio_gpu/unbind").write_text(child)
    await watched.come_to_have(VIRTIO, set())


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
