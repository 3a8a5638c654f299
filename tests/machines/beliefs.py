"""Nodes whose kubelet believes something else than the machine has: one for each kind of disagreement.

``gpuplug status``'s words about each are in examples/why-zero/kubelet.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuplug.commands.status import join
from gpuplug.core.belief import Belief, Holder
from gpuplug.observe.disagreements import DisagreementCode
from gpuplug.settings import Settings
from gpuplug.testing import Machine
from tests.machines.layouts import INTEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuplug.observe.status import StatusReport

A, B, C = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"
I915, XE = "gpu.intel.com/i915", "gpu.intel.com/xe"
NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Scene:
    """A machine, and what the kubelet says of it."""

    code: DisagreementCode | None
    build: Callable[[Machine], object]
    belief: Belief
    shares: int | None = None
    """What the operator names."""


def offered(
    *ids: str, resource: str = I915, numa: frozenset[int] = NONE
) -> dict[str, dict[str, frozenset[int]]]:
    return {resource: dict.fromkeys(ids, numa)}


def held(*ids: str, pod: str = "web", container: str = "main", resource: str = I915) -> Holder:
    return Holder("default", pod, container, resource, tuple(sorted(ids)))


def two(machine: Machine) -> None:
    """Plug two GPUs in."""
    machine.add_gpu(A)
    machine.add_gpu(B)


def one(machine: Machine) -> None:
    """Plug one GPU in."""
    machine.add_gpu(A)


SCENES: Final = (
    Scene(
        None,
        two,
        Belief(offered(A, f"{A}::1", B, f"{B}::1"), (held(A), held(f"{A}::1", pod="media"))),
    ),
    Scene(DisagreementCode.NOT_REGISTERED, two, Belief({})),
    Scene(DisagreementCode.GPU_UNKNOWN, two, Belief(offered(A), (held(A),))),
    Scene(DisagreementCode.SHARES_DIFFER, one, Belief(offered(A, f"{A}::1")), shares=4),
    Scene(
        DisagreementCode.NUMA_DIFFERS,
        lambda machine: machine.add_gpu(A, numa_node=1),
        Belief(offered(A, numa=frozenset({0}))),
    ),
    Scene(DisagreementCode.OFFERED_IN_VAIN, one, Belief(offered(A, B))),
    Scene(DisagreementCode.HELD_IN_VAIN, one, Belief(offered(A), (held(B),))),
    Scene(DisagreementCode.HELD_TWICE, one, Belief(offered(A), (held(A), held(A, pod="media")))),
    Scene(DisagreementCode.SHARE_WITHDRAWN, one, Belief(offered(A, f"{A}::1"), (held(f"{A}::3"),))),
)


def see(scene: Scene, root: Path) -> StatusReport:
    """Build the machine, and join it with what the kubelet says, as ``gpuplug status`` does."""
    scene.build(Machine(root, nodes="links"))
    settings = Settings(prefix=str(root))
    if scene.shares is not None:
        settings = replace(settings, shared_dev_num=scene.shares)
    return join(scene.belief, settings, INTEL, shares_chosen=scene.shares is not None)
