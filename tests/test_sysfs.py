"""What a scan sees, on made-up machines: whole GPUs, or a reason in words, and never an exception."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplug.core.inventory import build
from gpuplug.host.sysfs import SETTLING, Roots, look, scan
from gpuplug.model import CompanionNode, Gpu, Inventory, Snapshot
from gpuplug.observe.changes import changes
from gpuplug.settings import Settings
from gpuplug.testing import Lie, Machine, break_node
from gpuplug.testing.lies import (
    put_circle,
    put_dangling,
    put_fifo,
    put_file,
    put_folder,
    put_huge,
    put_unreadable,
    remove,
)
from gpuplug.testing.variants import add_vfs, add_virtio_gpu, remove_vfs
from tests.folders import MEMORY
from tests.rights import as_somebody_else
from tests.values import A, B

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# What the process opens and lists, by audit events: the hook stays, so it is told when to listen.
_listeners: list[Callable[[str, str], None]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _listeners and event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], str):
        _listeners[-1](event, arguments[0])


sys.addaudithook(_hear)


@contextmanager
def hearing(listener: Callable[[str, str], None]) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def new_machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="gp-", dir=MEMORY) as folder:
        yield Machine(Path(folder))


def roots(machine: Machine) -> Roots:
    return Roots(str(machine.root))


def see(machine: Machine, *attributes: str) -> Snapshot:
    """Scan at a time at which no node is young any more."""
    return scan(roots(machine), attributes, now=time.time() + 3600)


def only(snapshot: Snapshot) -> Gpu:
    (gpu,) = snapshot.gpus
    assert snapshot.rejected == ()
    return gpu


def reasons(snapshot: Snapshot) -> dict[str, str]:
    found = {rejected.address: rejected.reason for rejected in snapshot.rejected}
    assert len(found) == len(snapshot.rejected)
    return found


def names(gpu: Gpu) -> list[str]:
    return [node.name for node in gpu.nodes]


# what is there


def test_a_machine_without_sysfs_has_no_gpu(short_path: Path) -> None:
    assert scan(Roots(str(short_path))) == Snapshot()


def test_a_machine_with_drm_loaded_and_no_gpu_has_none_and_nothing_to_say(machine: Machine) -> None:
    machine.dri.mkdir()
    assert see(machine) == Snapshot()


def test_a_gpu_is_read_whole(machine: Machine) -> None:
    machine.add_gpu(A, numa_node=1, attributes={"lmem_total_bytes": "5\n"})
    gpu = only(see(machine, "lmem_total_bytes"))
    assert (gpu.address, gpu.bus, gpu.kernel_driver, gpu.numa_node) == (A, "pci", "i915", 1)
    assert (gpu.vendor, gpu.device, gpu.pci_class) == (0x8086, 0x56A0, 0x030000)
    assert gpu.attributes == {"lmem_total_bytes": "5"}
    assert gpu.missing == ()
    assert [(n.name, n.path, n.host_path) for n in gpu.nodes] == [
        (name, f"/dev/dri/{name}", f"{machine.root}/dev/dri/{name}") for name in ("card0", "renderD128")
    ]
    for node in gpu.nodes:
        numbers = Path(node.host_path).stat().st_rdev
        assert (node.major, node.minor) == (os.major(numbers), os.minor(numbers))


def test_without_a_prefix_the_machine_itself_is_read() -> None:
    assert Roots() == Roots("")
    assert (Roots().drm, Roots().dri) == ("/sys/class/drm", "/dev/dri")


@pytest.mark.parametrize(("root", "dev"), [("/", "/dev"), ("/node", "/node/dev"), ("", "{}/dev")])
def test_the_kubelet_is_told_paths_as_it_knows_them(machine: Machine, root: str, dev: str) -> None:
    machine.add_gpu(A)
    found = Roots.of(Settings(prefix=str(machine.root), node_root=root))
    gpu = only(scan(found, now=time.time() + 3600))
    told = dev.format(machine.root)
    assert [node.host_path for node in gpu.nodes] == [f"{told}/dri/card0", f"{told}/dri/renderD128"]
    again = look(found, gpu)
    assert again is not None
    assert again.nodes == gpu.nodes


def test_nobody_can_change_what_a_scan_has_seen(machine: Machine) -> None:
    machine.add_gpu(A)
    with pytest.raises(TypeError):
        only(see(machine, "vendor")).attributes["vendor"] = "0"  # type: ignore[index]


def test_cards_and_render_nodes_are_paired_by_their_device_and_not_by_number(machine: Machine) -> None:
    machine.add_gpu(A, card=1, render=128)
    machine.add_gpu(B, card=0, render=130)
    assert {gpu.address: names(gpu) for gpu in see(machine).gpus} == {
        A: ["card1", "renderD128"],
        B: ["card0", "renderD130"],
    }


@pytest.mark.parametrize(("card", "render"), [(None, False), (False, None)])
def test_a_gpu_may_have_one_kind_of_node_only(
    machine: Machine, card: bool | None, render: bool | None
) -> None:
    made = machine.add_gpu(
        A, card=False if card is False else None, render=False if render is False else None
    )
    assert tuple(names(only(see(machine)))) == made.nodes


def test_a_gpu_that_no_driver_is_bound_to_is_not_there(machine: Machine) -> None:
    machine.add_gpu(A, driver=None, card=False, render=False)
    machine.add_gpu(B, driver="vfio-pci", card=False, render=False)
    assert see(machine) == Snapshot()


def test_a_gpu_that_is_bound_to_another_driver_is_seen_with_that_one(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.rebind(A, "xe")
    assert only(see(machine)).kernel_driver == "xe"
    machine.unbind(A)
    assert see(machine) == Snapshot()


def test_more_gpus_than_card_numbers_are_seen_in_the_order_of_their_addresses(machine: Machine) -> None:
    made = machine.add_gpus(66)
    gpus = see(machine).gpus
    assert [gpu.address for gpu in gpus] == [gpu.address for gpu in made]
    assert [tuple(names(gpu)) for gpu in gpus] == [gpu.nodes for gpu in made]


def test_off_the_pci_bus_there_are_no_pci_ids_whatever_the_files_are_called(machine: Machine) -> None:
    machine.add_gpu("fd000000.gpu", bus="platform", driver="panfrost", attributes={"device": "mali\n"})
    gpu = only(see(machine))
    assert (gpu.bus, gpu.kernel_driver) == ("platform", "panfrost")
    assert (gpu.vendor, gpu.device, gpu.pci_class, gpu.numa_node) == (None, None, None, None)


def test_a_device_without_a_driver_link_is_seen_without_a_kernel_driver(machine: Machine) -> None:
    machine.add_gpu("vgem", bus="platform", driver=None)
    assert only(see(machine)).kernel_driver == ""


def test_the_gpu_of_a_virtual_machine_bears_the_pci_address_and_the_driver_of_its_child(
    machine: Machine,
) -> None:
    made = add_virtio_gpu(machine)
    gpu = only(see(machine))
    assert (gpu.address, gpu.bus, gpu.kernel_driver) == (made.address, "pci", "virtio_gpu")
    assert look(roots(machine), gpu) == gpu


def test_a_virtio_pci_device_whose_child_has_no_driver_is_bound_to_virtio_pci(machine: Machine) -> None:
    made = add_virtio_gpu(machine)
    remove(machine.device(made.address) / "virtio0/driver")
    assert only(see(machine)).kernel_driver == "virtio-pci"
    remove(machine.device(made.address) / "virtio0")
    assert only(see(machine)).kernel_driver == "virtio-pci"


def hang_on(machine: Machine, node_names: Sequence[str], device: Path) -> None:
    """Let the device links of these nodes lead elsewhere."""
    device.mkdir(parents=True, exist_ok=True)
    for name in node_names:
        link = machine.node_sysfs(name) / "device"
        link.unlink()
        link.symlink_to(device)


def test_where_nodes_hang_on_the_virtio_child_the_pci_device_gives_the_address(machine: Machine) -> None:
    made = add_virtio_gpu(machine)
    hang_on(machine, made.nodes, machine.device(made.address) / "virtio0")
    gpu = only(see(machine))
    assert (gpu.address, gpu.bus, gpu.kernel_driver, gpu.vendor) == (
        made.address,
        "pci",
        "virtio_gpu",
        0x1AF4,
    )
    assert look(roots(machine), gpu) == gpu


def test_what_is_wrong_with_such_a_gpu_is_said_of_its_pci_address_too(machine: Machine) -> None:
    made = add_virtio_gpu(machine)
    hang_on(machine, made.nodes, machine.device(made.address) / "virtio0")
    break_node(machine, "card0", Lie.NODE_IS_FILE)
    assert list(reasons(see(machine))) == [made.address]


def test_virtual_functions_are_gpus_of_their_own(machine: Machine) -> None:
    machine.add_gpu("0000:00:02.0", numa_node=0)
    vfs = add_vfs(machine, "0000:00:02.0", 3)
    seen = see(machine, "sriov_numvfs", "physfn/sriov_numvfs").gpus
    assert [gpu.address for gpu in seen] == ["0000:00:02.0", *(vf.address for vf in vfs)]
    assert [gpu.virtual_functions for gpu in seen] == [3, 0, 0, 0]
    assert seen[0].attributes == {
        "sriov_numvfs": "3",
    }
    assert seen[1].attributes == {"physfn/sriov_numvfs": "3"}
    remove_vfs(machine, "0000:00:02.0")
    assert [gpu.virtual_functions for gpu in see(machine).gpus] == [0]


# freshness


def newest(machine: Machine, gpu: Gpu) -> float:
    return max(os.lstat(machine.dri / name).st_ctime for name in names(gpu))


def test_a_gpu_is_fresh_while_its_newest_node_is_young(machine: Machine) -> None:
    machine.add_gpu(A)
    gpu = only(see(machine))
    made = newest(machine, gpu)
    early = scan(roots(machine), now=made + SETTLING / 2)
    assert early.fresh == {A}
    assert early.settled_in == pytest.approx(SETTLING / 2, abs=1e-4)
    assert early.gpus == (gpu,)
    for now in (made + SETTLING * 1.01, made + 3600, made - 3600):
        assert (scan(roots(machine), now=now).fresh, scan(roots(machine), now=now).settled_in) == (
            frozenset(),
            0,
        )


def test_the_youngest_gpu_says_when_all_have_settled(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    made = [newest(machine, gpu) for gpu in see(machine).gpus]
    both = scan(roots(machine), now=max(made) + 0.001)
    assert both.settled_in == pytest.approx(SETTLING - 0.001, abs=1e-4)


def test_a_gpu_whose_nodes_are_not_there_yet_is_not_fresh_and_said_to_have_none(machine: Machine) -> None:
    made = machine.add_gpu(A)
    for name in made.nodes:
        machine.devfs.remove(name)
    snapshot = scan(roots(machine))
    assert (snapshot.gpus, snapshot.fresh) == ((), frozenset())
    assert reasons(snapshot) == {A: "none of its nodes is in /dev/dri: card0, renderD128"}


# lies about nodes

DEVICE_LINK = "its sysfs device link cannot be followed: "
LIES = {
    Lie.NODE_IS_FILE: (A, "dev/dri/card0 is a regular file, not a character device"),
    Lie.NODE_IS_FOLDER: (A, "dev/dri/card0 is a folder, not a character device"),
    Lie.NODE_IS_FIFO: (A, "dev/dri/card0 is a file of another kind, not a character device"),
    Lie.NODE_CIRCLES: (A, "dev/dri/card0 cannot be examined: Too many levels of symbolic links"),
    Lie.WRONG_NUMBERS: (A, ", and sysfs says "),
    Lie.DEV_MISSING: (A, "card0: sysfs gives no device number"),
    Lie.DEV_EMPTY: (A, "card0: sysfs gives '' as its device number"),
    Lie.DEV_GARBAGE: (A, "card0: sysfs gives 'two hundred and twen' as its device number"),
    Lie.DEV_BINARY: (A, "card0/dev is not text"),
    Lie.DEV_NEGATIVE: (A, "card0: sysfs gives '-226:-128' as its device number"),
    Lie.DEV_TOO_LARGE: (A, "card0: sysfs gives '226:9999999999999999' as its device number"),
    Lie.DEV_HUGE: (A, "card0/dev is larger than a sysfs attribute"),
    Lie.DEV_UNREADABLE: (A, "card0/dev "),
    Lie.DEV_IS_FOLDER: (A, "card0/dev is not a regular file"),
    Lie.DEV_CIRCLES: (A, "card0/dev is not a regular file"),
    Lie.DEVICE_MISSING: ("card0", f"{DEVICE_LINK}No such file or directory"),
    Lie.DEVICE_IS_FILE: ("card0", "its sysfs device is not a link to a folder"),
    Lie.DEVICE_DANGLES: ("card0", f"{DEVICE_LINK}No such file or directory"),
    Lie.DEVICE_CIRCLES: ("card0", f"{DEVICE_LINK}Too many levels of symbolic links"),
    Lie.CLASS_DANGLES: ("card0", f"{DEVICE_LINK}No such file or directory"),
    Lie.CLASS_IS_FILE: ("card0", f"{DEVICE_LINK}Not a directory"),
}
"""Each lie about card0 that is more than an absent node: who is left out, and the words of the reason."""
ABSENT = {Lie.NODE_MISSING, Lie.NODE_DANGLES}


def test_every_lie_has_an_expectation() -> None:
    assert LIES.keys() | ABSENT == set(Lie)


@pytest.mark.parametrize(("lie", "expected"), LIES.items())
def test_a_lie_about_a_node_costs_what_it_is_about_and_is_said_in_words(
    machine: Machine, lie: Lie, expected: tuple[str, str]
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    honest = see(machine).gpus[1]
    break_node(machine, "card0", lie)
    snapshot = see(machine)
    (who, reason), *more = reasons(snapshot).items()
    assert (who, more) == (expected[0], [])
    assert expected[1] in reason
    left = {gpu.address: names(gpu) for gpu in snapshot.gpus}
    assert left == {B: ["card1", "renderD129"]} | ({} if who == A else {A: ["renderD128"]})
    assert snapshot.gpus[-1] == honest


@pytest.mark.parametrize("lie", sorted(ABSENT))
def test_a_node_that_is_not_in_devfs_is_missing_and_the_gpu_stays(machine: Machine, lie: Lie) -> None:
    machine.add_gpu(A)
    break_node(machine, "card0", lie)
    gpu = only(see(machine))
    assert (names(gpu), gpu.missing) == (["renderD128"], ("card0",))


@pytest.mark.parametrize("spoil", [put_file, put_circle, put_dangling, put_fifo, remove])
def test_whatever_is_in_the_place_of_dev_dri_the_gpu_is_left_out_with_a_reason(
    machine: Machine, spoil: Callable[[Path], None]
) -> None:
    machine.add_gpu(A)
    spoil(machine.dri)
    assert list(reasons(see(machine))) == [A]


@pytest.mark.parametrize("spoil", [put_file, put_dangling, put_fifo, put_folder, remove])
def test_whatever_is_in_the_place_of_the_class_folder_there_is_no_gpu(
    machine: Machine, spoil: Callable[[Path], None]
) -> None:
    machine.add_gpu(A)
    spoil(machine.sys / "class/drm")
    assert see(machine) == Snapshot()


def test_a_class_folder_that_cannot_be_listed_is_said(machine: Machine) -> None:
    put_circle(machine.sys / "class/drm")
    assert reasons(see(machine)) == {
        roots(machine).drm: "it cannot be listed: Too many levels of symbolic links"
    }


def test_files_that_are_no_nodes_are_passed_over_in_silence(machine: Machine) -> None:
    machine.add_gpu(A)
    for name in (
        "version",
        "ttm",
        "card",
        "card0-DP-1",
        "renderD",
        "xcard0",
        "card0x",
        "controlD64",
        "card٣",
    ):
        (machine.sys / "class/drm" / name).touch()
    (machine.sys / "class/drm" / os.fsdecode(b"card\xff")).touch()
    only(see(machine))


def test_two_devices_of_one_name_are_both_left_out_for_their_ids_would_be_one(machine: Machine) -> None:
    machine.add_gpu(A)
    twins = [machine.add_gpu("0000:06:00.0"), machine.add_gpu("0000:07:00.0")]
    for gpu in twins:
        hang_on(machine, gpu.nodes, machine.root / "elsewhere" / gpu.address / B)
    snapshot = see(machine)
    assert [gpu.address for gpu in snapshot.gpus] == [A]
    assert reasons(snapshot) == {B: "2 bus devices have this name"}
    break_node(machine, twins[0].nodes[0], Lie.NODE_IS_FILE)
    assert see(machine) == snapshot


def test_a_device_whose_name_is_not_utf8_is_left_out_and_can_be_named(machine: Machine) -> None:
    made = machine.add_gpu(A)
    hang_on(machine, made.nodes, machine.root / os.fsdecode(b"gpu\xff"))
    assert reasons(see(machine)) == {r"gpu\xff": "its name is not text"}


def test_a_driver_whose_name_is_not_utf8_can_be_named(machine: Machine) -> None:
    machine.add_gpu(A)
    remove(machine.device(A) / "driver")
    (machine.device(A) / "driver").symlink_to(os.fsdecode(b"drivers/i915\xff"))
    assert only(see(machine)).kernel_driver == r"i915\xff"


def test_a_device_link_that_leads_to_the_root_makes_no_gpu_that_could_be_advertised(machine: Machine) -> None:
    made = machine.add_gpu(A)
    for name in made.nodes:
        link = machine.node_sysfs(name) / "device"
        link.unlink()
        link.symlink_to("/")
    inventory = build(see(machine), [], Settings(), Inventory())
    assert not inventory.resources


# lies about attributes

SPOILS: dict[str, Callable[[Path], None]] = {
    "circle": put_circle,
    "dangling": put_dangling,
    "empty": put_file,
    "fifo": put_fifo,
    "folder": put_folder,
    "huge": put_huge,
    "unreadable": put_unreadable,
    "binary": lambda path: put_file(path, bytes(range(256))),
    "words": lambda path: put_file(path, b"words\n"),
    "minus": lambda path: put_file(path, b"-7\n"),
    "digits": lambda path: put_file(path, "²٣\n".encode()),
    "long": lambda path: put_file(path, b"9" * 4096),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("attribute", ["vendor", "device", "class", "sriov_numvfs"])
def test_a_number_that_is_none_costs_the_gpu_and_is_named(
    machine: Machine, attribute: str, spoil: str
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    SPOILS[spoil](machine.device(A) / attribute)
    snapshot = see(machine)
    assert [gpu.address for gpu in snapshot.gpus] == [B]
    assert attribute in reasons(snapshot)[A]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_numa_node_that_is_none_is_left_away(machine: Machine, spoil: str) -> None:
    machine.add_gpu(A, numa_node=1)
    SPOILS[spoil](machine.device(A) / "numa_node")
    assert only(see(machine)).numa_node is None


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_list_of_numa_nodes_that_is_none_names_no_node(machine: Machine, spoil: str) -> None:
    machine.add_gpu(A, numa_node=1)
    online = machine.sys / "devices/system/node/online"
    online.parent.mkdir(parents=True)
    SPOILS[spoil](online)
    assert only(see(machine)).numa_node is None


@pytest.mark.parametrize("absent", ["numa_node", "vendor", "device", "class"])
def test_an_attribute_that_is_absent_is_unknown(machine: Machine, absent: str) -> None:
    machine.add_gpu(A, numa_node=0)
    machine.remove_attribute(A, absent)
    gpu = only(see(machine))
    assert getattr(gpu, "pci_class" if absent == "class" else absent) is None


@pytest.mark.parametrize(
    ("online", "node", "expected"),
    [
        (None, "0", 0),
        (None, "-1", None),
        ("0", "0", 0),
        ("0-1", "1", 1),
        ("0-1", "2", None),
        ("0,2-3", "1", None),
        ("0,2-3", "3", 3),
        ("0,2-3", "2", 2),
        ("x,1", "1", 1),
        ("3-", "3", None),
    ],
)
def test_a_numa_node_counts_if_it_is_online(
    machine: Machine, online: str | None, node: str, expected: int | None
) -> None:
    machine.add_gpu(A)
    machine.write_attribute(A, "numa_node", f"{node}\n")
    if online is not None:
        file = machine.sys / "devices/system/node/online"
        file.parent.mkdir(parents=True)
        file.write_text(f"{online}\n")
    assert only(see(machine)).numa_node == expected


@pytest.mark.parametrize("spoil", SPOILS)
def test_an_attribute_that_a_driver_wants_is_read_or_left_out(machine: Machine, spoil: str) -> None:
    machine.add_gpu(A, attributes={"good": "1\n"})
    SPOILS[spoil](machine.device(A) / "wanted")
    found = only(see(machine, "good", "wanted", "wanted/below", "absent")).attributes
    assert found["good"] == "1"
    assert found.keys() <= {"good", "wanted"}
    assert ("wanted" in found) == (spoil in {"empty", "words", "minus", "digits", "long"})


def test_a_file_that_may_not_be_read_costs_the_gpu_and_says_so(machine: Machine) -> None:
    machine.add_gpu(A)
    for folder in (machine.root.parent, machine.root):
        folder.chmod(0o755)
    (machine.device(A) / "vendor").chmod(0)
    with as_somebody_else():
        snapshot = see(machine)
    assert reasons(snapshot)[A].endswith("/vendor cannot be read: Permission denied")


def test_a_file_whose_reading_fails_is_left_out(machine: Machine) -> None:
    """The first page of a process' memory is mapped nowhere, so reading it fails with EIO."""
    machine.add_gpu(A, attributes={"good": "1"})
    (machine.device(A) / "self").symlink_to("/proc/self")
    assert only(see(machine, "self/mem", "good")).attributes == {"good": "1"}


def test_globs_find_attributes_below_the_gpu_and_follow_no_last_link(machine: Machine) -> None:
    machine.add_gpu(A, attributes={"tile0/gt0/freq": "1", "tile0/gt1/freq": "2", "tile1/gt0/freq": "3"})
    found = only(
        see(machine, "tile?/gt[0-9]/freq", "driver", "subsyste?", "drm/card*/dev", "tile0")
    ).attributes
    assert found.keys() == {"tile0/gt0/freq", "tile0/gt1/freq", "tile1/gt0/freq", "drm/card0/dev"}


def test_a_glob_that_finds_very_many_files_is_cut(machine: Machine) -> None:
    machine.add_gpu(A, attributes={f"many/{i:03}": "x" for i in range(300)})
    assert list(only(see(machine, "many/*")).attributes) == [f"many/{i:03}" for i in range(256)]


def test_what_is_asked_for_from_sys_on_is_read_once_for_all_gpus_below_the_prefix(machine: Machine) -> None:
    machine.add_gpu(A, attributes={"own": "1"})
    machine.add_gpu(B)
    for number in range(2):
        folder = machine.sys / f"class/foo/{number}"
        folder.mkdir(parents=True)
        (folder / "mode").write_text(f"mode {number}\n")
    opened: list[str] = []
    with hearing(lambda event, path: opened.append(path) if event == "open" else None):
        snapshot = see(machine, "own", "/sys/class/foo/?/mode", "/sys/class/absent/*", "/sys/class/absent/x")
    shared = {"/sys/class/foo/0/mode": "mode 0", "/sys/class/foo/1/mode": "mode 1"}
    assert [dict(gpu.attributes) for gpu in snapshot.gpus] == [{"own": "1", **shared}, shared]
    assert sum(path.endswith("foo/1/mode") for path in opened) == 1


# companions


def test_a_companion_is_there_if_it_is_a_character_device(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_device("kfd")
    (machine.dev / "file").write_text("")
    (machine.dev / "folder").mkdir()
    seen = only(scan(roots(machine), (), ["/dev/kfd", "/dev/file", "/dev/folder", "/dev/absent"]))
    (kfd,) = seen.companions.values()
    status = (machine.dev / "kfd").stat()
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    assert kfd == CompanionNode("/dev/kfd", f"{machine.dev}/kfd", *numbers)
    assert seen.companions.keys() == {"/dev/kfd"}
    with pytest.raises(TypeError):
        seen.companions["/dev/other"] = kfd  # type: ignore[index]


def test_a_companion_that_nobody_asked_for_is_not_seen(machine: Machine) -> None:
    machine.add_gpu(A)
    machine.add_device("kfd")
    assert only(see(machine)).companions == {}


@pytest.mark.parametrize("gpu", ["pci", "virtio"])
def test_a_companion_that_is_gone_is_not_found_again(machine: Machine, gpu: str) -> None:
    if gpu == "virtio":
        add_virtio_gpu(machine, A)
    else:
        machine.add_gpu(A)
    machine.add_device("kfd")
    before = only(scan(roots(machine), (), ["/dev/kfd"]))
    assert look(roots(machine), before) == before
    (machine.dev / "kfd").unlink()
    now = look(roots(machine), before)
    assert now is not None
    assert now.companions == {}


def test_no_file_is_opened_but_regular_ones_below_sys(machine: Machine) -> None:
    machine.add_gpu(A, numa_node=0)
    machine.add_gpu(B)
    (machine.device(A) / "nodes").symlink_to(machine.dri)
    put_dangling(machine.device(A) / "pipe")
    opened: list[str] = []

    def note(event: str, path: str) -> None:
        if event == "open":
            opened.append(path)

    with hearing(note):
        snapshot = see(machine, "nodes/card0", "nodes/*", "*", "*/*", "drm/*/dev")
        for gpu in snapshot.gpus:
            assert look(roots(machine), gpu) == gpu
    assert len(snapshot.gpus) == 2
    assert len(opened) > 10
    assert all(Path(path).is_file() and not Path(path).is_symlink() for path in opened)
    assert not any(os.path.realpath(path).startswith(str(machine.dev)) for path in opened)
    assert not any(name.startswith("nodes/") for name in snapshot.gpus[0].attributes)


# look


def test_a_gpu_is_looked_up_by_its_address_whatever_its_nodes_are_called_now(machine: Machine) -> None:
    machine.add_gpu(A)
    before = only(see(machine, "vendor"))
    machine.unbind(A)
    machine.add_gpu(B)
    machine.bind(A, "i915")
    now = look(roots(machine), before)
    assert now is not None
    assert names(now) == ["card1", "renderD129"]
    assert now.attributes == before.attributes == {"vendor": "0x8086"}


def test_a_gpu_that_is_gone_or_bound_to_another_driver_is_not_found(machine: Machine) -> None:
    machine.add_gpu(A)
    before = only(see(machine))
    machine.rebind(A, "xe")
    assert look(roots(machine), before) is None
    machine.unbind(A)
    assert look(roots(machine), before) is None
    machine.remove_gpu(A)
    assert look(roots(machine), before) is None


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_gpu_that_lies_is_looked_up_as_a_scan_sees_it(machine: Machine, lie: Lie) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    before = see(machine).gpus
    break_node(machine, "card0", lie)
    now = look(roots(machine), before[0])
    if lie.name.startswith(("NODE", "WRONG", "DEV_")):
        assert now is None
    assert look(roots(machine), before[1]) == before[1]


@pytest.mark.parametrize("lie", sorted(ABSENT))
def test_a_node_that_is_gone_is_not_found_again(machine: Machine, lie: Lie) -> None:
    machine.add_gpu(A)
    before = only(see(machine))
    break_node(machine, "card0", lie)
    now = look(roots(machine), before)
    assert now is not None
    assert (names(now), now.missing) == (["renderD128"], ("card0",))
    break_node(machine, "renderD128", lie)
    assert look(roots(machine), before) is None


# lies at random


class Everything:
    """A Driver that claims every GPU."""

    name = "all"
    fallback = False

    def resource_name(self, *_: object) -> str:
        return "example.com/gpu"

    def device_specs(self, gpu: Gpu, _: object) -> tuple[object, ...]:
        return gpu.nodes

    def mounts(self, *_: object) -> tuple[object, ...]:
        return ()


ADDRESSES = ["0000:03:00.0", "0000:04:00.0", "10000:e1:00.0", "fd000000.gpu"]
ATTRIBUTES = ["vendor", "device", "class", "numa_node", "subsystem", "driver", "drm", "wanted", "uevent"]
node_lies = st.tuples(st.integers(0, 7), st.sampled_from(Lie))
attribute_lies = st.tuples(st.integers(0, 3), st.sampled_from(ATTRIBUTES), st.sampled_from(sorted(SPOILS)))


def tell(machine: Machine, node: str, lie: Lie) -> None:
    """Tell a lie, unless an earlier one took away what it would be about."""
    try:
        break_node(machine, node, lie)
    except (LookupError, FileNotFoundError, NotADirectoryError):
        return


@settings(max_examples=100)
@given(
    count=st.integers(1, 4),
    about_nodes=st.lists(node_lies, max_size=5),
    about_attributes=st.lists(attribute_lies, max_size=4),
)
def test_whatever_sysfs_says_honest_gpus_are_seen_and_the_others_have_a_reason(
    count: int, about_nodes: list[tuple[int, Lie]], about_attributes: list[tuple[int, str, str]]
) -> None:
    with new_machine() as machine:
        made = [
            machine.add_gpu(address, bus="platform" if "." in address[:10] else "pci", numa_node=index % 2)
            for index, address in enumerate(ADDRESSES[:count])
        ]
        honest = {gpu.address: gpu for gpu in see(machine, "wanted", "drm/*/dev").gpus}
        assert honest.keys() == {gpu.address for gpu in made}
        nodes = [(gpu.address, node) for gpu in made for node in gpu.nodes]
        homes = [machine.device(gpu.address) for gpu in made]
        suspects: set[str] = set()
        for index, lie in about_nodes:
            address, node = nodes[index % len(nodes)]
            suspects.add(address)
            tell(machine, node, lie)
        for index, attribute, spoil in about_attributes:
            suspects.add(made[index % count].address)
            SPOILS[spoil](homes[index % count] / attribute)

        snapshot = see(machine, "wanted", "drm/*/dev")

        seen = {gpu.address: gpu for gpu in snapshot.gpus}
        assert len(seen) == len(snapshot.gpus)
        for address, gpu in honest.items():
            if address not in suspects:
                assert seen[address] == gpu
        said = {rejected.address for rejected in snapshot.rejected}
        assert not said & (honest.keys() - suspects)
        for fake in made:
            assert fake.address in seen or said & {fake.address, *fake.nodes}
        assert all(rejected.reason.isprintable() for rejected in snapshot.rejected)
        for gpu in snapshot.gpus:
            assert gpu.nodes
            assert all(Path(node.host_path).is_char_device() for node in gpu.nodes)
        for address, gpu in honest.items():
            now = look(roots(machine), gpu)
            if address not in suspects:
                assert now == gpu
            assert now is None or now.nodes
        inventory = build(snapshot, [], Settings(), Inventory())
        assert len(changes(None, inventory)) == len({r.address for r in inventory.rejected})


@pytest.mark.parametrize("victim", [A, B])
def test_a_gpu_that_is_unplugged_at_any_moment_of_a_scan_does_not_disturb_it(victim: str) -> None:
    """The audit event of every open and listing is a moment: it comes before the deed."""
    moment = 0
    while True:
        with new_machine() as machine:
            machine.add_gpu(A)
            machine.add_gpu(B)
            whole = see(machine, "vendor", "drm/*/dev")
            left = [moment]

            def unplug(_event: str, _path: str, machine: Machine = machine, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == -1:
                    _listeners.clear()
                    machine.remove_gpu(victim)
                    _listeners.append(unplug)

            with hearing(unplug):
                snapshot = see(machine, "vendor", "drm/*/dev")
                again = [look(roots(machine), gpu) for gpu in whole.gpus]
            if left[0] >= 0:
                break
            for number, gpu in enumerate(whole.gpus):
                if gpu.address != victim:
                    assert gpu in snapshot.gpus
                    assert again[number] == gpu
            assert only(see(machine)).address != victim
        moment += 1
    assert moment > 20
