"""PCI ids in an operator's words: which GPUs ``--allow-ids`` and ``--deny-ids`` mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PCI_ID: Final = re.compile(r"(?:(?:0x)?([0-9a-f]{4}):)?(?:0x)?([0-9a-f]{4})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PciIds:
    """PCI ids that an operator listed: device ids, with or without their vendor."""

    ids: tuple[tuple[int | None, int], ...] = ()
    """Vendor (``None`` for any) and device id."""

    def have(self, vendor: int | None, device: int | None) -> bool:
        """Tell whether a GPU with these ids is listed."""
        return any(of in {None, vendor} and id_ == device for of, id_ in self.ids)

    def __bool__(self) -> bool:
        """Tell whether any id is listed."""
        return bool(self.ids)

    def __str__(self) -> str:
        """Write them as the option takes them."""
        return ",".join((f"{of:#06x}:" if of is not None else "") + f"{id_:#06x}" for of, id_ in self.ids)


NO_IDS: Final = PciIds()


def read_pci_ids(text: str) -> PciIds:
    """Read a list with commas, such as ``0x56a0,8086:46a6``; an empty text lists none.

    :raises ValueError: naming what is no id.
    """
    ids: list[tuple[int | None, int]] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        found = _PCI_ID.fullmatch(word)
        if found is None:
            raise ValueError(f"has {word!r}, which is no PCI device id such as 0x56a0 or 0x8086:0x56a0")
        ids.append((int(found[1], 16) if found[1] else None, int(found[2], 16)))
    return PciIds(tuple(dict.fromkeys(ids)))
