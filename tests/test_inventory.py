"""From what the kernel has to what the kubelet is told, and what became different."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.inventory import LEAVING, Driver, build, diff, judge, settled
from gpuplug.core.sizes import LIST_LIMIT, list_size
from gpuplug.errors import DriverError
from gpuplug.model import (
    HEALTHY,
    Declined,
    DeviceSpec,
    Gpu,
    Inventory,
    Mount,
    RefusalCode,
    Rejected,
    Resource,
    Snapshot,
    Verdict,
)
from gpuplug.pciids import read_pci_ids
from gpuplug.settings import MAX_GPUS, MAX_SHARES, Settings
from tests.values import I915, XE, A, B, C, make_gpu, make_resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplug.model import Device, ResourceName

ONE, MANY = Settings(), Settings(shared_dev_num=10)


@dataclass
class FakeDriver:
    """Claim GPUs by kernel driver, and count what is asked; fail at the hook that ``broken`` names."""

    name: str
    claims: Mapping[str, str | Declined]
    broken: str = ""
    verdict: Verdict = HEALTHY
    fallback: bool = False
    gives_envs: bool = False
    notes: tuple[str, ...] = ()
    stuck: str = ""
    specs: tuple[DeviceSpec, ...] | None = None
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def _count(self, hook: str, address: str) -> None:
        self.calls[hook, address] += 1
        if hook == self.broken:
            raise DriverError(f"driver {self.name}: {hook} raised KeyError")

    def resource_name(self, gpu: Gpu, settings: Settings) -> str | Declined | None:
        del settings
        self._count("resource_name", gpu.address)
        return self.claims.get(gpu.kernel_driver)

    def device_specs(self, gpu: Gpu, settings: Settings) -> tuple[DeviceSpec, ...]:
        del settings
        self._count("device_specs", gpu.address)
        return tuple(DeviceSpec(n.path, n.host_path) for n in gpu.nodes) if self.specs is None else self.specs

    def mounts(self, gpu: Gpu, settings: Settings) -> tuple[Mount, ...]:
        del settings
        self._count("mounts", gpu.address)
        return (Mount("/usr/lib/gpu", "/usr/lib/gpu"),)

    def envs(self, devices: Sequence[Device], settings: Settings) -> Mapping[str, str]:
        raise AssertionError(f"the inventory asked for the variables of {devices} with {settings}")

    def health(self, gpu: Gpu, settings: Settings) -> Verdict:
        del settings
        self._count("health", gpu.address)
        return self.verdict


def intel() -> FakeDriver:
    return FakeDriver("intel", {"i915": I915, "xe": XE})


def build_from(*gpus: Gpu, drivers: Sequence[Driver] = (), settings: Settings = ONE) -> Inventory:
    return build(Snapshot(gpus), drivers or [intel()], settings, Inventory())


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    gpus = [
        make_gpu(
            address,
            driver=draw(st.sampled_from(["i915", "xe", "amdgpu", ""])),
            nodes=draw(st.sampled_from([["card0"], ["renderD128"], ["card0", "renderD128"]])),
            numa_node=draw(st.sampled_from([None, 0, 1])),
        )
        for address in draw(st.lists(st.sampled_from([A, B, C, "bad::name", "vgem"]), unique=True))
    ]
    gpus.sort(key=lambda gpu: gpu.address)
    rejected = draw(
        st.lists(st.builds(Rejected, st.sampled_from(["card7", "0000:99:00.0"]), st.just("it lies")))
    )
    known = [gpu.address for gpu in gpus] + [r.address for r in rejected]
    fresh = frozenset(draw(st.lists(st.sampled_from(known)))) if known else frozenset[str]()
    return Snapshot(tuple(gpus), tuple(rejected), fresh, 0.02 if fresh else 0.0)


# build


def test_gpus_are_grouped_by_the_resource_that_their_driver_names() -> None:
    inventory = build_from(make_gpu(A), make_gpu(B, driver="xe"), make_gpu(C))
    assert {name: [o.gpu.address for o in r.offers] for name, r in inventory.resources.items()} == {
        I915: [A, C],
        XE: [B],
    }
    assert inventory.rejected == ()


def test_an_offer_is_what_the_driver_decided() -> None:
    sick = Verdict(healthy=False, reason="it is wedged")
    driver = FakeDriver("intel", {"i915": I915}, verdict=sick, specs=(DeviceSpec("/dev/x", "/dev/y"),))
    (offer,) = build_from(make_gpu(A), drivers=[driver], settings=MANY).resources[I915].offers
    assert (offer.driver, offer.shares, offer.verdict) == ("intel", 10, sick)
    assert offer.specs == (DeviceSpec("/dev/x", "/dev/y"),)
    assert offer.mounts == (Mount("/usr/lib/gpu", "/usr/lib/gpu"),)


@given(snapshot=snapshots())
def test_every_gpu_is_either_offered_once_or_left_out_with_a_reason(snapshot: Snapshot) -> None:
    inventory = build(snapshot, [intel()], MANY, Inventory())
    offered = [offer.gpu.address for resource in inventory.resources.values() for offer in resource.offers]
    left_out = [rejected.address for rejected in inventory.rejected]
    assert len(offered) == len(set(offered))
    assert Counter(offered) + Counter(left_out) == Counter(
        [gpu.address for gpu in snapshot.gpus] + [rejected.address for rejected in snapshot.rejected]
    )
    assert all(rejected.reason for rejected in inventory.rejected)
    assert left_out == sorted(left_out)
    assert all(resource.offers for resource in inventory.resources.values())


@given(before=snapshots(), after=snapshots())
def test_hooks_are_called_once_per_gpu_and_change(before: Snapshot, after: Snapshot) -> None:
    driver = intel()
    inventory = build(before, [driver], ONE, Inventory())
    assert set(driver.calls.values()) <= {1}
    driver.calls.clear()
    assert build(before, [driver], ONE, inventory) == inventory
    assert not driver.calls
    second = build(after, [driver], ONE, inventory)
    changed = {gpu.address for gpu in after.gpus} - {gpu.address for gpu in before.gpus if gpu in after.gpus}
    assert {address for _, address in driver.calls} == changed
    assert set(driver.calls.values()) <= {1}
    assert second == build(after, [intel()], ONE, Inventory())


def test_a_gpu_that_no_driver_claims_is_left_out_and_the_kernel_driver_is_named() -> None:
    inventory = build_from(make_gpu(A, driver="amdgpu"), make_gpu(B, driver=""))
    assert inventory.rejected == (
        Rejected(A, "no driver package claims kernel driver amdgpu"),
        Rejected(B, "no driver package claims a device without a kernel driver"),
    )
    assert build(Snapshot((make_gpu(A),)), [], ONE, Inventory()).rejected[0].address == A


def test_of_two_claims_the_first_by_name_wins_and_the_clash_is_a_named_problem() -> None:
    drivers = [FakeDriver("zeta", {"i915": "a.com/z"}), FakeDriver("alpha", {"i915": "a.com/a"})]
    for order in (drivers, drivers[::-1]):
        judgement = judge(make_gpu(A), order, ONE)
        assert judgement.resource == "a.com/a"
        assert judgement.problems == (f"drivers alpha and zeta both claim {A}: alpha has it",)


@pytest.mark.parametrize("answer", ["a.com/z", Declined("it is for the screen")])
def test_a_fallback_is_not_even_asked_about_a_gpu_that_a_driver_claims_or_declines(
    answer: str | Declined,
) -> None:
    anything = FakeDriver("anything", {"i915": "a.com/a", "nouveau": "a.com/n"}, fallback=True)
    specific = FakeDriver("specific", {"i915": answer})
    for order in ([anything, specific], [specific, anything]):
        judgement = judge(make_gpu(A), order, ONE)
        assert judgement.resource == (answer if isinstance(answer, str) else None)
        assert judgement.problems == ()
    assert not anything.calls
    rest = judge(make_gpu(B, driver="nouveau"), [anything, specific], ONE)
    assert (rest.resource, rest.problems) == ("a.com/n", ())


def test_a_fallback_gets_what_a_driver_that_fails_did_not_claim() -> None:
    drivers = [FakeDriver("any", {"i915": I915}, fallback=True), FakeDriver("b", {}, broken="resource_name")]
    judgement = judge(make_gpu(A), drivers, ONE)
    assert judgement.resource == I915
    assert judgement.problems == ("driver b: resource_name raised KeyError",)


def test_of_two_fallbacks_the_first_by_name_wins_and_the_clash_is_a_named_problem() -> None:
    drivers = [FakeDriver(name, {"i915": f"a.com/{name}"}, fallback=True) for name in ("b", "a")]
    judgement = judge(make_gpu(A), drivers, ONE)
    assert judgement.resource == "a.com/a"
    assert judgement.problems == (f"drivers a and b both claim {A}: a has it",)


def test_a_gpu_that_its_driver_declines_is_left_out_for_the_drivers_reason() -> None:
    driver = FakeDriver("foo", {"i915": Declined("it drives the screen")})
    judgement = judge(make_gpu(A), [driver], ONE)
    assert (judgement.offer, judgement.resource, judgement.problems) == (None, None, ())
    assert judgement.reason == "driver foo does not offer it: it drives the screen"
    assert judgement.code is RefusalCode.DECLINED
    assert driver.calls == {("resource_name", A): 1}


def test_a_driver_that_fails_while_it_is_asked_for_a_claim_is_passed_over() -> None:
    judgement = judge(make_gpu(A), [FakeDriver("bad", {}, broken="resource_name"), intel()], ONE)
    assert judgement.resource == I915
    assert judgement.problems == ("driver bad: resource_name raised KeyError",)


def test_if_nobody_else_claims_the_gpu_the_failure_is_its_reason() -> None:
    judgement = judge(make_gpu(A), [FakeDriver("bad", {}, broken="resource_name")], ONE)
    assert judgement.offer is None
    assert judgement.reason == (
        "driver bad: resource_name raised KeyError; no driver package claims kernel driver i915"
    )


@pytest.mark.parametrize("hook", ["device_specs", "mounts", "health"])
def test_a_driver_that_fails_about_a_gpu_that_it_claimed_loses_that_gpu_alone(hook: str) -> None:
    bad = FakeDriver("bad", {"i915": "a.com/bad"}, broken=hook)
    inventory = build_from(make_gpu(A), make_gpu(B, driver="xe"), drivers=[bad, intel()])
    problem = f"driver bad: {hook} raised KeyError"
    assert inventory.rejected == (Rejected(A, problem),)
    assert inventory.judgements[A].problems[-1] == problem
    assert list(inventory.resources) == [XE]


@pytest.mark.parametrize("name", ["i915", "", "kubernetes.io/gpu", "a.com/ä", "a.com/\udcff"])
def test_a_name_that_the_kubelet_would_refuse_costs_the_gpu(name: str) -> None:
    judgement = judge(make_gpu(A), [FakeDriver("bad", {"i915": name})], ONE)
    assert judgement.offer is None
    assert judgement.reason == f"driver bad: {name!r} is not a resource name (domain/name)"


def test_a_gpu_without_a_device_node_is_left_out() -> None:
    judgement = judge(make_gpu(A), [FakeDriver("bad", {"i915": I915}, specs=())], ONE)
    assert judgement.reason == "driver bad gives it no device node"


def test_a_physical_function_is_left_out_while_it_has_virtual_functions_and_comes_back_after() -> None:
    virtual = make_gpu(B)
    with_vfs = build_from(replace(make_gpu(A), virtual_functions=7), virtual)
    assert [offer.gpu for offer in with_vfs.resources[I915].offers] == [virtual]
    reason = "it is an SR-IOV physical function with 7 virtual functions turned on"
    assert with_vfs.rejected == (Rejected(A, reason),)
    after = build(Snapshot((make_gpu(A),)), [intel()], ONE, with_vfs)
    assert [offer.gpu.address for offer in after.resources[I915].offers] == [A]


@pytest.mark.parametrize(
    ("settings", "gpu", "reason"),
    [
        (Settings(deny_ids=read_pci_ids("0x56a0")), make_gpu(A), "--deny-ids has its PCI device id 0x56a0"),
        (
            Settings(allow_ids=read_pci_ids("0x56a1")),
            make_gpu(A),
            "--allow-ids does not have its PCI device id 0x56a0",
        ),
        (
            Settings(allow_ids=read_pci_ids("0x56a1")),
            replace(make_gpu(A), vendor=None, device=None),
            "--allow-ids is given, and it has no PCI device id",
        ),
    ],
)
def test_a_gpu_is_left_out_by_its_id_and_watched_no_more(settings: Settings, gpu: Gpu, reason: str) -> None:
    inventory = build_from(gpu, settings=replace(settings, enable_monitoring=True))
    assert inventory.rejected == (Rejected(A, reason),)
    assert inventory.rejected[0].code is RefusalCode.DENIED
    assert inventory.served == {}


def test_a_gpu_whose_id_is_allowed_or_not_denied_is_offered() -> None:
    for settings in (
        Settings(allow_ids=read_pci_ids("8086:56a0")),
        Settings(deny_ids=read_pci_ids("0x56a1")),
    ):
        assert len(build_from(make_gpu(A), settings=settings).resources[I915]) == 1


def test_without_being_asked_for_nothing_is_monitored() -> None:
    assert build_from(make_gpu(A)).monitoring == {}


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("split", {"gpu.intel.com/i915_monitoring": [A, C], "gpu.intel.com/xe_monitoring": [B]}),
        ("single", {"gpu.intel.com/monitoring": [A, B, C]}),
    ],
)
def test_a_monitoring_resource_gives_all_gpus_of_a_resource_or_of_a_domain(
    mode: str, names: dict[str, list[str]]
) -> None:
    settings = Settings(shared_dev_num=10, enable_monitoring=True, monitoring_mode=mode)
    gpus = make_gpu(A), make_gpu(B, driver="xe"), make_gpu(C), make_gpu("amd", driver="amdgpu")
    inventory = build_from(*gpus, settings=settings)
    assert {n: [o.gpu.address for o in r.offers] for n, r in inventory.monitoring.items()} == names
    assert all(len(resource) == 1 for resource in inventory.monitoring.values())
    assert inventory.served == {**inventory.resources, **inventory.monitoring}


def test_a_physical_function_in_use_is_watched_though_it_is_left_out() -> None:
    physical = replace(make_gpu(A), virtual_functions=2)
    inventory = build_from(physical, make_gpu(B), settings=Settings(enable_monitoring=True))
    assert [offer.gpu.address for offer in inventory.resources[I915].offers] == [B]
    (watched,) = inventory.monitoring.values()
    assert [offer.gpu.address for offer in watched.offers] == [A, B]


def test_no_monitoring_resource_takes_the_name_of_another_one_or_a_name_that_is_none() -> None:
    long = f"a.com/{'x' * 60}"
    driver = FakeDriver("intel", {"i915": I915, "xe": f"{I915}_monitoring", "amdgpu": long})
    gpus = make_gpu(A), make_gpu(B, driver="xe"), make_gpu(C, driver="amdgpu")
    inventory = build_from(*gpus, drivers=[driver], settings=Settings(enable_monitoring=True))
    assert list(inventory.resources) == [long, I915, f"{I915}_monitoring"]
    assert list(inventory.monitoring) == [f"{I915}_monitoring_monitoring"]


def test_every_reason_has_its_kind() -> None:
    settings = Settings(shared_dev_num=MAX_SHARES)
    gpus = [make_gpu(f"0000:{i:04}") for i in range(300)]
    odd = [make_gpu("amd", driver="amdgpu"), make_gpu("b:"), replace(make_gpu("pf"), virtual_functions=1)]
    drivers = [intel(), FakeDriver("bad", {"xe": "xe"})]
    failed = make_gpu("failed", driver="xe")
    inventory = build_from(*odd, *gpus, failed, drivers=drivers, settings=settings)
    codes = {rejected.address: rejected.code for rejected in inventory.rejected}
    assert codes["amd"] is RefusalCode.NO_DRIVER_PACKAGE
    assert codes["b:"] is RefusalCode.BAD_ADDRESS
    assert codes["pf"] is RefusalCode.SRIOV_PF
    assert codes["failed"] is RefusalCode.DRIVER_FAILED
    assert codes["0000:0299"] is RefusalCode.LIST_FULL
    unasked = judge(make_gpu(A), [FakeDriver("bad", {}, broken="resource_name")], ONE)
    assert unasked.code is RefusalCode.DRIVER_FAILED


@pytest.mark.parametrize("address", ["a" * 64, "gpu\udcff", "a:", ""])
def test_a_gpu_whose_address_makes_no_ids_is_left_out(address: str) -> None:
    judgement = judge(make_gpu(address), [intel()], ONE)
    assert judgement.offer is None
    assert judgement.reason


def test_the_most_gpus_with_the_most_shares_are_all_offered() -> None:
    gpus = [make_gpu(f"10000:e1:{i >> 3:02x}.{i & 7}", numa_node=1023) for i in range(MAX_GPUS)]
    inventory = build_from(*gpus, settings=Settings(shared_dev_num=MAX_SHARES))
    assert len(inventory.resources[I915]) == MAX_GPUS * MAX_SHARES
    assert list_size(inventory.resources[I915]) < LIST_LIMIT


def test_gpus_with_which_a_list_would_pass_4_mib_are_left_out_and_others_go_on() -> None:
    settings = Settings(shared_dev_num=MAX_SHARES)
    gpus = [make_gpu(f"0000:{i:04}", numa_node=1) for i in range(300)]
    inventory = build_from(*gpus, make_gpu("xe", driver="xe"), settings=settings)
    kept = [offer.gpu for offer in inventory.resources[I915].offers]
    assert kept == gpus[: len(kept)]
    assert {r.reason for r in inventory.rejected} == {f"the list of {I915} would pass 4 MiB with it"}
    assert len(inventory.rejected) == 300 - len(kept)
    assert XE in inventory.resources


def test_health_does_not_decide_which_gpus_fit_into_a_list() -> None:
    settings = Settings(shared_dev_num=MAX_SHARES)
    gpus = [make_gpu(f"0000:{i:04}") for i in range(300)]
    sick = FakeDriver("intel", {"i915": I915}, verdict=Verdict(healthy=False, reason="?"))
    well = build_from(*gpus, settings=settings)
    unwell = build_from(*gpus, drivers=[sick], settings=settings)
    assert len(well.resources[I915].offers) == len(unwell.resources[I915].offers)
    assert list_size(unwell.resources[I915]) <= LIST_LIMIT


# settled


@given(before=snapshots(), after=snapshots())
def test_only_gpus_that_are_known_or_not_fresh_are_settled(before: Snapshot, after: Snapshot) -> None:
    known = build(before, [intel()], ONE, Inventory())
    bound = {address: judgement.gpu.kernel_driver for address, judgement in known.judgements.items()}
    kept = settled(after, known)
    assert kept.gpus == tuple(
        gpu
        for gpu in after.gpus
        if gpu.address not in after.fresh or bound.get(gpu.address) == gpu.kernel_driver
    )
    assert kept.fresh == after.fresh
    assert kept.settled_in >= after.settled_in


@given(snapshot=snapshots())
def test_a_snapshot_without_a_fresh_gpu_is_settled_as_it_is(snapshot: Snapshot) -> None:
    calm = replace(snapshot, fresh=frozenset())
    assert settled(calm, Inventory()) == calm


def test_a_new_gpu_waits_until_its_nodes_have_settled() -> None:
    early = Snapshot((make_gpu(A), make_gpu(B)), fresh=frozenset({B}))
    assert [gpu.address for gpu in settled(early, Inventory()).gpus] == [A]


def test_a_gpu_that_was_rebound_a_moment_ago_waits_like_a_new_one() -> None:
    known = build_from(make_gpu(A, driver="xe"))
    rebound = Snapshot((make_gpu(A, driver="i915"),), fresh=frozenset({A}))
    assert settled(rebound, known).gpus == ()


def test_a_fresh_gpu_that_would_be_rejected_waits_too() -> None:
    early = Snapshot(rejected=(Rejected(A, "none of its nodes is there"),), fresh=frozenset({A}))
    assert settled(early, Inventory()).rejected == ()


def test_a_known_gpu_stays_whatever_happens_to_its_nodes() -> None:
    known = build_from(make_gpu(A))
    now = Snapshot((make_gpu(A, nodes=["renderD128"]),), fresh=frozenset({A}))
    assert settled(now, known) == now


def test_a_gpu_that_was_left_out_keeps_its_reason_while_its_nodes_come() -> None:
    without = Rejected(A, "none of its nodes is in /dev/dri: renderD128")
    known = build(Snapshot(rejected=(without,)), [intel()], ONE, Inventory())
    coming = Snapshot((make_gpu(A, nodes=["renderD128"]),), fresh=frozenset({A}))
    assert settled(coming, known).rejected == (without,)
    assert settled(coming, known).gpus == ()


def test_a_gpu_that_cannot_be_read_any_more_is_gone_first_and_a_fault_at_the_next_look() -> None:
    known = build_from(make_gpu(A), make_gpu(B))
    broken = Rejected(A, "card0: sysfs gives no device number")
    leaving = Snapshot((make_gpu(B),), (broken, Rejected("card7", "it lies")))
    first = settled(leaving, known)
    assert (first.gpus, first.rejected) == ((make_gpu(B),), (Rejected("card7", "it lies"),))
    assert first.settled_in == LEAVING
    after = build(first, [intel()], ONE, known)
    assert settled(leaving, after) == leaving


# diff


def applied(old: Inventory, new: Inventory) -> dict[ResourceName, Resource]:
    """Do what Endpoints do with a difference."""
    resources = dict(old.resources)
    change = diff(old, new)
    for resource in (*change.added, *change.changed):
        assert (resource.name in resources) == (resource in change.changed)
        assert resources.get(resource.name) != resource
        resources[resource.name] = resource
    for name in change.gone:
        del resources[name]
    return resources


@given(before=snapshots(), after=snapshots())
def test_the_difference_applied_to_the_old_gives_the_new(before: Snapshot, after: Snapshot) -> None:
    old = build(before, [intel()], ONE, Inventory())
    new = build(after, [intel()], ONE, old)
    assert applied(old, new) == new.resources


@given(snapshot=snapshots())
def test_an_inventory_does_not_differ_from_itself(snapshot: Snapshot) -> None:
    inventory = build(snapshot, [intel()], ONE, Inventory())
    change = diff(inventory, build(snapshot, [intel()], ONE, Inventory()))
    assert (change.added, change.changed, change.gone) == ((), (), ())


def test_a_gpu_that_changes_its_kernel_driver_moves_to_the_other_resource() -> None:
    old = build_from(make_gpu(A), make_gpu(B))
    new = build(Snapshot((make_gpu(A), make_gpu(B, driver="xe"))), [intel()], ONE, old)
    change = diff(old, new)
    assert [resource.name for resource in change.added] == [XE]
    assert [resource.name for resource in change.changed] == [I915]
    assert diff(new, build(Snapshot((make_gpu(B, driver="xe"),)), [intel()], ONE, new)).gone == (I915,)


def test_a_gpu_that_becomes_unhealthy_changes_its_resource() -> None:
    old = Inventory({I915: make_resource()})
    assert diff(old, build_from(make_gpu(A))).changed
