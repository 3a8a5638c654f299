"""Which Devices to prefer, and what a container is given."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.allocation import NO_OPINION, POLICIES, answer, by_address, default_envs, preferred, resolve
from gpuplug.core.identity import split_device_id
from gpuplug.errors import UnavailableDeviceError, UnknownDeviceError
from gpuplug.model import ALL, DeviceSpec, Mount, Resource, Verdict
from tests.values import I915, A, B, C, make_gpu, make_offer, make_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplug.model import Offer

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in range(3, 9)]
FOREIGN = [
    "",
    "0000:ff:00.0",
    f"{ADDRESSES[0]}::99",
    f"{ADDRESSES[0]}::0",
    f"{ADDRESSES[0]}::01",
    "::",
    "\udcff",
]


@dataclass(frozen=True)
class Question:
    """What the kubelet asks about one container."""

    resource: Resource
    available: list[str]
    must_include: list[str]
    size: int
    policy: str = "none"

    def answer(self) -> tuple[str, ...]:
        return preferred(self.resource, self.available, self.must_include, self.size, self.policy)


policies = st.sampled_from(sorted(POLICIES))


@st.composite
def resources(draw: st.DrawFn) -> Resource:
    offers = [
        make_offer(
            make_gpu(address, numa_node=draw(st.sampled_from([None, 0, 1]))), shares=draw(st.integers(1, 12))
        )
        for address in draw(st.lists(st.sampled_from(ADDRESSES), unique=True, min_size=1))
    ]
    return make_resource(*sorted(offers, key=lambda offer: offer.gpu.address))


@st.composite
def sound_questions(draw: st.DrawFn) -> Question:
    """Draw what a kubelet does ask: a size that can be met, MustInclude from what is available."""
    resource = draw(resources())
    available = draw(st.lists(st.sampled_from(ids_of(resource)), unique=True, min_size=1))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
    size = draw(st.integers(max(1, len(must)), len(available)))
    return Question(resource, available, must, size, draw(policies))


@st.composite
def any_questions(draw: st.DrawFn) -> Question:
    resource = draw(resources())
    ids = st.sampled_from([*ids_of(resource), *FOREIGN]) | st.text(max_size=5)
    must = draw(st.lists(ids, max_size=3))
    return Question(resource, draw(st.lists(ids)), must, draw(st.integers(-2, 12)), draw(policies))


def ids_of(resource: Resource) -> list[str]:
    return [device.id for device in resource.devices()]


def gpu_of(id_: str) -> str:
    parts = split_device_id(id_)
    assert parts is not None
    return parts[0]


def greedy(question: Question) -> list[str]:
    """Choose in the plainest way: one Device at a time, each time the best that is left."""
    offers = by_address(question.resource)
    free = set(question.available) - set(question.must_include)
    chosen = sorted(question.must_include)
    taken = Counter(map(gpu_of, chosen))
    numa = {address: offer.gpu.numa_node for address, offer in offers.items()}
    home = {numa[address] for address in taken}
    if not home:
        per_node = Counter(numa[address] for address in {gpu_of(id_) for id_ in free})
        fitting = [node for node, count in per_node.items() if count >= question.size]
        home = set(sorted(fitting, key=lambda n: (per_node[n], -1 if n is None else n))[:1])
    while len(chosen) < question.size:
        left = Counter(map(gpu_of, free))
        ranks: dict[str, tuple[tuple[int | bool, ...], str]] = {
            a: (
                {
                    "none": (taken[a], numa[a] not in home, -left[a]),
                    "balanced": (taken[a], -left[a], numa[a] not in home),
                    "packed": (not taken[a], left[a], numa[a] not in home),
                }[question.policy],
                a,
            )
            for a in left
        }
        best = min(left, key=ranks.__getitem__)
        share = min((split_device_id(id_) or ("", 0))[1] for id_ in free if gpu_of(id_) == best)
        id_ = f"{best}::{share}" if share else best
        free.remove(id_)
        chosen.append(id_)
        taken[best] += 1
    return chosen


@given(question=sound_questions())
def test_a_sound_question_gets_exactly_the_size_all_available_and_must_include_first(
    question: Question,
) -> None:
    got = question.answer()
    assert len(got) == len(set(got)) == question.size
    assert set(got) <= set(question.available)
    assert sorted(got[: len(question.must_include)]) == sorted(question.must_include)


@given(question=sound_questions())
def test_the_choice_is_the_best_one_at_each_step(question: Question) -> None:
    if question.size < len(question.available):
        assert list(question.answer()) == greedy(question)
    else:
        assert sorted(question.answer()) == sorted(question.available)


@given(question=sound_questions(), seed=st.integers())
def test_the_order_of_a_question_and_repeated_ids_change_nothing(question: Question, seed: int) -> None:
    rng = random.Random(seed)
    shuffled = replace(
        question,
        available=rng.sample(question.available * 2, len(question.available) * 2),
        must_include=rng.sample(question.must_include * 2, len(question.must_include) * 2),
    )
    assert shuffled.answer() == question.answer()


@given(question=sound_questions())
def test_a_second_share_of_a_gpu_is_chosen_only_if_every_gpu_with_one_left_is_in_use(
    question: Question,
) -> None:
    got = replace(question, policy="balanced" if question.policy == "packed" else question.policy).answer()
    taken = Counter(map(gpu_of, got))
    spare = {gpu_of(id_) for id_ in set(question.available) - set(got)}
    for id_ in got[len(question.must_include) :]:
        assert all(taken[gpu_of(id_)] <= taken[other] + 1 for other in spare)


@given(question=any_questions())
def test_no_question_gets_an_error_and_a_doubtful_one_is_left_to_the_kubelet(question: Question) -> None:
    got = question.answer()
    if got == NO_OPINION:
        return
    assert len(got) == len(set(got)) == question.size
    assert set(question.must_include) <= set(got) <= set(question.available)


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        ([], [], 0),
        ([], [], 1),
        ([A], [], 0),
        ([A], [], -1),
        ([A], [], 2),
        ([A], [B], 1),
        ([A, B], [A, B], 1),
        ([A, B, "unknown"], [], 2),
        ([A, B, f"{A}::1"], [], 2),  # the GPU has one share
    ],
)
def test_a_question_that_makes_no_sense_gets_an_empty_answer(
    available: list[str], must: list[str], size: int
) -> None:
    resource = make_resource(make_offer(make_gpu(A)), make_offer(make_gpu(B)))
    assert preferred(resource, available, must, size) == NO_OPINION


def test_all_that_is_available_is_given_whatever_it_is() -> None:
    assert preferred(make_resource(), [B, A], [B], 2) == (B, A)


def shared(*numa_nodes: int | None, shares: int = 10) -> Resource:
    addresses = ADDRESSES[: len(numa_nodes)]
    return make_resource(
        *(
            make_offer(make_gpu(a, numa_node=n), shares=shares)
            for a, n in zip(addresses, numa_nodes, strict=True)
        )
    )


def test_balanced_takes_the_emptiest_gpu_even_if_it_is_on_another_numa_node() -> None:
    resource = shared(0, 0, 1, shares=4)
    free = [id_ for id_ in ids_of(resource) if id_ not in {ADDRESSES[0], ADDRESSES[1]}]
    assert [gpu_of(id_) for id_ in preferred(resource, free, [], 2, "none")] == ADDRESSES[:2]
    assert [gpu_of(id_) for id_ in preferred(resource, free, [], 2, "balanced")] == [
        ADDRESSES[2],
        ADDRESSES[0],
    ]


def test_packed_fills_one_gpu_before_the_next_is_begun() -> None:
    resource = shared(None, None, None, shares=4)
    free = [id_ for id_ in ids_of(resource) if id_ != ADDRESSES[1]]
    order = []
    while free:
        (id_,) = preferred(resource, free, [], 1, "packed")
        order.append(gpu_of(id_))
        free.remove(id_)
    assert order == [ADDRESSES[1]] * 3 + [ADDRESSES[0]] * 4 + [ADDRESSES[2]] * 4


def test_packed_stays_on_the_gpu_that_the_container_has_already() -> None:
    resource = shared(None, None, shares=4)
    held = f"{ADDRESSES[1]}::2"
    assert {gpu_of(id_) for id_ in preferred(resource, ids_of(resource), [held], 3, "packed")} == {
        ADDRESSES[1]
    }


def test_a_monitoring_resource_has_one_device_that_stands_for_all_its_gpus_in_whatever_state() -> None:
    sick = make_offer(make_gpu(B), verdict=Verdict(healthy=False, reason="too hot"))
    watched = Resource(I915, (make_offer(make_gpu(A)), sick), together=True)
    assert [(device.id, device.healthy) for device in watched.devices()] == [(ALL, True)]
    assert (len(watched), watched.healthy) == (1, 1)
    assert [offer.gpu.address for _, offer in resolve(watched, [ALL])] == [A, B]
    assert preferred(watched, [ALL], [], 1) == (ALL,)
    assert len(Resource(I915, together=True)) == 0
    assert list(Resource(I915, together=True).devices()) == []


@pytest.mark.parametrize("offers", [(), (make_offer(make_gpu(A)),)])
def test_a_monitoring_resource_has_no_other_device(offers: tuple[Offer, ...]) -> None:
    watched = Resource(I915, offers, together=True)
    with pytest.raises(UnknownDeviceError, match=f"{I915} has no device {A if offers else ALL}"):
        resolve(watched, [A] if offers else [ALL])


@pytest.mark.parametrize(("size", "gpus"), [(1, 1), (2, 2), (3, 2), (5, 2)])
def test_containers_with_several_shares_see_as_many_gpus_as_there_are(size: int, gpus: int) -> None:
    resource = shared(None, None)
    got = preferred(resource, ids_of(resource), [], size)
    assert len({gpu_of(id_) for id_ in got}) == gpus


def test_a_container_stays_on_the_numa_node_that_fits_tightest() -> None:
    resource = shared(0, 1, 1, 0, 0, shares=1)
    assert preferred(resource, ids_of(resource), [], 2) == (ADDRESSES[1], ADDRESSES[2])
    assert preferred(resource, ids_of(resource), [], 3) == (ADDRESSES[0], ADDRESSES[3], ADDRESSES[4])
    assert len(preferred(resource, ids_of(resource), [], 4)) == 4


def test_a_container_stays_on_the_numa_node_of_what_it_must_include() -> None:
    resource = shared(0, 0, 1, 1, shares=1)
    must = ADDRESSES[3]
    assert preferred(resource, ids_of(resource), [must], 2) == (must, ADDRESSES[2])


def test_gpus_without_a_numa_node_are_together_too() -> None:
    resource = shared(0, None, 1, None, shares=1)
    assert preferred(resource, ids_of(resource), [], 2) == (ADDRESSES[1], ADDRESSES[3])


def test_the_gpu_with_the_most_shares_free_comes_first() -> None:
    resource = shared(None, None)
    free = [id_ for id_ in ids_of(resource) if id_ not in {ADDRESSES[0], f"{ADDRESSES[0]}::1"}]
    assert preferred(resource, free, [], 1) == (ADDRESSES[1],)


def test_shares_are_given_by_number_not_by_spelling() -> None:
    resource = shared(None, shares=12)
    free = [f"{ADDRESSES[0]}::{share}" for share in (10, 9, 11)]
    assert preferred(resource, free, [], 2) == (free[1], free[0])


def test_half_of_12800_devices_are_chosen_evenly() -> None:
    resource = make_resource(
        *(make_offer(make_gpu(f"0000:{i:02x}:00.0", numa_node=i % 2), shares=100) for i in range(128))
    )
    got = preferred(resource, ids_of(resource), [], 6400)
    assert set(Counter(map(gpu_of, got)).values()) == {50}


@given(resource=resources(), data=st.data())
def test_every_id_of_the_list_resolves_to_its_gpu(resource: Resource, data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.sampled_from(ids_of(resource))))
    found = resolve(resource, asked)
    assert [device.id for device, _ in found] == list(dict.fromkeys(asked))
    for device, offer in found:
        assert device.gpu is offer.gpu
        assert gpu_of(device.id) == offer.gpu.address
        assert device.healthy


@given(resource=resources(), id_=st.sampled_from(FOREIGN) | st.text())
def test_an_id_that_is_not_in_the_list_is_named(resource: Resource, id_: str) -> None:
    if id_ not in ids_of(resource):
        with pytest.raises(UnknownDeviceError) as caught:
            resolve(resource, [*ids_of(resource), id_])
        assert str(caught.value) == f"gpu.intel.com/i915 has no device {id_}"


def test_an_unhealthy_device_is_named_with_the_reason() -> None:
    sick = make_offer(make_gpu(A), shares=2, verdict=Verdict(healthy=False, reason="it is wedged"))
    with pytest.raises(UnavailableDeviceError, match=rf"^device {A}::1 is unhealthy: it is wedged$"):
        resolve(make_resource(sick, make_offer(make_gpu(B))), [B, f"{A}::1"])


def test_asking_again_gets_the_same_answer_since_nothing_is_remembered() -> None:
    resource = shared(None)
    assert resolve(resource, ids_of(resource)) == resolve(resource, ids_of(resource))


PATHS = st.sampled_from(["/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128", "/usr/lib/gpu"])


@st.composite
def given_offers(draw: st.DrawFn) -> Offer:
    specs = draw(st.lists(st.builds(DeviceSpec, PATHS, PATHS), max_size=4))
    mounts = draw(st.lists(st.builds(Mount, PATHS, PATHS), max_size=4))
    return replace(make_offer(), specs=tuple(specs), mounts=tuple(mounts))


@given(offers=st.lists(given_offers(), max_size=4))
def test_a_container_gets_the_union_and_no_path_twice(offers: Sequence[Offer]) -> None:
    got = answer(offers, {"A": "1"})
    paths = [spec.container_path for spec in got.specs] + [mount.container_path for mount in got.mounts]
    assert len(paths) == len(set(paths))
    wanted = {spec.container_path for offer in offers for spec in offer.specs}
    assert set(paths) == wanted | {mount.container_path for offer in offers for mount in offer.mounts}
    assert set(got.specs) <= {spec for offer in offers for spec in offer.specs}
    assert set(got.mounts) <= {mount for offer in offers for mount in offer.mounts}
    assert got.envs == {"A": "1"}


def test_where_two_want_one_path_the_first_has_it_and_a_device_comes_before_a_mount() -> None:
    first = replace(
        make_offer(), specs=(DeviceSpec("/x", "/1"),), mounts=(Mount("/y", "/a"), Mount("/z", "/3"))
    )
    second = replace(make_offer(), specs=(DeviceSpec("/x", "/2"), DeviceSpec("/y", "/b")), mounts=())
    got = answer([first, second], {})
    assert got.specs == (DeviceSpec("/x", "/1"), DeviceSpec("/y", "/b"))
    assert got.mounts == (Mount("/z", "/3"),)


def test_the_container_is_told_its_gpus_and_render_nodes_once_each() -> None:
    offers = [
        make_offer(make_gpu(B, nodes=["card1", "renderD129"])),
        make_offer(make_gpu(B, nodes=["card1", "renderD129"])),
        make_offer(make_gpu(C, nodes=["card0"])),
    ]
    assert default_envs(offers) == {
        "GPUPLUG_GPUS": f"{B},{C}",
        "GPUPLUG_RENDER_NODES": "/dev/dri/renderD129",
    }
