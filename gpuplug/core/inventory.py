"""From what the kernel has to what the kubelet is told: ``Snapshot`` → ``Inventory`` → difference.

Everything here is a pure function of its arguments. What a Driver decided about a GPU
is kept as a ``Judgement`` and used again while the GPU stays the same, so that hooks are
called once per GPU and change, and an idle look at 128 GPUs costs 128 comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from gpuplug.core.identity import id_problem, is_resource_name
from gpuplug.core.sizes import LIST_LIMIT, offer_size
from gpuplug.errors import DriverError
from gpuplug.model import (
    Declined,
    Inventory,
    Judgement,
    Offer,
    RefusalCode,
    Rejected,
    Resource,
    ResourceName,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from gpuplug.model import Device, DeviceSpec, Gpu, Mount, Verdict
    from gpuplug.settings import Settings

LEAVING: Final = 0.03
"""Seconds until a GPU that was there, and cannot be read any more, is looked at again."""


class Driver(Protocol):
    """What the core needs of a loaded Driver; every method raises ``DriverError`` and nothing else."""

    @property
    def name(self) -> str:
        """The entry-point name."""
        ...

    @property
    def fallback(self) -> bool:
        """Whether it is asked only about GPUs that no other Driver claims."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What people should know of it beside its answers."""
        ...

    @property
    def stuck(self) -> str:
        """Why it is not asked any more, if one of its hooks did not return."""
        ...

    @property
    def gives_envs(self) -> bool:
        """Whether it has anything to say of environment variables."""
        ...

    def resource_name(self, gpu: Gpu, settings: Settings) -> str | Declined | None:
        """Claim the GPU by naming its resource, or decline to advertise it."""
        ...

    def device_specs(self, gpu: Gpu, settings: Settings) -> tuple[DeviceSpec, ...]:
        """Say which nodes a container gets."""
        ...

    def mounts(self, gpu: Gpu, settings: Settings) -> tuple[Mount, ...]:
        """Say which mounts it gets."""
        ...

    def envs(self, devices: Sequence[Device], settings: Settings) -> Mapping[str, str]:
        """Say which environment variables it gets."""
        ...

    def health(self, gpu: Gpu, settings: Settings) -> Verdict:
        """Judge the GPU's health."""
        ...


def settled(snapshot: Snapshot, known: Inventory) -> Snapshot:
    """Leave out what was seen in the middle of coming or going.

    The kernel makes the render node first and the card node milliseconds later, so a GPU that
    appeared a moment ago is not published before it is whole. One that is known already stays,
    whatever happens to its nodes; and what was left out before stays so, for the reason that it
    had. On removal the nodes go before the sysfs does: a GPU that was there and cannot be read
    now is gone, and only if it is still so at the next look is there a fault to report.
    """
    early = snapshot.fresh - _known_as_it_is(snapshot, known)
    leaving = {rejected.address for rejected in snapshot.rejected if rejected.address in known.judgements}
    if not early and not leaving:
        return snapshot
    still = tuple(rejected for rejected in known.rejected if rejected.address in early)
    out = early | leaving
    return replace(
        snapshot,
        gpus=tuple(gpu for gpu in snapshot.gpus if gpu.address not in early),
        rejected=still + tuple(rejected for rejected in snapshot.rejected if rejected.address not in out),
        settled_in=max(snapshot.settled_in, LEAVING if leaving else 0.0),
    )


def _known_as_it_is(snapshot: Snapshot, known: Inventory) -> set[str]:
    """Name the GPUs that were known before, on the kernel driver that they have now."""
    return {
        gpu.address
        for gpu in snapshot.gpus
        if (before := known.judgements.get(gpu.address)) is not None
        and before.gpu.kernel_driver == gpu.kernel_driver
    }


def build(snapshot: Snapshot, drivers: Sequence[Driver], settings: Settings, known: Inventory) -> Inventory:
    """Decide what is advertised; ``known`` is the Inventory before, whose decisions are used again.

    Drivers and settings must be those of ``known``.
    """
    judgements = {gpu.address: _again(gpu, known) or judge(gpu, drivers, settings) for gpu in snapshot.gpus}
    offers: dict[ResourceName, list[Offer]] = {}
    room: dict[ResourceName, int] = {}
    rejected = list(snapshot.rejected)
    for address, judgement in judgements.items():
        if judgement.offer is None or judgement.resource is None:
            rejected.append(Rejected(address, judgement.reason, judgement.code))
            continue
        left = room.get(judgement.resource, LIST_LIMIT) - _size(judgement.offer)
        if left < 0:
            reason = f"the list of {judgement.resource} would pass 4 MiB with it"
            rejected.append(Rejected(address, reason, RefusalCode.LIST_FULL))
            continue
        room[judgement.resource] = left
        offers.setdefault(judgement.resource, []).append(judgement.offer)
    resources = {name: Resource(name, tuple(offers[name])) for name in sorted(offers)}
    return Inventory(
        resources=resources,
        rejected=tuple(sorted(rejected, key=lambda r: r.address)),
        judgements=judgements,
        problems=tuple(driver.stuck for driver in drivers if driver.stuck),
        monitoring=_monitoring(judgements.values(), settings, resources)
        if settings.enable_monitoring
        else {},
    )


def _monitoring(
    judgements: Iterable[Judgement], settings: Settings, taken: Container[str]
) -> dict[ResourceName, Resource]:
    """Gather what is watched: one Resource with one Device for all GPUs of a resource, or of a vendor."""
    watched: dict[ResourceName, list[Offer]] = {}
    for judgement in judgements:
        if judgement.watched is not None and judgement.resource is not None:
            name = monitoring_name(judgement.resource, settings)
            if name is not None and name not in taken:
                watched.setdefault(name, []).append(judgement.watched)
    return {name: Resource(name, tuple(watched[name]), together=True) for name in sorted(watched)}


def monitoring_name(name: str, settings: Settings) -> ResourceName | None:
    """Give the monitoring Resource that belongs to a resource; ``None`` where it would be no valid name."""
    domain = name.partition("/")[0]
    found = f"{domain}/monitoring" if settings.monitoring_mode == "single" else f"{name}_monitoring"
    return ResourceName(found) if is_resource_name(found) else None


def _size(offer: Offer) -> int:
    """Count an offer as if it were unhealthy, the longer word: health must not decide who fits."""
    return offer_size(len(offer.gpu.address.encode()), offer.shares, numa_node=offer.gpu.numa_node)


def _again(gpu: Gpu, known: Inventory) -> Judgement | None:
    before = known.judgements.get(gpu.address)
    return before if before is not None and before.gpu == gpu else None


def judge(gpu: Gpu, drivers: Sequence[Driver], settings: Settings) -> Judgement:
    """Ask the Drivers about one GPU, and keep what was noted of them meanwhile."""
    judgement = _judge(gpu, drivers, settings)
    notes = tuple(note for driver in drivers for note in driver.notes)
    return replace(judgement, problems=(*judgement.problems, *notes)) if notes else judgement


def _judge(gpu: Gpu, drivers: Sequence[Driver], settings: Settings) -> Judgement:
    """Ask the Drivers about one GPU: who claims it, and what a container gets.

    A Driver that fails while it is asked for a claim is passed over; one that fails about a
    GPU that it claimed loses it. Of two claims the first by Driver name wins; a fallback is
    asked only where there is none.
    """
    claims: list[tuple[Driver, str | Declined]] = []
    problems: list[str] = []
    for driver in sorted(drivers, key=lambda d: (d.fallback, d.name)):
        if driver.fallback and claims and not claims[0][0].fallback:
            break
        try:
            name = driver.resource_name(gpu, settings)
        except DriverError as error:
            problems.append(str(error))
            continue
        if name is not None:
            claims.append((driver, name))
    if not claims:
        who = (
            f"kernel driver {gpu.kernel_driver}" if gpu.kernel_driver else "a device without a kernel driver"
        )
        reason = "; ".join([*problems, f"no driver package claims {who}"])
        code = RefusalCode.DRIVER_FAILED if problems else RefusalCode.NO_DRIVER_PACKAGE
        return Judgement(gpu, reason=reason, code=code, problems=tuple(problems))
    winner, name = claims[0]
    problems += [
        f"drivers {winner.name} and {other.name} both claim {gpu.address}: {winner.name} has it"
        for other, _ in claims[1:]
    ]
    if isinstance(name, Declined):
        reason = f"driver {winner.name} does not offer it: {name.reason}"
        return Judgement(gpu, reason=reason, code=RefusalCode.DECLINED, problems=tuple(problems))
    return _offer(gpu, winner, name, settings, problems)


def _offer(gpu: Gpu, driver: Driver, name: str, settings: Settings, problems: list[str]) -> Judgement:
    left_out = _left_out(gpu, settings)
    if left_out is not None and not (left_out.code is RefusalCode.SRIOV_PF and settings.enable_monitoring):
        return replace(left_out, problems=tuple(problems))
    shares = settings.shared_dev_num
    try:
        specs = driver.device_specs(gpu, settings)
        offer = Offer(
            gpu, driver.name, shares, specs, driver.mounts(gpu, settings), driver.health(gpu, settings)
        )
    except DriverError as error:
        return Judgement(gpu, reason=str(error), problems=(*problems, str(error)))
    reason: str | None = None
    code = RefusalCode.DRIVER_FAILED
    if not is_resource_name(name):
        reason = f"driver {driver.name}: {name!r} is not a resource name (domain/name)"
    elif not specs:
        reason = f"driver {driver.name} gives it no device node"
    elif (reason := id_problem(gpu.address, shares)) is not None:
        code = RefusalCode.BAD_ADDRESS
    if reason is not None:
        faults = (reason,) if code is RefusalCode.DRIVER_FAILED else ()
        return Judgement(gpu, reason=reason, code=code, problems=(*problems, *faults))
    resource, watched = ResourceName(name), offer if settings.enable_monitoring else None
    if left_out is not None:
        return replace(left_out, resource=resource, problems=tuple(problems), watched=watched)
    return Judgement(gpu, resource, offer, problems=tuple(problems), watched=watched)


def _left_out(gpu: Gpu, settings: Settings) -> Judgement | None:
    """Say why the GPU is left out whatever its Driver says of it, if it is."""
    ids = gpu.vendor, gpu.device
    listed = f"PCI device id {gpu.device:#06x}" if gpu.device is not None else "no PCI device id"
    if settings.deny_ids and settings.deny_ids.have(*ids):
        return Judgement(gpu, reason=f"--deny-ids has its {listed}", code=RefusalCode.DENIED)
    if settings.allow_ids and not settings.allow_ids.have(*ids):
        said = f"does not have its {listed}" if gpu.device is not None else f"is given, and it has {listed}"
        return Judgement(gpu, reason=f"--allow-ids {said}", code=RefusalCode.DENIED)
    if gpu.virtual_functions:
        # It keeps a few MB of memory for itself then; what can be used is in the virtual functions.
        vfs = f"{gpu.virtual_functions} virtual functions turned on"
        reason = f"it is an SR-IOV physical function with {vfs}"
        return Judgement(gpu, reason=reason, code=RefusalCode.SRIOV_PF)
    return None


@dataclass(frozen=True, slots=True)
class InventoryDiff:
    """What became different between two Inventories."""

    added: tuple[Resource, ...] = ()
    changed: tuple[Resource, ...] = ()
    gone: tuple[ResourceName, ...] = field(default=())


def diff(old: Inventory, new: Inventory) -> InventoryDiff:
    """Tell which Resources are new, different, or without any GPU now."""
    before, after = old.served, new.served
    return InventoryDiff(
        added=tuple(resource for name, resource in after.items() if name not in before),
        changed=tuple(
            resource for name, resource in after.items() if name in before and before[name] != resource
        ),
        gone=tuple(name for name in before if name not in after),
    )
