"""Where the kubelet and the machine differ, and what to do: the one place that this wording comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = Literal["healthy", "unhealthy", "moved", "refused", "gone", "unknown"]
"""What the machine says of a GPU on a resource.

``moved``: it is advertised under another resource; ``refused``: it is there and not advertised;
``gone``: it is not there; ``unknown``: gpuplug gives no such id to any GPU.
"""


class DisagreementCode(StrEnum):
    """The kinds of disagreements: stable names, for scripts and for the docs."""

    NOT_REGISTERED = "not-registered"
    """The machine has healthy GPUs for a resource, and the kubelet has no Device of it."""
    GPU_UNKNOWN = "gpu-unknown"
    """The kubelet has the resource, and not this healthy GPU."""
    SHARES_DIFFER = "shares-differ"
    """The kubelet has another number of Devices for a GPU than it should."""
    NUMA_DIFFERS = "numa-differs"
    """The kubelet was told another NUMA node."""
    OFFERED_IN_VAIN = "offered-in-vain"
    """The kubelet gives out Devices that nobody can use."""
    HELD_IN_VAIN = "held-in-vain"
    """A container holds a Device that it cannot use any more."""
    HELD_TWICE = "held-twice"
    """Two pods hold one Device."""
    SHARE_WITHDRAWN = "share-withdrawn"
    """A container holds a share that is not there any more, of a GPU that is."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing about which the kubelet and the machine differ."""

    code: DisagreementCode
    resource: str
    about: tuple[str, ...]
    """Addresses of GPUs, or Device ids where containers hold them; the resource where it is all of it."""
    reason: str
    """In words."""
    advice: str
    """What to do next, in words."""


_LOOK_AT_SERVE: Final = (
    "look again in a moment, for gpuplug tells the kubelet by itself; if it stays, `gpuplug serve` does not"
    " run on this node or has lost the kubelet: its log says which"
)
_RIVAL: Final = (
    "look for another device plugin that serves this resource name: the one that registered last has it,"
    " so remove the other one"
)
_DELETE: Final = "delete the pod, so that it is made anew with a GPU that is there"

ADVICE: Final[Mapping[DisagreementCode, str]] = {
    DisagreementCode.NOT_REGISTERED: "see that `gpuplug serve` runs on this node, and look in its log for"
    " what the kubelet answered; just after a start it takes a moment",
    DisagreementCode.GPU_UNKNOWN: "look again in a moment; if it stays, `gpuplug serve` sees another /sys or"
    " /dev than this command: compare with `gpuplug inspect` in its pod",
    DisagreementCode.SHARES_DIFFER: "leave --shared-dev-num out here, or give the one of `gpuplug serve`;"
    " if that is not it, look in its log whether it has lost the kubelet",
    DisagreementCode.NUMA_DIFFERS: "look again when --resync has passed; if it stays, restart"
    " `gpuplug serve`",
    DisagreementCode.OFFERED_IN_VAIN: _LOOK_AT_SERVE,
    DisagreementCode.HELD_IN_VAIN: _DELETE,
    DisagreementCode.HELD_TWICE: "delete one of the pods, if both run: the kubelet has lost count, as it does"
    " after a boot at which Device ids changed; before Kubernetes 1.34 pods that have ended are listed too",
    DisagreementCode.SHARE_WITHDRAWN: "nothing, while it runs; made anew it gets one of the shares that there"
    " are, if one is free",
}
"""What to do next, by kind."""

_OFFERED: Final[Mapping[State, str]] = {"unknown": _RIVAL}
_HELD: Final[Mapping[State, str]] = {
    "unhealthy": "mend what is said here; the pod goes on with what is left of its GPU",
    "unknown": _RIVAL,
}


def advice(code: DisagreementCode, state: State) -> str:
    """Say what to do about a GPU in this state."""
    special = {DisagreementCode.OFFERED_IN_VAIN: _OFFERED, DisagreementCode.HELD_IN_VAIN: _HELD}.get(code, {})
    return special.get(state, ADVICE[code])


def grouped(found: Iterable[Disagreement]) -> tuple[Disagreement, ...]:
    """Put together what differs only in what it is about; in the order of the kinds."""
    groups: dict[tuple[DisagreementCode, str, str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.code, one.resource, one.reason, one.advice), []).extend(one.about)
    order = list(DisagreementCode)
    made = [
        Disagreement(c, r, tuple(sorted(set(about))), why, do) for (c, r, why, do), about in groups.items()
    ]
    return tuple(sorted(made, key=lambda one: (order.index(one.code), one.resource, one.about, one.reason)))
