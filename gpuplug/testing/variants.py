"""GPUs of a less simple shape: SR-IOV's virtual functions, and virtio-gpu."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplug.testing.machine import link

if TYPE_CHECKING:
    from gpuplug.testing.machine import FakeGpu, Machine


def add_vfs(
    machine: Machine, address: str, count: int, *, driver: str | None = "i915", total: int = 7
) -> tuple[FakeGpu, ...]:
    """Turn on ``count`` of ``total`` virtual functions of a PCI GPU (the kernel's drivers/pci/iov.c).

    It must have none yet. Their addresses follow that of the physical function; ids and NUMA
    node are the same. ``driver=None`` leaves them unbound and without nodes, as for virtual machines.
    """
    physical = machine.device(address)
    stem, _, last = address.rpartition(":")
    slot, function = (int(part, 16) for part in last.split("."))
    first = slot << 3 | function
    nodes: bool | None = False if driver is None else None
    ids = [int((physical / name).read_text(), 0) for name in ("vendor", "device", "class", "numa_node")]
    made = []
    for index in range(count):
        vf_slot, vf_function = divmod(first + 1 + index, 8)
        vf_address = f"{stem}:{vf_slot:02x}.{vf_function}"
        machine.add_gpu(
            vf_address,
            driver=None,
            vendor=ids[0],
            device=ids[1],
            pci_class=ids[2],
            numa_node=None if ids[3] < 0 else ids[3],
            card=False,
            render=False,
        )
        virtual = machine.device(vf_address)
        link(virtual / "physfn", physical)
        link(physical / f"virtfn{index}", virtual)
        made.append(machine.bind(vf_address, driver, card=nodes, render=nodes))
    machine.write_attribute(address, "sriov_totalvfs", f"{total}\n")
    machine.write_attribute(address, "sriov_numvfs", f"{count}\n")
    return tuple(made)


def remove_vfs(machine: Machine, address: str) -> None:
    """Turn a GPU's virtual functions off, the last one first."""
    physical = machine.device(address)
    for entry in sorted(physical.glob("virtfn*"), reverse=True):
        virtual = Path(os.path.realpath(entry))
        entry.unlink()
        (virtual / "physfn").unlink()
        machine.remove_gpu(virtual.name)
    machine.write_attribute(address, "sriov_numvfs", "0\n")


def add_virtio_gpu(machine: Machine, address: str = "0000:00:02.0", *, number: int = 0) -> FakeGpu:
    """Plug in the GPU of a virtual machine, as seen in QEMU with Linux 6.1.

    The PCI function is bound to virtio-pci. The driver that counts, virtio_gpu, is bound to
    its child virtio``number``; the DRM nodes hang on the PCI function.
    """
    machine.add_gpu(address, driver=None, vendor=0x1AF4, device=0x1050, card=False, render=False)
    child = machine.device(address) / f"virtio{number}"
    child.mkdir()
    bus = machine.sys / "bus/virtio"
    driver = bus / "drivers/virtio_gpu"
    driver.mkdir(parents=True, exist_ok=True)
    (bus / "devices").mkdir(exist_ok=True)
    for name, target in (("subsystem", bus), ("driver", driver)):
        link(child / name, target)
    for folder in (bus / "devices", driver):
        link(folder / child.name, child)
    return machine.bind(address, "virtio-pci")
