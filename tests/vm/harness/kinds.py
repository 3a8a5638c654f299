"""The kinds of machine that tests run in, in one place; the folder that a test is in chooses its kind."""

from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).resolve().parents[1] / "guest"


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of machine is made of."""

    memory: str = "2G"
    views: tuple[str, ...] = ("DaemonSet", "host")
    """The gpuplugs that are at work in it all the time, by the name of what they see the machine through."""
    pciehp: bool = False
    """Whether its slots are in the hands of the kernel's own PCIe hotplug, and not of ACPI's: only then can
    a GPU go without asking, but one that asks takes six seconds."""
    cpusets: bool = False
    """Whether containers may be bound to CPUs, without which a kubelet does not start."""
    alone: bool = False
    """Whether no other machine is to run beside it."""


KINDS = {
    GUEST: Kind(),
    GUEST / "storm": Kind(views=("DaemonSet",), pciehp=True),
    GUEST / "whole": Kind(memory="5G", views=(), cpusets=True, alone=True),
}
