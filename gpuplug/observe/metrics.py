"""What Prometheus is told: the Report and the counts in its text format.

README.md in this folder lists every metric; a test compares. prometheus_client is imported here
alone, and only in a process that was asked to ``--listen``.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter as Tally
from typing import TYPE_CHECKING, Final, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuplug.observe.readiness import readiness
from gpuplug.witness import Registration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from gpuplug.model import ResourceName
    from gpuplug.observe.observer import Observer
    from gpuplug.observe.report import GpuReport, Report

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

_ALLOCATION: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Seconds; a look at one GPU takes less than a tenth of a millisecond."""
_HOTPLUG: Final = (0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
"""Seconds; a new GPU counts as settled after 30 ms."""


class Counts:
    """What is counted as it happens."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # ships half its types
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self._allocations = Counter(
            "gpuplug_allocations_total",
            "Allocate calls of the kubelet, by outcome: answered, or refused with an error.",
            ("resource", "outcome"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gpuplug_allocation_duration_seconds",
            "Time from an Allocate call to its answer.",
            ("resource",),
            buckets=_ALLOCATION,
            registry=self.registry,
        )
        self._registrations = Counter(
            "gpuplug_registrations_total",
            "Registrations with the kubelet, by outcome: streaming, refused (or no answer), or no_stream.",
            ("resource", "outcome"),
            registry=self.registry,
        )
        self._hotplug = Histogram(
            "gpuplug_hotplug_to_list_seconds",
            "Time from the event of a change to the new list on its way to the kubelet.",
            buckets=_HOTPLUG,
            registry=self.registry,
        )

    def begin(self, name: ResourceName) -> None:
        """Show a resource with zeros: an increase from nothing to one is none to Prometheus."""
        for outcome in ("answered", "refused"):
            self._allocations.labels(name, outcome)
        self._seconds.labels(name)
        for outcome in get_args(Registration):
            self._registrations.labels(name, outcome)

    def allocated(self, name: ResourceName, seconds: float, *, failed: bool) -> None:
        """Count an Allocate."""
        self._allocations.labels(name, "refused" if failed else "answered").inc()
        self._seconds.labels(name).observe(seconds)

    def registered(self, name: ResourceName, outcome: Registration) -> None:
        """Count a registration."""
        self._registrations.labels(name, outcome).inc()

    def listed(self, seconds: float) -> None:
        """Count a change that reached the kubelet."""
        self._hotplug.observe(seconds)


class State(Collector):
    """What is so now, read from the Observer at each scrape."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._build = {
            "version": importlib.metadata.version("gpuplug"),
            "python_version": platform.python_version(),
        }

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that is a state."""
        report = self._observer.report.value
        yield _gauge(
            "gpuplug_build_info",
            "Version of gpuplug and of the Python that runs it; always 1.",
            self._build,
        )
        yield _gauge("gpuplug_ready", "1 where /readyz says ready, else 0.", value=readiness(report).ready)
        yield _gauge(
            "gpuplug_last_look_timestamp_seconds",
            "When the machine was last looked at, in seconds since the epoch; 0 before the first look.",
            value=self._observer.looked_at,
        )
        yield _each(
            "gpuplug_kubelet_connected",
            "1 where the kubelet follows the list of the resource, else 0.",
            {(name,): connected for name, connected in self._observer.connected.items()},
            "resource",
        )
        yield _each(
            "gpuplug_list_generation",
            "How many different lists the resource has had since the start.",
            {(name,): number for name, number in self._observer.lists.items()},
            "resource",
        )
        if report is not None:
            yield from _of_report(report)


def _of_report(report: Report) -> Iterator[Metric]:
    devices: dict[tuple[str, ...], int] = {}
    for resource in report.resources:
        devices[resource.name, "healthy"] = resource.healthy
        devices[resource.name, "unhealthy"] = resource.devices - resource.healthy
    yield _each(
        "gpuplug_devices",
        "Devices that the kubelet is offered, by resource and health; shares count.",
        devices,
        "resource",
        "health",
    )
    yield _each(
        "gpuplug_gpus",
        "GPUs that are there, by state: advertised or refused.",
        {("advertised",): len(report.advertised), ("refused",): len(report.refused)},
        "state",
    )
    yield _each(
        "gpuplug_gpus_refused",
        "GPUs that are not advertised, by kind of reason (examples/why-zero explains each).",
        Tally((gpu.refusal.code.value,) for gpu in report.refused if gpu.refusal is not None),
        "reason",
    )
    yield _each(
        "gpuplug_gpu_info",
        "What an advertised GPU is; always 1. Label gpu is its address, and the id of its first device.",
        {_identity(gpu): 1 for gpu in report.advertised},
        "gpu",
        "resource",
        "kernel_driver",
        "pci_id",
        "nodes",
    )
    broken = sum(1 for driver in report.drivers if driver.problem)
    yield _gauge(
        "gpuplug_driver_problems",
        "Driver packages that cannot be loaded, and faults of those that are.",
        value=broken + len(report.problems),
    )


def _identity(gpu: GpuReport) -> tuple[str, ...]:
    pci = f"{gpu.vendor:04x}:{gpu.device:04x}" if gpu.vendor is not None and gpu.device is not None else ""
    return gpu.address, str(gpu.resource), gpu.kernel_driver, pci, ",".join(node.name for node in gpu.nodes)


def _gauge(name: str, text: str, labels: Mapping[str, str] | None = None, *, value: float = 1) -> Metric:
    return _each(name, text, {tuple((labels or {}).values()): value}, *(labels or {}))


def _each(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family


class Metrics:
    """The page ``/metrics``."""

    def __init__(self, observer: Observer, counts: Counts) -> None:
        self._registry = counts.registry
        self._registry.register(State(observer))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Write all metrics down; it reads /proc, so it is for a thread."""
        return prometheus_client.generate_latest(self._registry)
