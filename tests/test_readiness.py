"""Ready is a node whose every GPU that is advertised can be handed out; the reason comes with it."""

from __future__ import annotations

from dataclasses import replace

from gpuplug.model import Inventory, RefusalCode, Rejected, ResourceName, Surroundings, Verdict
from gpuplug.observe.readiness import readiness
from gpuplug.observe.report import DriverReport, Report, ServingState, build_report
from tests.values import I915, A, B, make_gpu, make_offer, make_resource

STREAMS = ServingState(streaming=True, phase="registered and streaming")
WAITS = ServingState(streaming=False, phase="waiting for the kubelet", reason="kubelet.sock is not there")
OFFERS = Inventory({I915: make_resource(make_offer(make_gpu(A), shares=4))})


def report(inventory: Inventory, serving: dict[ResourceName, ServingState] | None = None) -> Report:
    return build_report(inventory, [], Surroundings(), serving or {})


def test_before_the_first_look_it_is_not_ready() -> None:
    assert readiness(None).ready is False
    assert "first" in readiness(None).lines[0]


def test_ready_is_when_every_resource_is_registered_and_streaming() -> None:
    state = readiness(report(OFFERS, {I915: STREAMS}))
    assert state.ready
    assert state.lines == ("gpu.intel.com/i915: registered and streaming (4 devices, 4 healthy)",)


def test_not_ready_names_the_resource_and_the_reason() -> None:
    state = readiness(report(OFFERS, {I915: WAITS}))
    assert not state.ready
    assert state.lines == (
        "gpu.intel.com/i915: waiting for the kubelet: kubelet.sock is not there (4 devices, 4 healthy)",
    )
    assert readiness(report(OFFERS)).lines == ("gpu.intel.com/i915: starting (4 devices, 4 healthy)",)


def test_a_resource_without_a_gpu_any_more_is_not_waited_for() -> None:
    other = replace(make_resource(make_offer(make_gpu(B))), name=ResourceName("example.com/other"))
    both = Inventory({**OFFERS.resources, other.name: other})
    serving = {I915: WAITS, other.name: STREAMS}
    assert not readiness(report(both, serving)).ready
    assert readiness(report(Inventory({other.name: other}), serving)).ready


def test_a_sick_gpu_is_ready_for_the_kubelet_knows_of_it() -> None:
    offer = make_offer(make_gpu(A), verdict=Verdict(healthy=False, reason="it is wedged"))
    state = readiness(report(Inventory({I915: make_resource(offer)}), {I915: STREAMS}))
    assert state.ready
    assert state.lines[0].endswith("(1 device, 0 healthy)")


def test_a_node_without_a_gpu_is_ready_and_says_so() -> None:
    state = readiness(report(Inventory()))
    assert state.ready
    assert state.lines == ("no GPU is advertised", "/sys/class/drm has no card and no render node")


def test_a_node_whose_gpus_are_all_left_out_is_ready_and_says_why_of_some() -> None:
    def left_out(count: int) -> Inventory:
        return Inventory(
            rejected=tuple(
                Rejected(f"0000:{bus:02x}:00.0", "it lies", RefusalCode.SYSFS_WRONG) for bus in range(count)
            )
        )

    assert readiness(report(left_out(1))).lines == ("no GPU is advertised", "0000:00:00.0: it lies")
    many = readiness(report(left_out(100)))
    assert many.ready
    assert len(many.lines) == 10
    assert many.lines[-1] == "and 92 more"


def test_problems_of_drivers_are_named_and_keep_nobody_waiting() -> None:
    broken = DriverReport("foo", problem="driver foo cannot be imported: SyntaxError")
    for inventory, serving in ((OFFERS, {I915: STREAMS}), (Inventory(), {})):
        known = replace(inventory, problems=("driver bar: gpuplug_health did not return within 1 second",))
        state = readiness(build_report(known, [broken], Surroundings(), serving, ["driver x printed 'y'"]))
        assert state.ready
        assert state.lines[-3:] == (
            "problem: driver foo cannot be imported: SyntaxError",
            "problem: driver x printed 'y'",
            "problem: driver bar: gpuplug_health did not return within 1 second",
        )
