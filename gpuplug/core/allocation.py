"""Which Devices to prefer, and what a container gets for those that it was given.

Nothing is remembered between two calls: the kubelet keeps the book of who has what,
and may ask again for the same Devices at any time.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

from gpuplug.core.identity import split_device_id
from gpuplug.errors import UnavailableDeviceError, UnknownDeviceError
from gpuplug.model import Allocation, Device, DeviceId, Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplug.model import DeviceSpec, Mount, Resource

NO_OPINION: Final[tuple[DeviceId, ...]] = ()
"""An answer that leaves the choice to the kubelet."""


def by_address(resource: Resource) -> dict[str, Offer]:
    """Index the offers of a Resource by GPU address."""
    return {offer.gpu.address: offer for offer in resource.offers}


def resolve(resource: Resource, ids: Iterable[str]) -> tuple[tuple[Device, Offer], ...]:
    """Find the Devices of an Allocate, in the order asked, each once.

    :raises UnknownDeviceError: for an id that this Resource does not have.
    :raises UnavailableDeviceError: for a Device that is Unhealthy.
    """
    offers = by_address(resource)
    found: dict[str, tuple[Device, Offer]] = {}
    for id_ in ids:
        parts = split_device_id(id_)
        offer = offers.get(parts[0]) if parts else None
        if offer is None or parts is None or parts[1] >= offer.shares:
            raise UnknownDeviceError(f"{resource.name} has no device {id_}")
        if not offer.verdict.healthy:
            raise UnavailableDeviceError(f"device {id_} is unhealthy: {offer.verdict.reason}")
        found[id_] = Device(DeviceId(id_), offer.gpu), offer
    return tuple(found.values())


def answer(offers: Sequence[Offer], envs: Mapping[str, str]) -> Allocation:
    """Put together what one container gets: the union over its GPUs, no container path twice."""
    specs: dict[str, DeviceSpec] = {}
    mounts: dict[str, Mount] = {}
    for offer in offers:
        for spec in offer.specs:
            specs.setdefault(spec.container_path, spec)
    for offer in offers:
        for mount in offer.mounts:
            if mount.container_path not in specs:
                mounts.setdefault(mount.container_path, mount)
    return Allocation(tuple(specs.values()), tuple(mounts.values()), dict(envs))


def default_envs(offers: Sequence[Offer]) -> dict[str, str]:
    """Tell the container which GPUs and render nodes it was given.

    Numbers differ from node to node, so an application cannot know that its render node
    is called renderD129; here it can read it.
    """
    addresses = dict.fromkeys(offer.gpu.address for offer in offers)
    renders = dict.fromkeys(node.path for offer in offers for node in offer.gpu.nodes if node.is_render)
    return {"GPUPLUG_GPUS": ",".join(addresses), "GPUPLUG_RENDER_NODES": ",".join(renders)}


def preferred(
    resource: Resource, available: Sequence[str], must_include: Sequence[str], size: int
) -> tuple[DeviceId, ...]:
    """Choose ``size`` Devices of those available, or leave it to the kubelet (an empty answer).

    ``must_include`` comes first. Then distinct GPUs before a second share of one; GPUs of
    one NUMA node before others; the GPU with the most shares free; the lowest address. The
    same question always gets the same answer, and no question gets an error.
    """
    free = sorted(set(available))
    must = sorted(set(must_include))
    if not 0 < size <= len(free) or len(must) > size or not set(must) <= set(free):
        return NO_OPINION
    if size == len(free):
        return tuple(DeviceId(id_) for id_ in dict.fromkeys([*must, *free]))
    gpus = _free_shares(resource, free)
    if gpus is None:
        return NO_OPINION
    offers = by_address(resource)
    numa = {address: offers[address].gpu.numa_node for address in gpus}
    chosen = list(must)
    taken = Counter(_address(id_) for id_ in must)
    for id_ in must:
        gpus[_address(id_)].remove(id_)
    home = _home(gpus, numa, taken, size - len(chosen))
    # One entry per GPU with a share free, the best one on top.
    heap = [(taken[a], numa[a] not in home, -len(ids), a) for a, ids in gpus.items() if ids]
    heapify(heap)
    while len(chosen) < size:
        held, away, left, address = heap[0]
        chosen.append(gpus[address][left])
        if left == -1:
            heappop(heap)
        else:
            heapreplace(heap, (held + 1, away, left + 1, address))
    return tuple(DeviceId(id_) for id_ in chosen)


def _address(id_: str) -> str:
    return id_.partition("::")[0]


def _free_shares(resource: Resource, free: Sequence[str]) -> dict[str, list[str]] | None:
    """Group ids by GPU, lowest share first; ``None`` if one of them is not ours."""
    offers = by_address(resource)
    shares: dict[str, list[tuple[int, str]]] = {}
    for id_ in free:
        parts = split_device_id(id_)
        if parts is None or (offer := offers.get(parts[0])) is None or parts[1] >= offer.shares:
            return None
        shares.setdefault(parts[0], []).append((parts[1], id_))
    return {address: [id_ for _, id_ in sorted(ids)] for address, ids in shares.items()}


def _home(
    gpus: Mapping[str, Sequence[str]], numa: Mapping[str, int | None], taken: Mapping[str, int], wanted: int
) -> frozenset[int | None]:
    """Choose the NUMA nodes to stay on: where the container is already, else the tightest that fits.

    Empty means that no choice is better than another.
    """
    if any(taken.values()):
        return frozenset(numa[address] for address in taken if address in numa)
    counts = Counter(numa[address] for address, ids in gpus.items() if ids)
    fitting = [node for node, count in counts.items() if count >= wanted]
    if not fitting:
        return frozenset()
    return frozenset({min(fitting, key=lambda node: (counts[node], -1 if node is None else node))})
