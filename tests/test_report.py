"""The Report: every GPU once, advertised or refused, whatever the scan and the drivers made of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.inventory import build
from gpuplug.model import (
    Inventory,
    PciDisplay,
    RefusalCode,
    Rejected,
    Snapshot,
    Surroundings,
    Verdict,
)
from gpuplug.observe.changes import around
from gpuplug.observe.document import Details, document, role
from gpuplug.observe.refusals import (
    ALL_MODULES,
    NO_DRM_CLASS,
    NO_GPU,
    USUAL_MODULES,
    WSL,
    refuse,
    refuse_display,
    refuse_nothing,
)
from gpuplug.observe.report import DXG, DriverReport, ServingState, build_report
from gpuplug.settings import Settings
from tests.machines.layouts import INTEL
from tests.values import I915, A, B, C, make_gpu, make_offer, make_resource

ADDRESSES = st.sampled_from([A, B, C, "0000:06:00.0", "card0", "gpu"])
DRIVERS = (DriverReport("i915", "gpuplug-intel 0.1.0"), DriverReport("xe", "gpuplug-intel 0.1.0"))
VIRTUAL = PciDisplay(A, 0x8086, 0x56C1, physical_function=B)

displays = st.builds(
    PciDisplay,
    ADDRESSES,
    vendor=st.none() | st.sampled_from([*USUAL_MODULES, 0x1ED5]),
    device=st.none() | st.just(0x56A0),
    kernel_driver=st.sampled_from(["", "i915", "nvidia", "vfio-pci", "dxgkrnl"]),
    drm=st.sampled_from([(), ("card0",), ("card0", "renderD128")]),
    physical_function=st.sampled_from(["", A]),
)
surroundings = st.builds(
    Surroundings,
    displays=st.lists(displays, unique_by=lambda one: one.address, max_size=4).map(tuple),
    modules=st.frozensets(st.sampled_from(sorted(ALL_MODULES))),
    drm_class=st.booleans(),
    dxg=st.booleans(),
)
gpus = st.builds(
    make_gpu,
    ADDRESSES,
    driver=st.sampled_from(["i915", "xe", "amdgpu", ""]),
    numa_node=st.none() | st.just(0),
)
rejections = st.builds(
    Rejected,
    ADDRESSES,
    st.just("it lies"),
    st.sampled_from([RefusalCode.SYSFS_WRONG, RefusalCode.NODES_MISSING, RefusalCode.UNREADABLE]),
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    seen = draw(st.lists(gpus, unique_by=lambda gpu: gpu.address, max_size=4))
    seen = [replace(gpu, virtual_functions=draw(st.sampled_from([0, 0, 3]))) for gpu in seen]
    known = {gpu.address for gpu in seen}
    others = [one for one in draw(st.lists(rejections, max_size=4)) if one.address not in known]
    return build(Snapshot(tuple(seen), tuple(others)), INTEL.drivers, Settings(), Inventory())


broken = st.lists(st.builds(DriverReport, st.sampled_from(["amd", "i915"]), problem=st.just("no libfoo")))


@given(inventory=inventories(), around=surroundings, broken=broken)
def test_every_gpu_is_there_once_with_an_offer_or_a_reason(
    inventory: Inventory, around: Surroundings, broken: list[DriverReport]
) -> None:
    report = build_report(inventory, (*DRIVERS, *broken), around)
    addresses = [gpu.address for gpu in report.gpus]
    assert addresses == sorted(set(addresses))
    offered = {offer.gpu.address for resource in inventory.resources.values() for offer in resource.offers}
    assert {gpu.address for gpu in report.advertised} == offered
    for gpu in report.refused:
        assert gpu.offer is None
        assert gpu.refusal is not None
        assert gpu.refusal.reason
        assert gpu.refusal.advice
    assert len(report.advertised) + len(report.refused) == len(report.gpus)
    assert (report.nothing is None) == bool(report.gpus)
    # Nothing gets lost: each is there under its own name, or its GPU's with the name in the reason.
    for rejected in inventory.rejected:
        assert any(
            gpu.address == rejected.address or rejected.address in gpu.refusal.reason
            for gpu in report.refused
            if gpu.refusal is not None
        )
    assert {display.address for display in around.displays} <= set(addresses)


@given(inventory=inventories(), around=surroundings)
def test_the_document_says_the_same_as_the_report(inventory: Inventory, around: Surroundings) -> None:
    report = build_report(inventory, DRIVERS, around)
    made = document(report, Details())
    assert [gpu["address"] for gpu in made["gpus"]] == [gpu.address for gpu in report.gpus]
    for one, gpu in zip(made["gpus"], report.gpus, strict=True):
        assert (one["advertised"] is None) == (gpu.offer is None)
        assert one["refused"] == (
            None
            if gpu.refusal is None
            else {
                "code": gpu.refusal.code.value,
                "reason": gpu.refusal.reason,
                "advice": gpu.refusal.advice,
            }
        )
    assert sum(resource["devices"] for resource in made["resources"]) == len(report.advertised)


@given(old=st.none() | surroundings, new=surroundings)
def test_the_log_tells_of_each_display_without_drm_once(old: Surroundings | None, new: Surroundings) -> None:
    lines = around(old, new)
    without = [display for display in new.displays if not display.drm]
    assert around(new, new) == ()
    assert len(around(None, new)) == len(without)
    assert set(lines) <= set(around(None, new))
    for line in lines:
        assert line.text.startswith(tuple(display.address for display in without))
        assert ": not advertised: " in line.text


def test_a_display_that_is_kept_for_virtual_machines_is_no_warning() -> None:
    found = Surroundings((PciDisplay(A, 0x8086, 0x56A0, kernel_driver="vfio-pci"), PciDisplay(B)))
    first, second = around(None, found)
    assert (first.level, second.level) == ("INFO", "WARNING")
    assert first.text.startswith(f"{A} (vfio-pci 8086:56a0): not advertised: it is bound to vfio-pci")
    assert second.text == f"{B} (no kernel driver): not advertised: it is bound to no kernel driver"


# the resources


def test_capacity_and_what_can_be_allocated_are_counted_in_shares() -> None:
    sick = Verdict(healthy=False, reason="it is wedged")
    offers = (make_offer(make_gpu(A), shares=10), make_offer(make_gpu(B), shares=10, verdict=sick))
    inventory = Inventory({I915: make_resource(*offers)})
    (resource,) = build_report(inventory, DRIVERS, Surroundings()).resources
    assert (resource.gpus, resource.devices, resource.healthy) == (2, 20, 10)
    assert resource.serving is None


def test_the_state_of_a_resource_is_that_of_its_endpoint() -> None:
    inventory = Inventory({I915: make_resource(make_offer())})
    state = ServingState(streaming=True, phase="registered and streaming")
    (resource,) = build_report(inventory, DRIVERS, Surroundings(), {I915: state}).resources
    assert resource.serving == state
    (resource,) = build_report(inventory, DRIVERS, Surroundings(), {}).resources
    assert resource.serving is None


def test_a_gpu_bears_the_package_that_claimed_it() -> None:
    inventory = Inventory({I915: make_resource(make_offer())})
    (gpu,) = build_report(inventory, DRIVERS, Surroundings()).gpus
    assert (gpu.package, gpu.resource) == ("gpuplug-intel 0.1.0", I915)
    (gpu,) = build_report(inventory, (), Surroundings()).gpus
    assert gpu.package == ""


# nodes that sysfs does not lead on from


def test_a_node_that_leads_nowhere_is_its_gpus_if_the_pci_bus_leads_back() -> None:
    inventory = Inventory(rejected=(Rejected("card0", "it dangles"), Rejected("renderD128", "it, too")))
    around = Surroundings((PciDisplay(A, drm=("card0", "renderD128")),))
    (gpu,) = build_report(inventory, DRIVERS, around).gpus
    assert gpu.address == A
    assert gpu.refusal is not None
    assert gpu.refusal.reason == "card0: it dangles; renderD128: it, too"


def test_a_node_that_leads_nowhere_stands_alone_if_the_rest_of_its_gpu_is_advertised() -> None:
    offer = make_offer(make_gpu(A, nodes=["renderD128"]))
    inventory = Inventory({I915: make_resource(offer)}, (Rejected("card0", "it dangles"),))
    around = Surroundings((PciDisplay(A, drm=("card0", "renderD128")),))
    assert [(gpu.address, gpu.offer is None) for gpu in build_report(inventory, (), around).gpus] == [
        (A, False),
        ("card0", True),
    ]


# reasons and advice


@pytest.mark.parametrize(
    ("display", "modules", "code", "words"),
    [
        (PciDisplay(A, 0x8086, 0x9BC8), {"i915"}, RefusalCode.MODULE_NOT_BINDING, "i915.force_probe=9bc8"),
        (PciDisplay(A, 0x8086), {"xe"}, RefusalCode.MODULE_NOT_BINDING, "does not know its id"),
        (PciDisplay(A, 0x8086, 0x9BC8), {"amdgpu"}, RefusalCode.MODULE_NOT_LOADED, "`modprobe i915`"),
        (PciDisplay(A, 0x1002, 0x744C), set(), RefusalCode.MODULE_NOT_LOADED, "`modprobe amdgpu`"),
        (PciDisplay(A, 0x1AF4, 0x1050), set(), RefusalCode.MODULE_NOT_LOADED, "`modprobe virtio_gpu`"),
        (PciDisplay(A, 0x1A03, 0x2000), set(), RefusalCode.MODULE_NOT_LOADED, "shows a picture"),
        (PciDisplay(A, 0x1A03, 0x2000), {"ast"}, RefusalCode.MODULE_NOT_BINDING, "shows a picture"),
        (PciDisplay(A, 0x1ED5, 0x0222), set(), RefusalCode.MODULE_UNKNOWN, "lspci -k"),
        (PciDisplay(A), {"i915"}, RefusalCode.MODULE_UNKNOWN, "lspci -k"),
        (VIRTUAL, {"i915"}, RefusalCode.MODULE_NOT_BINDING, "/sys/bus/pci/drivers/i915/bind"),
        (VIRTUAL, set(), RefusalCode.MODULE_NOT_LOADED, "for containers load i915"),
        (PciDisplay(A, 0x10DE, kernel_driver="nvidia"), set(), RefusalCode.NO_DRM, "load nvidia_drm"),
        (PciDisplay(A, 0x1002, kernel_driver="amdgpu"), set(), RefusalCode.NO_DRM, "amdgpu in `dmesg`"),
        (PciDisplay(A, 0x8086, kernel_driver="vfio-pci"), set(), RefusalCode.KEPT_FOR_VMS, "driver_override"),
        (PciDisplay(A, 0x8086, kernel_driver="pci-stub"), set(), RefusalCode.KEPT_FOR_VMS, "nothing, if"),
        (PciDisplay(A, 0x8086, drm=("card0",)), set(), RefusalCode.SYSFS_WRONG, "look again"),
        (PciDisplay(A, 0x1414, kernel_driver="dxgkrnl"), set(), RefusalCode.WSL, "no DRM device"),
    ],
)  # fmt: skip
def test_a_display_without_drm_gets_the_advice_that_fits(
    display: PciDisplay, modules: set[str], code: RefusalCode, words: str
) -> None:
    refusal = refuse_display(display, modules)
    assert refusal.code is code
    assert words in refusal.advice


GIVEN_BY_THE_CORE = [
    RefusalCode.NODES_MISSING,
    RefusalCode.NODE_MISMATCH,
    RefusalCode.SYSFS_WRONG,
    RefusalCode.UNREADABLE,
    RefusalCode.SAME_NAME,
    RefusalCode.SRIOV_PF,
    RefusalCode.DRIVER_FAILED,
    RefusalCode.BAD_ADDRESS,
    RefusalCode.LIST_FULL,
    RefusalCode.DENIED,
]


@pytest.mark.parametrize("code", GIVEN_BY_THE_CORE)
def test_what_the_core_gives_as_the_reason_stays_the_reason(code: RefusalCode) -> None:
    refusal = refuse(Rejected(A, "it lies", code), "i915", [("i915", "no libfoo")])
    assert (refusal.code, refusal.reason) == (code, "it lies")
    assert refusal.advice


@pytest.mark.parametrize(
    ("driver", "broken", "code", "words"),
    [
        ("nouveau", [], RefusalCode.NO_DRIVER_PACKAGE, "a driver package that claims nouveau"),
        ("v3d", [], RefusalCode.NO_DRIVER_PACKAGE, "gpuplug-drm, with --drm-kernel-drivers=v3d;"),
        ("amdgpu", [], RefusalCode.NO_DRIVER_PACKAGE, "the package gpuplug-amdgpu"),
        ("ast", [], RefusalCode.NO_DRIVER_PACKAGE, "shows a picture"),
        ("ast", [("i915", "no libfoo")], RefusalCode.NO_DRIVER_PACKAGE, "shows a picture"),
        ("", [], RefusalCode.NO_DRIVER_PACKAGE, "made by software"),
        (
            "i915",
            [("i915", "no libfoo"), ("xe", "?")],
            RefusalCode.DRIVER_PACKAGE_BROKEN,
            "loaded: no libfoo",
        ),
        ("amdgpu", [("a", "one"), ("b", "two")], RefusalCode.DRIVER_PACKAGE_BROKEN, "loaded: one; two"),
    ],
)
def test_an_unclaimed_gpu_gets_the_advice_that_fits(
    driver: str, broken: list[tuple[str, str]], code: RefusalCode, words: str
) -> None:
    unclaimed = Rejected(A, "no driver package claims it", RefusalCode.NO_DRIVER_PACKAGE)
    refusal = refuse(unclaimed, driver, broken)
    assert refusal.code is code
    assert refusal.reason == unclaimed.reason
    assert words in refusal.advice


def test_a_machine_without_a_gpu_says_where_was_looked_and_which_modules_wait() -> None:
    report = build_report(Inventory(), DRIVERS, Surroundings(modules=frozenset({"xe", "i915"})))
    assert report.nothing is not None
    assert report.nothing.reason == NO_GPU
    assert report.nothing.advice.endswith("loaded without a device to drive: i915, xe")
    assert refuse_nothing(Surroundings(drm_class=False)).reason == NO_DRM_CLASS
    assert "loaded" not in refuse_nothing(Surroundings()).advice


def test_dev_dxg_stands_for_the_gpu_where_the_pci_bus_does_not_show_it() -> None:
    (gpu,) = build_report(Inventory(), DRIVERS, Surroundings(dxg=True)).gpus
    assert (gpu.address, gpu.refusal) == (DXG, WSL)
    bound = PciDisplay(A, 0x1414, 0x8E, kernel_driver="dxgkrnl")
    (gpu,) = build_report(Inventory(), DRIVERS, Surroundings((bound,), dxg=True)).gpus
    assert (gpu.address, gpu.refusal) == (A, WSL)


def test_a_monitoring_resource_counts_as_one_device_and_its_gpus_are_there_once() -> None:
    settings = Settings(shared_dev_num=3, enable_monitoring=True)
    inventory = build(Snapshot((make_gpu(A), make_gpu(B))), INTEL.drivers, settings, Inventory())
    report = build_report(inventory, DRIVERS, Surroundings())
    assert [(r.name, r.gpus, r.devices, r.healthy) for r in report.resources] == [
        (I915, 2, 6, 6),
        (f"{I915}_monitoring", 2, 1, 1),
    ]
    assert [gpu.address for gpu in report.gpus] == [A, B]


# SR-IOV


def test_a_physical_function_in_use_is_left_out_and_its_virtual_functions_count() -> None:
    physical = replace(make_gpu(A), virtual_functions=2)
    snapshot = Snapshot((physical, make_gpu(B)))
    inventory = build(snapshot, INTEL.drivers, Settings(), Inventory())
    around = Surroundings((PciDisplay(A, total_functions=7), PciDisplay(B, physical_function=A)))
    first, second = build_report(inventory, DRIVERS, around).gpus
    assert (first.refusal is None, second.refusal is None) == (False, True)
    assert (role(first), role(second)) == ("pf", "vf")
    assert (first.virtual_functions, first.total_functions) == (2, 7)
    later = build(Snapshot((make_gpu(A),)), INTEL.drivers, Settings(), inventory)
    assert [offer.gpu.address for offer in later.resources[I915].offers] == [A]


def test_a_physical_function_that_nobody_claims_needs_a_driver_package_first() -> None:
    physical = replace(make_gpu(A, driver="amdgpu"), virtual_functions=2)
    inventory = build(Snapshot((physical,)), INTEL.drivers, Settings(), Inventory())
    (rejected,) = inventory.rejected
    assert rejected.code is RefusalCode.NO_DRIVER_PACKAGE
