"""What the PCI bus has, and what else tells why there is no DRM device."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuplug.host.attributes import Roots
from gpuplug.host.names import Access, PciName, access, pci_names
from gpuplug.host.pci import displays, survey
from gpuplug.host.sysfs import scan
from gpuplug.model import DrmNode, PciDisplay, Surroundings
from gpuplug.testing.lies import put_circle, put_fifo, put_file, put_folder, put_huge, put_unreadable
from gpuplug.testing.machine import link
from gpuplug.testing.variants import add_vfs, add_virtio_gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuplug.testing import Machine

A, B = "0000:03:00.0", "0000:04:00.0"
LIES = (put_fifo, put_folder, put_circle, put_huge, put_unreadable, lambda path: put_file(path, b"\xff\x00"))


def seen(machine: Machine) -> tuple[PciDisplay, ...]:
    return displays(Roots(str(machine.root)))


def test_a_display_device_is_seen_with_and_without_a_kernel_driver(machine: Machine) -> None:
    machine.add_gpu(A, numa_node=1)
    machine.add_gpu(B, driver=None, device=0x9BC8, pci_class=0x038000, card=False, render=False)
    assert seen(machine) == (
        PciDisplay(A, 0x8086, 0x56A0, 0x030000, "i915", 1, ("card0", "renderD128")),
        PciDisplay(B, 0x8086, 0x9BC8, 0x038000),
    )


@pytest.mark.parametrize(
    ("vendor", "pci_class", "counts"),
    [
        (0x8086, 0x030200, True),
        (0x8086, 0x040300, False),
        (0x8086, 0x120000, False),
        (0x1002, 0x120000, True),
        (0x1002, 0x118000, False),
    ],
)
def test_only_display_devices_and_amds_accelerators_count(
    machine: Machine, vendor: int, pci_class: int, counts: bool
) -> None:
    machine.add_gpu(A, driver=None, vendor=vendor, pci_class=pci_class, card=False, render=False)
    assert bool(seen(machine)) == counts


def test_a_machine_without_a_pci_bus_has_none(machine: Machine) -> None:
    assert seen(machine) == ()
    machine.add_gpu("fd940000.gpu", bus="platform", driver="panfrost")
    assert seen(machine) == ()


def test_the_roles_of_sr_iov_are_seen(machine: Machine) -> None:
    machine.add_gpu(A)
    (virtual,) = add_vfs(machine, A, 1)
    first, second = seen(machine)
    assert (first.virtual_functions, first.total_functions, first.physical_function) == (1, 7, "")
    assert (second.address, second.physical_function, second.virtual_functions) == (virtual.address, A, 0)


def test_a_virtio_gpu_is_driven_by_its_child_or_by_nothing(machine: Machine) -> None:
    gpu = add_virtio_gpu(machine)
    (one,) = seen(machine)
    assert (one.kernel_driver, one.drm) == ("virtio_gpu", gpu.nodes)
    machine.unbind(gpu.address)
    (machine.device(gpu.address) / "virtio0/driver").unlink()
    machine.bind(gpu.address, "virtio-pci", card=False, render=False)
    (one,) = seen(machine)
    assert (one.kernel_driver, one.drm) == ("", ())


def test_nodes_that_hang_on_virtio_itself_are_the_pci_devices(machine: Machine) -> None:
    gpu = add_virtio_gpu(machine)
    home = machine.device(gpu.address)
    child = home / "virtio0"
    (home / "drm").rename(child / "drm")
    for name in gpu.nodes:
        for path, target in (
            (machine.sys / "class/drm" / name, child / "drm" / name),
            (child / "drm" / name / "device", child),
        ):
            path.unlink()
            link(path, target)
    (one,) = seen(machine)
    assert one.drm == gpu.nodes
    assert [found.address for found in scan(Roots(str(machine.root))).gpus] == [gpu.address]
    for entry in (machine.sys / "class/drm").iterdir():
        entry.unlink()
    (machine.sys / "class/drm").rmdir()
    (one,) = seen(machine)
    assert one.drm == ()


def test_a_node_that_goes_while_its_link_is_followed_is_not_there(machine: Machine) -> None:
    gpu = add_virtio_gpu(machine)
    machine.add_gpu(A)
    (machine.device(gpu.address) / "drm").rename(machine.root / "drm")
    going = machine.sys / "class/drm/card1/device"
    going.unlink()
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        going.symlink_to(f"/proc/{ended.pid}/exe")  # what has ended has a link there that leads nowhere
        found = {each.address: each.drm for each in seen(machine)}
    assert found == {gpu.address: (), A: ("card1", "renderD129")}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["vendor", "device", "class", "numa_node", "sriov_numvfs"])
def test_what_cannot_be_read_counts_as_unknown(
    machine: Machine, name: str, lie: Callable[[Path], None]
) -> None:
    machine.add_gpu(A, numa_node=0)
    machine.add_gpu(B)
    lie(machine.device(A) / name)
    found = {one.address: one for one in seen(machine)}
    assert B in found
    if name == "class":
        assert A not in found
    else:
        whole = {"vendor": 0x8086, "device": 0x56A0, "numa_node": 0}
        expected = {field: None if field == name else value for field, value in whole.items()}
        assert {field: getattr(found[A], field) for field in whole} == expected


@pytest.mark.parametrize("number", ["-1", "many", "", "٣", "9" * 30])
def test_a_number_of_virtual_functions_that_makes_no_sense_is_none(machine: Machine, number: str) -> None:
    machine.add_gpu(A, attributes={"sriov_numvfs": number})
    (one,) = seen(machine)
    assert one.virtual_functions == 0


def test_a_name_that_is_no_text_can_be_shown(machine: Machine) -> None:
    machine.add_gpu(A)
    odd = machine.sys / "bus/pci/devices" / os.fsdecode(b"\xff")
    odd.symlink_to(machine.device(A))
    assert [one.address for one in seen(machine)] == [A, r"\xff"]


# around it


def test_modules_dxg_and_the_class_folder_are_looked_for(machine: Machine) -> None:
    roots = Roots(str(machine.root))
    assert survey(roots, ["i915"]) == Surroundings()
    (machine.sys / "module/i915").mkdir(parents=True)
    (machine.sys / "module/xe").mkdir()
    (machine.dev / "dxg").symlink_to("/dev/null")
    assert survey(roots, ["i915", "amdgpu"]) == Surroundings(modules=frozenset({"i915"}), dxg=True)


@pytest.mark.parametrize("put", [put_file, put_fifo, put_folder, put_circle])
def test_a_dxg_that_is_no_character_device_is_none(machine: Machine, put: Callable[[Path], None]) -> None:
    put(machine.dev / "dxg")
    assert not survey(Roots(str(machine.root)), []).dxg


# names


def node(path: Path) -> DrmNode:
    return DrmNode(path.name, f"/dev/dri/{path.name}", str(path), 226, 0)


def test_owners_and_modes_come_from_stat_and_their_names_from_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "dev/dri/card0"
    path.parent.mkdir(parents=True)
    path.touch()
    path.chmod(0o640)
    nodes = [node(path), node(path.with_name("card1"))]
    mode, uid, gid = path.stat().st_mode, path.stat().st_uid, path.stat().st_gid
    roots = Roots(str(tmp_path))
    assert access(roots, nodes) == {"card0": Access(mode, uid, gid)}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_bytes(
        b"\n+\nbad:x:many:\n" + f"me:x:{uid}:0::/:\nalso:x:{uid}:0::/:\n".encode()
    )
    (tmp_path / "etc/group").write_bytes(f"caf\xe9:x:{gid}:me\n".encode("latin-1"))
    assert access(roots, nodes) == {"card0": Access(mode, uid, gid, "me", "caf\ufffd")}


IDS = """\
# a comment  with two blanks
1002  AMD
\t56a0  not Intel's
8086  Intel
\t56a0  Arc A770
\t\t8086 1020  a subsystem  of it
no id at all
\tzzzz  no number
C 03  Display controller
\t00  VGA
9999  after the classes
"""


def ids(root: Path, text: str | bytes) -> Path:
    path = root / "usr/share/misc/pci.ids"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_names_of_ids_are_looked_up(tmp_path: Path) -> None:
    roots = Roots(str(tmp_path))
    wanted = {(0x8086, 0x56A0), (0x8086, 0x1234), (0x9999, 0x1)}
    assert pci_names(roots, wanted) == {}
    ids(tmp_path, IDS)
    assert pci_names(roots, wanted) == {
        (0x8086, 0x56A0): PciName("Intel", "Arc A770"),
        (0x8086, 0x1234): PciName("Intel"),
    }
    assert pci_names(roots, {(0x8086, 0x56A0)}) == {(0x8086, 0x56A0): PciName("Intel", "Arc A770")}
    assert pci_names(roots, set()) == {}


@pytest.mark.parametrize("put", [put_fifo, put_folder, put_circle, put_unreadable])
def test_a_list_of_names_that_cannot_be_read_is_as_good_as_none(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(ids(tmp_path, IDS))
    assert pci_names(Roots(str(tmp_path)), {(0x8086, 0x56A0)}) == {}


def test_a_list_of_names_may_be_anything(tmp_path: Path) -> None:
    ids(tmp_path, bytes(range(256)) * 20)
    assert pci_names(Roots(str(tmp_path)), {(0x8086, 0x56A0)}) == {}
