"""Which Devices to prefer, and what a container gets for those that it was given.

Nothing is remembered between two calls: the kubelet keeps the book of who has what,
and may ask again for the same Devices at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

from gpuplug.core.identity import split_device_id
from gpuplug.errors import UnavailableDeviceError, UnknownDeviceError
from gpuplug.model import ALL, Allocation, Device, DeviceId, Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    if resource.together:
        return _all_together(resource, ids)
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


def _all_together(resource: Resource, ids: Iterable[str]) -> tuple[tuple[Device, Offer], ...]:
    """Find what the one Device of a monitoring Resource stands for: all its GPUs, broken ones too."""
    unknown = next((id_ for id_ in ids if id_ != ALL or not resource.offers), None)
    if unknown is not None:
        raise UnknownDeviceError(f"{resource.name} has no device {unknown}")
    return tuple((Device(ALL, offer.gpu), offer) for offer in resource.offers)


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


Rank = Callable[[int, bool, int], tuple[int, ...]]
"""How good a GPU is to take the next share of, the lowest first: given how many the container has of
it, whether it is away from the NUMA nodes to stay on, and how many of its shares are free."""

POLICIES: Final[Mapping[str, Rank]] = {
    "none": lambda held, away, free: (held, away, -free),
    "balanced": lambda held, away, free: (held, -free, away),
    "packed": lambda held, away, free: (held == 0, free, away),
}
"""What ``--allocation-policy`` makes of it; where two GPUs are equal, the lower address has it."""


def preferred(
    resource: Resource,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    policy: str = "none",
) -> tuple[DeviceId, ...]:
    """Choose ``size`` Devices of those available, or leave it to the kubelet (an empty answer).

    ``must_include`` comes first. Then, by policy:

    - ``none``: distinct GPUs before a second share of one; GPUs of one NUMA node before
      others; the GPU with the most shares free.
    - ``balanced``: distinct GPUs; the one with the most shares free; the NUMA node.
    - ``packed``: GPUs that the container has already; the one with the fewest shares free, so
      that one GPU is full before the next is begun; the NUMA node.

    Then the lowest address. The same question always gets the same answer, and no question
    gets an error.
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
    rank = POLICIES[policy]
    # One entry per GPU with a share free, the best one on top.
    heap = [(rank(taken[a], numa[a] not in home, len(ids)), a) for a, ids in gpus.items() if ids]
    heapify(heap)
    while len(chosen) < size:
        address = heap[0][1]
        chosen.append(gpus[address].pop(0))
        taken[address] += 1
        left = len(gpus[address])
        if left:
            heapreplace(heap, (rank(taken[address], numa[address] not in home, left), address))
        else:
            heappop(heap)
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
