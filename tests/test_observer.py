"""The witness that keeps: one Report for all views, and the counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuplug.model import (
    Inventory,
    Judgement,
    PciDisplay,
    RefusalCode,
    Rejected,
    ResourceName,
    Surroundings,
    Verdict,
)
from gpuplug.observe.document import Details, document, encoded
from gpuplug.observe.metrics import Counts, Metrics
from gpuplug.observe.observer import Observer
from gpuplug.observe.report import DriverReport, build_report
from tests.values import I915, XE, A, B, C, make_gpu, make_offer, make_resource

if TYPE_CHECKING:
    from gpuplug.model import Offer, Resource


class Watched:
    """An observer, and what Prometheus reads from it."""

    def __init__(self, *drivers: DriverReport) -> None:
        self.counts = Counts()
        self.observer = Observer(drivers, self.counts)
        self.metrics = Metrics(self.observer, self.counts)

    def value(self, name: str, **labels: str) -> float | None:
        """Read one value, out of the very text that is served."""
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None


@pytest.fixture
def watched() -> Watched:
    return Watched(DriverReport("i915", "gpuplug-intel 1.0"), DriverReport("bad", problem="it does not load"))


def inventory(
    *offers: Offer, rejected: tuple[Rejected, ...] = (), problems: tuple[str, ...] = ()
) -> Inventory:
    judgements = {o.gpu.address: Judgement(o.gpu, I915, o, problems=problems) for o in offers}
    return Inventory({I915: make_resource(*offers)} if offers else {}, rejected, judgements)


OFFER = make_offer(make_gpu(A), shares=4)
SICK = make_offer(make_gpu(B), shares=2, verdict=Verdict(healthy=False, reason="it is wedged"))
LIES = Rejected(C, "it lies", RefusalCode.SYSFS_WRONG)


def test_before_the_first_look_there_is_no_report_and_the_metrics_say_not_ready(watched: Watched) -> None:
    watched.observer.surveyed(Surroundings())
    watched.observer.became(I915, streaming=True, phase="registered and streaming", reason="")
    assert watched.observer.report.value is None
    assert watched.value("gpuplug_ready") == 0
    assert watched.value("gpuplug_gpus", state="advertised") is None
    assert watched.value("gpuplug_last_look_timestamp_seconds") == 0


def test_the_report_is_the_one_that_inspect_makes_and_says_how_it_stands_with_the_kubelet(
    watched: Watched,
) -> None:
    seen = inventory(OFFER, SICK, rejected=(LIES,))
    around = Surroundings((PciDisplay("0000:09:00.0", 0x8086, 0x56A0),), frozenset({"xe"}))
    watched.observer.looked(seen, 0)
    watched.observer.surveyed(around)
    report = watched.observer.report.value
    assert report is not None
    assert report == build_report(seen, watched.observer._drivers, around, {})
    watched.observer.became(
        I915, streaming=False, phase="not registered", reason="the kubelet refused (3 times)"
    )
    report = watched.observer.report.value
    assert report is not None
    (resource,) = document(report, Details())["resources"]
    assert resource["kubelet"] == {
        "streaming": False,
        "phase": "not registered",
        "reason": "the kubelet refused (3 times)",
    }
    assert json.loads(encoded(report, Details())) == document(report, Details())
    assert encoded(report, Details()) == f"{json.dumps(document(report, Details()))}\n".encode()


def test_each_metric_shows_what_the_report_says(watched: Watched) -> None:
    watched.observer.looked(inventory(OFFER, SICK, rejected=(LIES,), problems=("driver i915: a fault",)), 0)
    watched.observer.became(I915, streaming=True, phase="registered and streaming", reason="")
    assert watched.value("gpuplug_ready") == 1
    assert watched.value("gpuplug_kubelet_connected", resource=I915) == 1
    assert watched.value("gpuplug_devices", resource=I915, health="healthy") == 4
    assert watched.value("gpuplug_devices", resource=I915, health="unhealthy") == 2
    assert watched.value("gpuplug_gpus", state="advertised") == 2
    assert watched.value("gpuplug_gpus", state="refused") == 1
    assert watched.value("gpuplug_gpus_refused", reason="sysfs-wrong") == 1
    assert watched.value("gpuplug_list_generation", resource=I915) == 1
    assert watched.value("gpuplug_driver_problems") == 2
    assert watched.value("gpuplug_last_look_timestamp_seconds") == watched.observer.looked_at
    assert (
        watched.value(
            "gpuplug_gpu_info",
            gpu=A,
            resource=I915,
            kernel_driver="i915",
            pci_id="8086:56a0",
            nodes="card0,renderD128",
        )
        == 1
    )
    watched.observer.became(I915, streaming=False, phase="not registered", reason="no")
    assert watched.value("gpuplug_ready") == 0
    assert watched.value("gpuplug_kubelet_connected", resource=I915) == 0


def test_a_resource_whose_gpus_are_gone_has_no_devices_and_stays_connected(watched: Watched) -> None:
    watched.observer.looked(inventory(OFFER), 0)
    watched.observer.became(I915, streaming=True, phase="registered and streaming", reason="")
    watched.observer.looked(Inventory(), 0)
    assert watched.value("gpuplug_devices", resource=I915, health="healthy") is None
    assert watched.value("gpuplug_kubelet_connected", resource=I915) == 1
    assert watched.value("gpuplug_list_generation", resource=I915) == 2
    assert watched.value("gpuplug_ready") == 1


def test_what_can_be_counted_is_there_from_the_start_as_zero(watched: Watched) -> None:
    watched.observer.became(I915, streaming=False, phase="waiting for the kubelet", reason="")
    for outcome in ("streaming", "refused", "no_stream"):
        assert watched.value("gpuplug_registrations_total", resource=I915, outcome=outcome) == 0
    for outcome in ("answered", "refused"):
        assert watched.value("gpuplug_allocations_total", resource=I915, outcome=outcome) == 0
    assert watched.value("gpuplug_allocation_duration_seconds_count", resource=I915) == 0
    assert watched.value("gpuplug_hotplug_to_list_seconds_count") == 0


def test_what_happens_is_counted(watched: Watched) -> None:
    watched.observer.registered(I915, "refused")
    watched.observer.registered(I915, "refused")
    watched.observer.registered(I915, "streaming")
    watched.observer.allocated(I915, 0.25, failed=False)
    watched.observer.allocated(I915, 0.5, failed=True)
    assert watched.value("gpuplug_registrations_total", resource=I915, outcome="refused") == 2
    assert watched.value("gpuplug_registrations_total", resource=I915, outcome="streaming") == 1
    assert watched.value("gpuplug_allocations_total", resource=I915, outcome="answered") == 1
    assert watched.value("gpuplug_allocations_total", resource=I915, outcome="refused") == 1
    assert watched.value("gpuplug_allocation_duration_seconds_sum", resource=I915) == 0.75


def changed(watched: Watched, *offers: Offer) -> Resource:
    seen = inventory(*offers)
    watched.observer.looked(seen, 0)
    return seen.resources[I915] if offers else make_resource()


def test_the_time_to_the_list_is_counted_once_per_change_when_the_newest_list_is_sent(
    watched: Watched,
) -> None:
    count = "gpuplug_hotplug_to_list_seconds_count"
    first = changed(watched, OFFER)
    watched.observer.sent(first)
    assert watched.value(count) == 0  # the start is no hotplug
    second, third = changed(watched, OFFER, SICK), changed(watched, SICK)
    watched.observer.sent(second)
    assert watched.value(count) == 0  # it is outdated
    watched.observer.sent(third)
    watched.observer.sent(third)
    assert watched.value(count) == 1
    watched.observer.sent(changed(watched))
    assert watched.value(count) == 2
    sum_ = watched.value("gpuplug_hotplug_to_list_seconds_sum")
    assert sum_ is not None
    assert sum_ > 0


def test_the_list_of_a_monitoring_resource_counts_like_any_other(watched: Watched) -> None:
    name = ResourceName(f"{I915}_monitoring")
    one, two = (make_resource(*offers, name=name) for offers in ([OFFER], [OFFER, SICK]))
    watched.observer.looked(replace(inventory(OFFER), monitoring={name: one}), 0)
    watched.observer.looked(replace(inventory(OFFER, SICK), monitoring={name: two}), 0)
    watched.observer.sent(two)
    assert watched.value("gpuplug_hotplug_to_list_seconds_count") == 1
    assert watched.value("gpuplug_list_generation", resource=name) == 2
    assert watched.value("gpuplug_devices", resource=name, health="unhealthy") is not None


def test_a_change_that_has_to_wait_for_the_kubelet_is_not_counted(watched: Watched) -> None:
    changed(watched, OFFER)
    second = changed(watched, OFFER, SICK)
    watched.observer.became(
        I915, streaming=False, phase="not registered", reason="the kubelet's stream ended"
    )
    watched.observer.sent(second)
    assert watched.value("gpuplug_hotplug_to_list_seconds_count") == 0


def test_a_look_that_sees_nothing_new_makes_no_new_report(watched: Watched) -> None:
    watched.observer.looked(inventory(OFFER), 0)
    watched.observer.surveyed(Surroundings())
    version, before = watched.observer.report.version, watched.observer.looked_at
    watched.observer.looked(inventory(OFFER), 0)
    watched.observer.surveyed(Surroundings())
    assert watched.observer.report.version == version
    assert watched.observer.looked_at >= before


def test_a_gpu_that_is_pulled_out_is_not_told_of_until_the_bus_is_surveyed_again(watched: Watched) -> None:
    """The survey comes a moment after the look: what it saw before must not make a refusal of it."""
    display = PciDisplay(A, 0x8086, 0x56A0, 0x030000, "i915", drm=("card0", "renderD128"))
    watched.observer.looked(inventory(OFFER), 0)
    watched.observer.surveyed(Surroundings((display,)))
    watched.observer.looked(Inventory(), 0)
    report = watched.observer.report.value
    assert report is not None
    assert report.gpus == ()
    watched.observer.surveyed(Surroundings((PciDisplay(A, 0x8086, 0x56A0, 0x030000),)))
    report = watched.observer.report.value
    assert report is not None
    assert [gpu.refusal.code for gpu in report.gpus if gpu.refusal] == [RefusalCode.MODULE_NOT_LOADED]


def test_every_metric_is_in_the_readme_with_its_type_labels_and_meaning(watched: Watched) -> None:
    watched.observer.looked(inventory(OFFER, rejected=(LIES,)), 0)
    watched.observer.became(I915, streaming=True, phase="", reason="")
    watched.observer.became(XE, streaming=True, phase="", reason="")
    found = {}
    for family in text_string_to_metric_families(watched.metrics.render().decode()):
        if family.name.startswith("gpuplug_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            found[name] = (family.type, ", ".join(labels), family.documentation)
    readme = (Path(__file__).parent.parent / "gpuplug/observe/README.md").read_text()
    rows = re.findall(
        r"^\| `(gpuplug_[a-z_]+)` \| ([a-z]+) \| ([a-z_, ]*?) ?\| (.+) \|$", readme, re.MULTILINE
    )
    assert {name: (kind, labels, text) for name, kind, labels, text in rows} == found
    assert len(rows) == len(found)


def test_the_processs_own_metrics_are_there_too(watched: Watched) -> None:
    assert (watched.value("process_resident_memory_bytes") or 0) > 1e6
    assert (watched.value("process_open_fds") or 0) > 2
