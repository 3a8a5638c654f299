"""PCI ids in an operator's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.errors import SettingError
from gpuplug.pciids import PciIds, read_pci_ids
from gpuplug.settings import resolve

sixteen_bits = st.integers(0, 0xFFFF)
pairs = st.tuples(st.none() | sixteen_bits, sixteen_bits)


@given(ids=st.lists(pairs, unique=True))
def test_ids_are_read_as_they_are_written(ids: list[tuple[int | None, int]]) -> None:
    listed = PciIds(tuple(ids))
    assert read_pci_ids(str(listed)) == listed
    assert bool(listed) == bool(ids)


@given(ids=st.lists(pairs), vendor=sixteen_bits, device=sixteen_bits)
def test_a_gpu_is_listed_by_its_device_id_alone_or_with_its_vendor(
    ids: list[tuple[int | None, int]], vendor: int, device: int
) -> None:
    listed = (None, device) in ids or (vendor, device) in ids
    assert PciIds(tuple(ids)).have(vendor, device) == listed
    assert PciIds((*ids, (None, device))).have(vendor, device)
    assert PciIds((*ids, (vendor, device))).have(vendor, device)
    assert PciIds(((vendor ^ 1, device),)).have(vendor, device) is False


def test_a_gpu_without_pci_ids_is_never_listed() -> None:
    assert not PciIds(((None, 0x56A0), (0x8086, 0x56A0))).have(None, None)


@pytest.mark.parametrize(
    "word", ["0x1", "56a00", "0xzzzz", "8086/56a0", "8086:", ":56a0", "card0", "0x56a0;0x56a1"]
)
def test_what_is_no_id_is_named(word: str) -> None:
    with pytest.raises(ValueError, match="which is no PCI device id") as error:
        read_pci_ids(f"0x56a0,{word}")
    assert repr(word) in str(error.value)


def test_to_allow_and_to_deny_at_once_is_refused_and_both_are_named() -> None:
    with pytest.raises(SettingError) as error:
        resolve({"allow_ids": "0x56a0"}, {"GPUPLUG_DENY_IDS": "0x56a1"})
    assert str(error.value) == "--allow-ids and GPUPLUG_DENY_IDS exclude each other: give one of them"
    assert resolve({"allow_ids": "0x56a0", "deny_ids": ""}, {}).deny_ids == PciIds()
