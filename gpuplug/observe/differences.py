"""In what the kubelet and the machine differ about one GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuplug.core.identity import split_device_id
from gpuplug.observe.disagreements import Disagreement, DisagreementCode, advice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpuplug.observe.report import GpuReport
    from gpuplug.observe.status import GpuStatus, Held


@dataclass(slots=True)
class Told:
    """What the kubelet says of one GPU on one resource."""

    offered: dict[str, frozenset[int]] = field(default_factory=dict)
    """NUMA nodes by Device id."""
    held: set[Held] = field(default_factory=set)


def split(id_: str) -> tuple[str, int]:
    """Return the address and share of a Device id; an id that is none of ours stands for a GPU."""
    return split_device_id(id_) or (id_, 0)


def differences(
    row: GpuStatus, gpu: GpuReport | None, told: Told | None, registered: Collection[str]
) -> Iterator[Disagreement]:
    """Find what the kubelet and the machine do not agree on about one GPU."""

    def differ(code: DisagreementCode, reason: str, *about: str) -> Disagreement:
        return Disagreement(code, row.resource, about or (row.address,), reason, advice(code, row.state))

    if row.state == "healthy" and row.offered == 0:
        if row.resource in registered:
            yield differ(DisagreementCode.GPU_UNKNOWN, "it is healthy, and the kubelet does not have it")
        else:
            yield not_registered(row.resource)
    elif row.state != "healthy" and row.offered:
        reason = f"the kubelet gives out {_counted(row.offered)} of it, and {row.reason}"
        yield differ(DisagreementCode.OFFERED_IN_VAIN, reason)
    elif row.state == "healthy" and told is not None and gpu is not None and told.offered:
        if {split(id_)[1] for id_ in told.offered} != set(range(row.shares)):
            reason = (
                f"the kubelet has {_counted(len(told.offered))} for it, and gpuplug has {row.shares} here"
            )
            yield differ(DisagreementCode.SHARES_DIFFER, reason)
        nodes = frozenset() if gpu.numa_node is None else frozenset({gpu.numa_node})
        for wrong in sorted({_nodes(one) for one in told.offered.values() if one != nodes}):
            reason = f"the kubelet was told {wrong}, and sysfs says {_nodes(nodes)}"
            yield differ(DisagreementCode.NUMA_DIFFERS, reason)
    yield from (differ(*one) for one in _held_wrongly(row))


def _held_wrongly(row: GpuStatus) -> Iterator[tuple[DisagreementCode, str, str]]:
    pods = Counter(device for device, *_ in {(held.device, held.namespace, held.pod) for held in row.held})
    for held in row.held:
        who = f"{held.namespace}/{held.pod}, container {held.container}, holds it"
        if row.state != "healthy":
            yield DisagreementCode.HELD_IN_VAIN, f"{who}, and {row.reason}", held.device
        elif held.share >= row.shares:
            reason = f"{who}, and its GPU has {_counted(row.shares)} now"
            yield DisagreementCode.SHARE_WITHDRAWN, reason, held.device
    for device, count in sorted(pods.items()):
        if count > 1:
            names = sorted({f"{held.namespace}/{held.pod}" for held in row.held if held.device == device})
            yield DisagreementCode.HELD_TWICE, f"{' and '.join(names)} hold it", device


def not_registered(resource: str) -> Disagreement:
    """Say that the kubelet has nothing of a resource."""
    code = DisagreementCode.NOT_REGISTERED
    reason = "this machine has healthy devices of it, and the kubelet has none"
    return Disagreement(code, resource, (resource,), reason, advice(code, "healthy"))


def _counted(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


def _nodes(nodes: Iterable[int]) -> str:
    names = ", ".join(str(node) for node in sorted(nodes))
    return f"NUMA node {names}" if names else "no NUMA node"
