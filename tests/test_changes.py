"""The lines of the log: one sentence per GPU at the start and at each change, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.model import (
    Gpu,
    Inventory,
    Judgement,
    PciDisplay,
    RefusalCode,
    Rejected,
    Resource,
    Surroundings,
    Verdict,
)
from gpuplug.observe.changes import Line, around, changes, describe
from tests.values import I915, A, B, make_gpu, make_offer, make_resource

NONE = Line("INFO", "no GPU: /sys/class/drm has no card and no render node; watching for one")
OFFERED = f"{A} (i915 8086:56a0; card0, renderD128): advertised as gpu.intel.com/i915"


def offering(
    gpu: Gpu, *, shares: int = 1, verdict: Verdict | None = None, problems: tuple[str, ...] = ()
) -> Inventory:
    offer = make_offer(gpu, shares=shares, verdict=verdict or Verdict(healthy=True))
    return Inventory(
        {I915: make_resource(offer)}, judgements={gpu.address: Judgement(gpu, problems=problems)}
    )


inventories = st.builds(
    offering,
    st.builds(make_gpu, st.sampled_from([A, B]), driver=st.sampled_from(["i915", ""])),
    shares=st.integers(1, 2),
    verdict=st.none() | st.just(Verdict(healthy=False, reason="it is wedged")),
    problems=st.sampled_from([(), ("driver a: it raised",)]),
) | st.builds(
    lambda *rejected: Inventory(rejected=rejected),
    st.builds(Rejected, st.sampled_from([A, "card0"]), st.sampled_from(["it lies", "it is not there"])),
)


@given(inventory=inventories)
def test_a_state_that_stays_the_same_is_not_mentioned(inventory: Inventory) -> None:
    assert changes(inventory, replace(inventory)) == ()


@given(old=inventories, new=inventories)
def test_no_line_is_said_twice_and_each_names_what_it_is_about(old: Inventory, new: Inventory) -> None:
    lines = changes(old, new)
    assert len(lines) == len(set(lines))
    assert all(line.text.startswith((A, B, "card0", "driver a")) for line in lines)
    assert set(changes(None, new)) - set(changes(None, old)) <= set(lines)


def test_a_monitoring_resource_is_said_with_its_gpus_when_their_number_changes() -> None:
    def watching(*addresses: str) -> Inventory:
        offers = tuple(make_offer(make_gpu(address)) for address in addresses)
        return Inventory(monitoring={I915: Resource(I915, offers, together=True)} if offers else {})

    text = "gpu.intel.com/i915: advertised, for monitoring: it gives"
    assert Line("INFO", f"{text} 1 GPU") in changes(None, watching(A))
    assert changes(watching(A), watching(A, B)) == (Line("INFO", f"{text} 2 GPUs"),)
    assert changes(watching(A), watching(B)) == ()
    assert changes(watching(A), watching()) == (Line("INFO", "gpu.intel.com/i915: gone"),)


def test_a_gpu_is_named_with_address_driver_ids_and_nodes() -> None:
    assert describe(make_gpu(A)) == f"{A} (i915 8086:56a0; card0, renderD128)"
    virtual = Gpu("vgem", "platform", "", make_gpu().nodes[:1])
    assert describe(virtual) == "vgem (no kernel driver; card0)"


@pytest.mark.parametrize("code", [RefusalCode.DECLINED, RefusalCode.DENIED])
def test_a_gpu_that_is_meant_to_be_left_out_is_no_warning(code: RefusalCode) -> None:
    inventory = Inventory(rejected=(Rejected(A, "it drives the screen", code),))
    assert changes(None, inventory) == (Line("INFO", f"{A}: not advertised: it drives the screen"),)


def test_a_gpu_that_is_advertised_is_said_with_its_resource_and_shares() -> None:
    assert changes(None, offering(make_gpu(A))) == (Line("INFO", OFFERED),)
    assert changes(None, offering(make_gpu(A), shares=10)) == (Line("INFO", f"{OFFERED}, 10 shares"),)


def test_a_gpu_that_is_left_out_is_said_with_the_reason() -> None:
    new = Inventory(rejected=(Rejected(A, "it lies"),))
    assert changes(None, new) == (Line("WARNING", f"{A}: not advertised: it lies"),)


def test_illness_is_a_warning_and_recovery_is_said_too() -> None:
    well, sick = (
        offering(make_gpu(A)),
        offering(make_gpu(A), verdict=Verdict(healthy=False, reason="it is wedged")),
    )
    assert changes(well, sick) == (Line("WARNING", f"{OFFERED}, unhealthy: it is wedged"),)
    assert changes(sick, well) == (Line("INFO", OFFERED),)


def test_a_gpu_that_is_gone_is_said() -> None:
    assert changes(offering(make_gpu(A)), offering(make_gpu(B)))[-1] == Line("INFO", f"{A}: gone")


def test_a_node_without_a_gpu_is_said_once_at_the_start_and_once_after_the_last_one() -> None:
    assert changes(None, Inventory()) == (NONE,)
    assert changes(Inventory(), Inventory()) == ()
    assert changes(offering(make_gpu(A)), Inventory()) == (Line("INFO", f"{A}: gone"), NONE)


def test_a_fault_of_a_driver_is_said_once_however_many_gpus_it_meets() -> None:
    problem = "driver bad: gpuplug_health raised KeyError"
    twice = Inventory(judgements={a: Judgement(make_gpu(a), problems=(problem,)) for a in (A, B)})
    assert changes(Inventory(), twice).count(Line("WARNING", problem)) == 1
    assert Line("WARNING", problem) not in changes(twice, twice)


def test_an_attribute_that_changes_all_the_time_is_not_said() -> None:
    assert (
        changes(offering(make_gpu(A, attributes={"x": "1"})), offering(make_gpu(A, attributes={"x": "2"})))
        == ()
    )


CARD = PciDisplay(A, 0x8086, 0x56A0, 0x030000)


def test_a_display_device_that_drm_does_not_have_is_said_once_with_what_is_bound_to_it() -> None:
    bare, bound = Surroundings((CARD,)), Surroundings((replace(CARD, kernel_driver="nvidia"),))
    for seen, driver in ((bare, "no kernel driver"), (bound, "nvidia")):
        (line,) = around(None, seen)
        assert line.level == "WARNING"
        assert line.text.startswith(f"{A} ({driver} 8086:56a0): not advertised: ")
        assert around(seen, seen) == ()
    assert around(bare, bound) == around(None, bound)
    assert around(None, Surroundings((PciDisplay(B),)))[0].text.startswith(f"{B} (no kernel driver): ")


def test_whether_the_kernel_module_is_loaded_makes_a_difference() -> None:
    assert around(None, Surroundings((CARD,))) != around(
        None, Surroundings((CARD,), frozenset({"i915", "xe"}))
    )


def test_a_display_device_that_is_kept_for_virtual_machines_is_no_reason_to_worry() -> None:
    (line,) = around(None, Surroundings((replace(CARD, kernel_driver="vfio-pci"),)))
    assert line.level == "INFO"


def test_nothing_is_said_of_a_display_device_that_drm_has_or_that_is_gone() -> None:
    with_drm = Surroundings((replace(CARD, drm=("card0",)),))
    assert around(None, with_drm) == around(Surroundings((CARD,)), with_drm) == ()
    assert around(Surroundings((CARD,)), Surroundings()) == ()
