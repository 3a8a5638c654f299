"""Names that must stay the same: Device ids, resource names, socket files."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.identity import (
    MAX_DEVICE_ID,
    SOCKET_PREFIX,
    device_id,
    id_problem,
    is_resource_name,
    socket_name,
    socket_room,
    split_device_id,
)
from gpuplug.settings import MAX_SOCKET_PATH
from tests.values import A, make_gpu, make_offer

anything = st.text(st.characters(exclude_categories=()))  # lone surrogates too: names that are not UTF-8


@given(address=anything, share=st.integers(0, 10**6))
def test_an_address_without_a_problem_comes_back_out_of_its_ids(address: str, share: int) -> None:
    if id_problem(address, share + 1) is None:
        assert split_device_id(device_id(address, share)) == (address, share)


@given(address=anything, shares=st.integers(1, 10**6))
def test_an_address_without_a_problem_makes_printable_ids_of_63_bytes_at_most(
    address: str, shares: int
) -> None:
    problem = id_problem(address, shares)
    if problem is None:
        assert all(
            0 < len(device_id(address, share).encode()) <= 63 for share in (0, shares // 2, shares - 1)
        )
        assert device_id(address, shares - 1).isprintable()
    else:
        assert problem.isprintable()


@given(id_=anything | st.from_regex(r"\A[a:]{0,3}(::)?[0-9+\- ²]{0,12}\Z"))
def test_an_id_is_split_only_if_it_is_spelt_as_we_spell_it(id_: str) -> None:
    parts = split_device_id(id_)
    if parts is not None:
        assert device_id(*parts) == id_


@pytest.mark.parametrize(
    "id_", ["", "::", "::1", "a::", "a::0", "a::01", "a::-1", "a::+1", "a:: 1", "a::1::2", "a::²"]
)
def test_other_spellings_of_an_id_are_none_of_ours(id_: str) -> None:
    assert split_device_id(id_) is None


def test_an_id_with_a_number_of_absurd_length_is_none_of_ours() -> None:
    assert split_device_id("a::" + "9" * 10_000) is None


def test_the_first_share_bears_the_bare_address_so_that_the_count_may_change() -> None:
    few, many = (list(make_offer(make_gpu(A), shares=count).ids()) for count in (2, 5))
    assert few == [A, f"{A}::1"] == many[:2]
    assert many == [device_id(A, share) for share in range(5)]


@pytest.mark.parametrize("address", ["", "a::b", "a:", ":", "gpu\udcff", "a\nb", "a\0b"])
def test_an_address_that_cannot_make_ids_is_a_problem_in_words(address: str) -> None:
    problem = id_problem(address, 1)
    assert problem == f"its address {address!r} cannot be part of a Device id"


def test_an_id_has_63_bytes_at_most() -> None:
    assert id_problem("a" * MAX_DEVICE_ID, 1) is None
    assert "is longer than 63 characters" in str(id_problem("a" * (MAX_DEVICE_ID + 1), 1))
    assert id_problem("a" * (MAX_DEVICE_ID - 3), 10) is None
    assert "::10 is longer" in str(id_problem("a" * (MAX_DEVICE_ID - 3), 11))
    assert id_problem("ä" * 32, 1) is not None  # 64 bytes


@pytest.mark.parametrize(
    "name",
    [
        "gpu.intel.com/i915",
        "a/b",
        "a-b.c/A_b.C-9",
        f"{'a' * 63}.com/{'n' * 63}",
        f"{'.'.join(['a'] * 122)}/x",
    ],
)
def test_names_of_extended_resources_are_taken(name: str) -> None:
    assert is_resource_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "/",
        "/x",
        "a/",
        "a/b/c",
        "A.com/x",
        "a_b.com/x",
        ".a/x",
        "a./x",
        "a..b/x",
        "-a/x",
        "a.com/-x",
        "a.com/x-",
        f"a.com/{'n' * 64}",
        "a.com/ä",
        "a.com/x\n",
        "a.com\n/x",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "mykubernetes.io/gpu",
        "requests.a.com/x",
        # 245 characters: too long once the kubelet has put "requests." in front
        f"{'.'.join(['a'] * 123)}/x",
        f"{'a' * 254}/x",
    ],
)
def test_what_the_kubelet_would_refuse_is_no_resource_name(name: str) -> None:
    assert not is_resource_name(name)


resource_names = st.from_regex(r"[a-z]{1,30}\.com/[A-Za-z0-9][-A-Za-z0-9_.]{0,60}[A-Za-z0-9]", fullmatch=True)


@given(resource=resource_names, generation=st.integers(1, 999_999), room=st.integers(0, 106))
def test_a_socket_name_has_room_or_is_refused(resource: str, generation: int, room: int) -> None:
    try:
        name = socket_name(resource, "abcdef", generation, room)
    except ValueError as error:
        named = f"room for {room}" in str(error)
        assert named
        assert room < len(SOCKET_PREFIX) + len(f"12345678-abcdef-{generation}.sock")
        return
    assert len(name.encode()) <= room
    assert re.fullmatch(r"gpuplug-([A-Za-z0-9-]+-)?[0-9a-f]{8}-abcdef-[0-9]+\.sock", name)


@given(
    first=st.tuples(resource_names, st.sampled_from(["aaaaaa", "bbbbbb"]), st.integers(1, 3)),
    second=st.tuples(resource_names, st.sampled_from(["aaaaaa", "bbbbbb"]), st.integers(1, 3)),
    room=st.sampled_from([40, 106]),
)
def test_sockets_of_two_servers_never_bear_one_name(
    first: tuple[str, str, int], second: tuple[str, str, int], room: int
) -> None:
    assert (socket_name(*first, room) == socket_name(*second, room)) == (first == second)


def test_a_socket_can_be_told_by_the_resource_in_its_name() -> None:
    assert socket_name("gpu.intel.com/i915", "abcdef", 3, 106).startswith("gpuplug-i915-")
    assert socket_name(f"a.com/{'x' * 60}", "abcdef", 3, 106).startswith(f"gpuplug-{'x' * 20}-")
    assert socket_name("a.com/A_b.C", "abcdef", 3, 106).startswith("gpuplug-A-b-C-")
    assert socket_name("gpu.intel.com/i915", "abcdef", 3, 106).endswith("-abcdef-3.sock")


def test_resources_that_differ_in_what_is_cut_off_have_sockets_of_their_own() -> None:
    names = {socket_name(f"a.com/{'x' * 60}{end}", "abcdef", 1, 106) for end in "123"}
    names |= {socket_name(f"{domain}.com/gpu", "abcdef", 1, 106) for domain in "ab"}
    assert len(names) == 5


@pytest.mark.parametrize("directory", ["/", "/k", "/ä", "/" + "k" * 60])
def test_the_longest_name_that_has_room_makes_a_path_of_107_bytes(directory: str) -> None:
    name = "n" * socket_room(directory)
    assert len(f"{directory}/{name}".encode()) == MAX_SOCKET_PATH
