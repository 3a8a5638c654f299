"""Sizes of lists are known without encoding them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplug.core.sizes import LARGEST_NUMA_NODE, device_size, list_size, numbers_by_digits, offer_size
from gpuplug.kubelet.wire import encode_list
from gpuplug.model import Gpu, Offer, Resource, ResourceName
from tests.strategies import resources


@given(resource=resources())
@settings(deadline=None)
def test_the_size_of_a_list_is_the_length_of_its_encoding(resource: Resource) -> None:
    assert list_size(resource) == len(encode_list(resource).data)


def test_an_empty_list_takes_no_bytes() -> None:
    assert list_size(Resource(ResourceName("gpu.intel.com/xe"))) == 0


@given(
    address_length=st.integers(0, 63),
    shares=st.integers(1, 2000),
    healthy=st.booleans(),
    numa_node=st.none() | st.integers(0, LARGEST_NUMA_NODE),
)
def test_the_defaults_are_the_worst_case(
    address_length: int, shares: int, healthy: bool, numa_node: int | None
) -> None:
    worst = offer_size(address_length, shares)
    assert offer_size(address_length, shares, healthy=healthy, numa_node=numa_node) <= worst
    assert device_size(address_length, healthy=healthy, numa_node=numa_node) <= device_size(address_length)


def test_a_device_with_numa_node_0_takes_more_than_one_without_topology() -> None:
    without = device_size(12, healthy=True, numa_node=None)
    assert device_size(12, healthy=True, numa_node=0) == without + len(bytes.fromhex("1a020a00"))


@given(shares=st.integers(1, 20_000))
def test_share_numbers_come_once_each_and_in_order(shares: int) -> None:
    groups = list(numbers_by_digits(shares))
    assert [number for _, numbers in groups for number in numbers] == list(range(1, shares))
    assert all(len(str(number)) == digits for digits, numbers in groups for number in numbers)


def test_a_hundred_million_shares_are_counted_without_being_made() -> None:
    gpu = Gpu("0000:03:00.0", "pci", "i915", ())
    resource = Resource(ResourceName("gpu.intel.com/i915"), (Offer(gpu, "i915", 10**8, ()),))
    assert list_size(resource) > 10**9
