"""The slots of this machine where the kernel's own PCIe hotplug (pciehp) is in charge of them."""

import struct
from pathlib import Path
from typing import Final

# PCI Express's capability and its slot control register, as in linux/pci_regs.h.
_CAPABILITY_LIST: Final = 0x34
_EXPRESS: Final = 0x10
_SLOT_CONTROL: Final = 0x18
_INTERRUPT: Final = 0x0020
_INDICATOR: Final = 0x0300
_INDICATOR_ON: Final = 0x0100
_POWER_OFF: Final = 0x0400
_OFF: Final = _INDICATOR | _POWER_OFF


class Slot:
    """The port that a GPU is plugged in behind."""

    def __init__(self, port: Path) -> None:
        """Take the port's folder in sysfs."""
        self._file: Final = port / "config"

    def lit(self) -> bool:
        """Tell whether the kernel is done with turning it on."""
        return self._control()[1] & _OFF == _INDICATOR_ON

    def dark(self) -> bool:
        """Tell whether the kernel is done with turning it off."""
        return self._control()[1] & _OFF == _OFF

    def empty(self) -> None:
        """Have what is plugged in be gone at once, before the kernel hears of it.

        QEMU has no command for this: `device_del` asks the kernel and waits for it. But QEMU lets go of a
        device when its slot is turned off. So it is turned off behind the kernel's back, with its interrupt
        off, and turned on as it was: what the kernel is told then is "card not present", out of the blue.
        """
        at, control = self._control()
        with self._file.open("r+b", buffering=0) as file:
            for value in ((control | _OFF) & ~_INTERRUPT, control):
                file.seek(at)
                file.write(struct.pack("<H", value))

    def _control(self) -> tuple[int, int]:
        registers = self._file.read_bytes()
        capability = registers[_CAPABILITY_LIST]
        while registers[capability] != _EXPRESS:
            capability = registers[capability + 1]
        at = capability + _SLOT_CONTROL
        (value,) = struct.unpack_from("<H", registers, at)
        return at, value
