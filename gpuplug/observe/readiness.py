"""Whether the node can hand out what it has, and why not: the answer of ``/readyz``, from the Report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuplug.observe.report import Report, ResourceReport

_SHOWN: Final = 8
"""GPUs that are named one by one."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer, and the reason in one or more lines."""

    ready: bool
    lines: tuple[str, ...]


def readiness(report: Report | None) -> Readiness:
    """Say whether every resource that has a GPU is registered and its list is followed.

    A node without a GPU that could be advertised is ready: there is nothing to wait for, and a
    rollout must not stop at it. Before the first look at the machine nothing is known.
    """
    if report is None:
        return Readiness(ready=False, lines=("the machine is being looked at for the first time",))
    if not report.resources:
        return Readiness(ready=True, lines=("no GPU is advertised", *_why_none(report), *_problems(report)))
    problems = _problems(report)
    missing = tuple(_describe(resource) for resource in report.resources if not _streams(resource))
    if missing:
        return Readiness(ready=False, lines=(*missing, *problems))
    return Readiness(ready=True, lines=(*(_describe(resource) for resource in report.resources), *problems))


def _streams(resource: ResourceReport) -> bool:
    return resource.serving is not None and resource.serving.streaming


def _describe(resource: ResourceReport) -> str:
    serving = resource.serving
    phase = "starting" if serving is None else ": ".join(filter(None, (serving.phase, serving.reason)))
    count = f"{resource.devices} device{'' if resource.devices == 1 else 's'}, {resource.healthy} healthy"
    return f"{resource.name}: {phase} ({count})"


def _problems(report: Report) -> tuple[str, ...]:
    """Name what is wrong with drivers: it costs their GPUs, and is no reason to wait."""
    broken = (driver.problem for driver in report.drivers if driver.problem)
    return tuple(f"problem: {problem}" for problem in (*broken, *report.problems))


def _why_none(report: Report) -> list[str]:
    if report.nothing is not None:
        return [report.nothing.reason]
    lines = [f"{gpu.address}: {gpu.refusal.reason}" for gpu in report.refused if gpu.refusal is not None]
    return [*lines[:_SHOWN], *([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]
