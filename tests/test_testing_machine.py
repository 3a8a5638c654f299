"""The made-up machine has the shape and the order of effects of a real one."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpuplug.testing
from gpuplug.testing import Lie, Machine, break_node
from gpuplug.testing.devfs import Links, free_minor, node_maker
from gpuplug.testing.lies import HUGE, put_file, put_unreadable
from gpuplug.testing.variants import add_vfs, add_virtio_gpu, remove_vfs

if TYPE_CHECKING:
    from gpuplug.testing.devfs import NodeMode

A, B = "0000:03:00.0", "0000:04:00.0"


@pytest.fixture(params=["auto", "links"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    mode: NodeMode = request.param
    return Machine(tmp_path, nodes=mode)


def numbers_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    assert stat.S_ISCHR(status.st_mode)
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def stated_numbers(machine: Machine, name: str) -> tuple[int, int]:
    major, minor = (machine.sys / "class/drm" / name / "dev").read_text().split(":")
    return int(major), int(minor)


def link_text(path: Path) -> str:
    return str(path.readlink())


def everything(machine: Machine) -> set[str]:
    folders = (machine.sys, machine.dev)
    return {str(path) for folder in folders for path in folder.rglob("*")}


def test_a_machine_without_gpus_has_drm_and_no_dev_dri(machine: Machine) -> None:
    assert [path.name for path in (machine.sys / "class/drm").iterdir()] == ["version"]
    assert machine.dev.is_dir()
    assert not machine.dri.exists()


def test_a_node_is_a_character_device_with_the_numbers_that_sysfs_states(machine: Machine) -> None:
    gpu = machine.add_gpu()
    assert gpu.nodes == ("card0", "renderD128")
    for name in gpu.nodes:
        assert numbers_of(machine.dri / name) == stated_numbers(machine, name)


def test_sysfs_has_the_links_and_files_that_the_kernel_makes(machine: Machine) -> None:
    machine.add_gpu(numa_node=1, attributes={"sriov_totalvfs": "7\n", "gt/gt0/id": "0\n"})
    home = machine.sys / "devices/pci0000:03" / A
    drm = machine.sys / "class/drm"
    assert link_text(drm / "card0") == f"../../devices/pci0000:03/{A}/drm/card0"
    assert link_text(drm / "card0" / "device") == f"../../../{A}"
    assert link_text(drm / "card0-HDMI-A-1" / "device") == "../../card0"
    assert link_text(home / "driver") == "../../../bus/pci/drivers/i915"
    assert link_text(home / "subsystem") == "../../../bus/pci"
    assert link_text(machine.sys / "bus/pci/devices" / A) == f"../../../devices/pci0000:03/{A}"
    assert (machine.sys / "bus/pci/drivers/i915" / A).resolve() == home
    assert {path.name for path in (home / "drm").iterdir()} == {"card0", "renderD128"}
    texts = {name: (home / name).read_text() for name in ("vendor", "device", "class", "numa_node")}
    assert texts == {"vendor": "0x8086\n", "device": "0x56a0\n", "class": "0x030000\n", "numa_node": "1\n"}
    assert (home / "gt/gt0/id").read_text() == "0\n"
    assert (home / "uevent").read_text().startswith("DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:56A0\n")
    assert "DEVNAME=dri/renderD128\n" in (drm / "renderD128/uevent").read_text()


def test_a_platform_gpu_has_no_ids_and_a_numa_node_only_if_one_is_known(machine: Machine) -> None:
    machine.add_gpu("fd940000.gpu", bus="platform", driver="panfrost")
    machine.add_gpu("vgem", bus="faux", driver=None, render=False, numa_node=0)
    home = machine.device("fd940000.gpu")
    assert home == machine.sys / "devices/platform/fd940000.gpu"
    assert not {"vendor", "device", "class", "numa_node"} & {path.name for path in home.iterdir()}
    vgem = machine.device("vgem")
    assert (vgem / "numa_node").read_text() == "0\n"
    assert not (vgem / "driver").exists()
    assert machine.nodes_of("vgem") == ("card1",)


def test_an_unknown_numa_node_is_minus_one_on_the_pci_bus(machine: Machine) -> None:
    machine.add_gpu()
    assert (machine.device(A) / "numa_node").read_text() == "-1\n"


def test_numbers_are_the_next_free_ones_unless_given(machine: Machine) -> None:
    assert machine.add_gpu(A, card=1, render=130).nodes == ("card1", "renderD130")
    assert machine.add_gpu(B).nodes == ("card0", "renderD128")
    machine.remove_gpu(A)
    assert machine.add_gpu(A, card=False).nodes == ("renderD129",)
    machine.remove_gpu(B)
    assert machine.add_gpu(B, render=False).nodes == ("card0",)


def test_past_64_gpus_both_kinds_take_numbers_from_one_pool(tmp_path: Path) -> None:
    gpus = Machine(tmp_path).add_gpus(66, numa_nodes=2)
    assert [gpu.nodes for gpu in gpus[63:]] == [
        ("card63", "renderD191"),
        ("card193", "renderD192"),
        ("card195", "renderD194"),
    ]
    assert [gpu.address for gpu in gpus[31:33]] == ["0000:03:1f.0", "0000:04:00.0"]
    assert free_minor("card", set(range(64)) | {192}) == 193


def test_dev_dri_goes_with_the_last_node_and_comes_back_with_another_inode(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    before = machine.dri.stat().st_ino
    machine.remove_gpu(A)
    assert machine.dri.stat().st_ino == before
    for _ in range(3):
        machine.remove_gpu(B)
        assert not machine.dri.exists()
        machine.add_gpu(B)
        assert machine.dri.stat().st_ino != before
        before = machine.dri.stat().st_ino


def test_dev_dri_gets_another_inode_even_if_its_number_is_free_again(machine: Machine) -> None:
    machine.add_gpu(A)
    before = machine.dri.stat().st_ino
    machine.remove_gpu(A)
    for spare in (machine.root / ".spares").glob("tmp*"):
        spare.rmdir()
    machine.add_gpu(A)
    assert machine.dri.stat().st_ino != before


def test_a_removed_gpu_leaves_nothing_but_the_driver(machine: Machine) -> None:
    machine.add_gpu(A, driver="xe")
    machine.remove_gpu(A)
    before = everything(machine)
    machine.add_gpu(A, driver="xe")
    assert everything(machine) != before
    machine.remove_gpu(A)
    assert everything(machine) == before
    assert (machine.sys / "bus/pci/drivers/xe").is_dir()


def test_a_gpu_whose_driver_changes_keeps_its_address(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    gpu = machine.rebind(B, "xe", card=7)
    assert gpu.nodes == ("card7", "renderD129")
    assert (machine.device(B) / "driver").resolve().name == "xe"
    assert (machine.device(B) / "uevent").read_text().startswith("DRIVER=xe\n")
    assert not (machine.sys / "bus/pci/drivers/i915" / B).exists()


def test_an_unbound_gpu_stays_on_the_bus_and_can_be_bound_again(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.unbind(A)
    assert machine.nodes_of(A) == ()
    assert not (machine.device(A) / "driver").is_symlink()
    assert "DRIVER" not in (machine.device(A) / "uevent").read_text()
    assert not machine.dri.exists()
    machine.unbind(A)
    assert machine.bind(A, "vfio-pci", card=False, render=False).nodes == ()
    with pytest.raises(ValueError, match="has a driver already"):
        machine.bind(A, "i915")


def test_nodes_can_come_and_go_one_by_one(machine: Machine) -> None:
    machine.add_gpu(A, card=False)
    assert machine.add_node(A, "card") == "card0"
    machine.devfs.remove("card0")
    assert machine.nodes_of(A) == ("card0", "renderD128")
    machine.devfs.add("card0")
    machine.remove_node("card0")
    machine.remove_node("card0")
    assert machine.nodes_of(A) == ("renderD128",)
    assert [path.name for path in (machine.sys / "class/drm").glob("card*")] == []


def test_a_second_machine_on_the_folder_goes_on_where_the_first_is(tmp_path: Path) -> None:
    Machine(tmp_path).add_gpu(A)
    other = Machine(tmp_path)
    assert other.add_gpu(B).nodes == ("card1", "renderD129")
    other.remove_gpu(A)
    assert other.add_gpu(A).nodes == ("card0", "renderD128")


def test_what_cannot_be_is_an_error(machine: Machine) -> None:
    machine.add_gpu(A)
    with pytest.raises(ValueError, match="plugged in already"):
        machine.add_gpu(A)
    with pytest.raises(ValueError, match="card0 is taken"):
        machine.add_gpu(B, card=0)
    with pytest.raises(ValueError, match="not a PCI address"):
        machine.add_gpu("3:0.0")
    with pytest.raises(ValueError, match="not the name of a DRM node"):
        machine.devfs.add("controlD64")
    with pytest.raises(LookupError, match="no GPU 0000:05"):
        machine.remove_gpu("0000:05:00.0")
    with pytest.raises(LookupError, match="no node card9"):
        machine.node_sysfs("card9")


def test_attributes_can_be_rewritten_and_removed(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.write_attribute(A, "numa_node", b"\xff\x00")
    assert (machine.device(A) / "numa_node").read_bytes() == b"\xff\x00"
    machine.remove_attribute(A, "driver")
    machine.write_attribute(A, "driver", "no link\n")
    machine.remove_gpu(A)
    machine.add_gpu(A)
    put_unreadable(machine.device(A) / "uevent")
    machine.remove_gpu(A)


def test_real_nodes_where_they_are_allowed_and_links_where_not(tmp_path: Path) -> None:
    maker = node_maker(tmp_path, "auto")
    try:
        os.mknod(tmp_path / "node", stat.S_IFCHR, os.makedev(226, 0))
    except PermissionError:
        assert isinstance(maker, Links)
        with pytest.raises(PermissionError):
            Machine(tmp_path, nodes="mknod")
    else:
        assert maker.numbers(130) == (226, 130)
        gpu = Machine(tmp_path, nodes="mknod").add_gpu()
        assert {stat.S_IMODE((tmp_path / "dev/dri" / name).stat().st_mode) for name in gpu.nodes} == {0o666}
    assert list(tmp_path.glob(".mknod-*")) == []


def test_links_need_some_real_device(tmp_path: Path) -> None:
    null = (Path("/dev/null"), 1, 3)
    maker = Links([null])
    maker.make(tmp_path / "card0", 0)
    assert numbers_of(tmp_path / "card0") == maker.numbers(0) == maker.numbers(128) == (1, 3)
    with pytest.raises(FileNotFoundError, match="no character device"):
        Links([])


@pytest.mark.parametrize("lie", Lie)
def test_every_lie_is_told_and_the_gpu_can_still_be_removed(machine: Machine, lie: Lie) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    break_node(machine, "card0", lie)
    node, entry = machine.dri / "card0", machine.sys / "class/drm/card0"
    told = {
        Lie.NODE_MISSING: lambda: not os.path.lexists(node),
        Lie.NODE_IS_FILE: node.is_file,
        Lie.NODE_IS_FOLDER: node.is_dir,
        Lie.NODE_IS_FIFO: node.is_fifo,
        Lie.NODE_DANGLES: lambda: node.is_symlink() and not node.exists(),
        Lie.NODE_CIRCLES: lambda: node.is_symlink() and not node.exists(),
        Lie.WRONG_NUMBERS: lambda: numbers_of(node) != stated_numbers(machine, "card0"),
        Lie.DEV_MISSING: lambda: not os.path.lexists(entry / "dev"),
        Lie.DEV_EMPTY: lambda: (entry / "dev").read_bytes() == b"",
        Lie.DEV_GARBAGE: lambda: ":" not in (entry / "dev").read_text(),
        Lie.DEV_BINARY: lambda: b"\0" in (entry / "dev").read_bytes(),
        Lie.DEV_NEGATIVE: lambda: (entry / "dev").read_text().startswith("-226"),
        Lie.DEV_TOO_LARGE: lambda: int((entry / "dev").read_text().split(":")[1]) > 1 << 64,
        Lie.DEV_HUGE: lambda: (entry / "dev").stat().st_size == HUGE,
        Lie.DEV_UNREADABLE: lambda: cannot_be_read(entry / "dev"),
        Lie.DEV_IS_FOLDER: (entry / "dev").is_dir,
        Lie.DEV_CIRCLES: (entry / "dev").is_symlink,
        Lie.DEVICE_MISSING: lambda: not os.path.lexists(entry / "device"),
        Lie.DEVICE_IS_FILE: (entry / "device").is_file,
        Lie.DEVICE_DANGLES: lambda: not (entry / "device").exists(),
        Lie.DEVICE_CIRCLES: lambda: link_text(entry / "device") == "device",
        Lie.CLASS_DANGLES: lambda: entry.is_symlink() and not entry.exists(),
        Lie.CLASS_IS_FILE: entry.is_file,
    }
    assert told[lie]()
    machine.remove_gpu(A)
    assert machine.nodes_of(B) == ("card1", "renderD129")
    assert not os.path.lexists(machine.dri / "card0")


def cannot_be_read(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno in {errno.EIO, errno.EACCES}
    return False


@pytest.mark.parametrize("dri", ["file", "link"])
def test_dev_dri_itself_may_be_something_else(machine: Machine, dri: str) -> None:
    machine.add_gpu(A)
    put_file(machine.dri)
    if dri == "link":
        machine.dri.unlink()
        (machine.dev / "elsewhere").mkdir()
        machine.dri.symlink_to("elsewhere")
    machine.remove_gpu(A)
    assert os.path.lexists(machine.dri)
    if dri == "link":
        machine.add_gpu(A)
        assert (machine.dev / "elsewhere/card0").exists()


def test_virtual_functions_link_to_their_physical_function(machine: Machine) -> None:
    machine.add_gpu("0000:03:00.6", numa_node=1)
    bound = add_vfs(machine, "0000:03:00.6", 2)
    assert [gpu.address for gpu in bound] == ["0000:03:00.7", "0000:03:01.0"]
    assert bound[1].nodes == ("card2", "renderD130")
    physical = machine.device("0000:03:00.6")
    assert link_text(machine.device("0000:03:01.0") / "physfn") == "../0000:03:00.6"
    assert (physical / "virtfn1").resolve().name == "0000:03:01.0"
    assert (physical / "sriov_numvfs").read_text() == "2\n"
    assert (machine.device("0000:03:00.7") / "numa_node").read_text() == "1\n"
    remove_vfs(machine, "0000:03:00.6")
    assert (physical / "sriov_numvfs").read_text() == "0\n"
    assert [path.name for path in (machine.sys / "bus/pci/devices").iterdir()] == ["0000:03:00.6"]
    (unbound,) = add_vfs(machine, "0000:03:00.6", 1, driver=None)
    assert unbound.nodes == ()


def test_a_virtio_gpu_has_its_driver_on_the_child(machine: Machine) -> None:
    gpu = add_virtio_gpu(machine)
    home = machine.device(gpu.address)
    assert (home / "driver").resolve().name == "virtio-pci"
    assert (home / "virtio0/driver").resolve().name == "virtio_gpu"
    assert (machine.sys / "class/drm/card0/device").resolve() == home
    machine.remove_gpu(gpu.address)
    assert list((machine.sys / "bus/virtio/devices").iterdir()) == []
    assert list((machine.sys / "bus/virtio/drivers/virtio_gpu").iterdir()) == []


def test_a_machine_needs_no_grpclib() -> None:
    script = "import sys, gpuplug.testing as t; t.Machine; assert 'grpclib' not in sys.modules; t.FakeKubelet"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="no attribute 'RealKubelet'"):
        _ = gpuplug.testing.RealKubelet
