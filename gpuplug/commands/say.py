"""What the demonstrations print: plain text, at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplug.kubelet.v1beta1 import ContainerAllocateResponse
    from gpuplug.testing import FakeGpu, Machine


def say(text: str) -> None:
    """Print a text, and see that it is out."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_answer(answer: ContainerAllocateResponse) -> None:
    """Print what a container gets."""
    for spec in answer.devices:
        say(f"  node {spec.container_path:<20} {spec.permissions}  (made from {spec.host_path})")
    for mount in answer.mounts:
        how = "read only" if mount.read_only else "read and write"
        say(f"  file {mount.container_path:<20} {how}  (from {mount.host_path})")
    for key, value in sorted(answer.envs.items()):
        say(f"  env  {key}={value}")


def describe(machine: Machine, gpu: FakeGpu) -> str:
    """Name a GPU of a made-up machine."""
    home = machine.device(gpu.address)
    driver = (home / "driver").resolve().name
    ids = ":".join((home / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device"))
    numa = (home / "numa_node").read_text().strip()
    node = "" if numa == "-1" else f"  NUMA node {numa}"
    return f"{gpu.address}  {driver:<4}  {ids}{node}  {', '.join(gpu.nodes)}"
