"""GPUs of a less simple shape: SR-IOV's virtual functions, virtio-gpu, and AMD's partitions."""

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


def add_amd_gpu(
    machine: Machine,
    address: str = "0000:03:00.0",
    *,
    compute: str = "SPX",
    memory: str = "NPS1",
    in_use: int = 1,
    made: int = 8,
    topology: bool = True,
) -> tuple[FakeGpu, ...]:
    """Plug in an AMD accelerator that can be partitioned, as seen on nodes with MI300A.

    The kernel makes a platform device for each of ``made`` partitions but the first, whatever the
    modes are; KFD lists the ``in_use`` first ones, unless ``topology`` is false: then it shows none,
    as to a container that may not open them. Returns the GPU and then its further partitions.
    """
    modes = {"current_compute_partition": f"{compute}\n", "current_memory_partition": f"{memory}\n"}
    gpu = machine.add_gpu(
        address, driver="amdgpu", vendor=0x1002, device=0x74A0, pci_class=0x120000, attributes=modes
    )
    taken = len(list((machine.sys / "bus").glob("platform/devices/amdgpu_xcp_*")))
    partitions = [
        machine.add_gpu(f"amdgpu_xcp_{taken + number}", bus="platform", driver=None)
        for number in range(made - 1)
    ]
    nodes = machine.sys / "devices/virtual/kfd/kfd/topology/nodes"
    if not nodes.exists():
        nodes.mkdir(parents=True)
        (machine.sys / "class/kfd").mkdir()
        link(machine.sys / "class/kfd/kfd", machine.sys / "devices/virtual/kfd/kfd")
        _add_topology_node(nodes, cpu_cores_count=48, simd_count=0, drm_render_minor=0)
    for number, partition in enumerate((gpu, *partitions)[: in_use if topology else 0]):
        domain, bus, function = address.split(":")
        slot, _, last = function.partition(".")
        _add_topology_node(
            nodes,
            cpu_cores_count=0,
            simd_count=912 // in_use,
            vendor_id=0x1002,
            device_id=0x74A0,
            location_id=number << 28 | int(bus, 16) << 8 | int(slot, 16) << 3 | int(last),
            domain=int(domain, 16),
            drm_render_minor=int(str(partition.render).removeprefix("renderD")),
        )
    return gpu, *partitions


def _add_topology_node(nodes: Path, **properties: int) -> None:
    node = nodes / str(len(list(nodes.iterdir())))
    node.mkdir()
    (node / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
