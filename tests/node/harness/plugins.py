"""The device plugins under test, as processes of the node, and what the kubelet thinks of them."""

import sys
from collections.abc import Mapping
from pathlib import Path

from . import pod_resources
from .cache import cache_home
from .node import Node
from .pod_resources import Held, Numa
from .program import Program
from .waiting import eventually

I915 = "gpu.intel.com/i915"
XE = "gpu.intel.com/xe"
WIDGET = "example.com/widget"
PLUGIN_DIR = "/var/lib/kubelet/device-plugins"

_COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache_home() / "bytecode")}
"""Keeps compiled modules from one start to the next, as an image has them."""


def gpuplug_command(machine: Path, *more: str, shares: int = 1) -> list[str]:
    """Return the command line of `gpuplug serve` for a made-up machine, with `more` arguments."""
    options = {
        "prefix": str(machine),
        "kubelet-dir": PLUGIN_DIR,
        "shared-dev-num": str(shares),
        "log-level": "debug",
    }
    return [
        sys.executable,
        "-m",
        "gpuplug",
        "serve",
        *(word for name, value in options.items() for word in (f"--{name}", value)),
        *more,
    ]


def start_gpuplug(node: Node, *more: str, shares: int = 1) -> Program:
    """Start the real `gpuplug serve` on the node, as a host process."""
    return node.start("gpuplug", gpuplug_command(node.machine_root, *more, shares=shares), env=_COMPILED)


async def status(node: Node, *more: str) -> tuple[int, str]:
    """Run `gpuplug status` on the node; the answer is its exit code and all that it printed."""
    command = [sys.executable, "-m", "gpuplug", "status", "--prefix", str(node.machine_root), *more]
    ran = node.start(f"status-{len(node.programs)}", command, env=_COMPILED)
    return await ran.ended(), ran.log.read_text()


def start_small_plugin(node: Node, *, name: str = "neighbour", count: int = 2) -> Program:
    """Start the other device plugin, which shares no serving code with gpuplug."""
    options = ["--kubelet-dir", PLUGIN_DIR, "--resource", WIDGET, "--count", str(count)]
    command = [sys.executable, "-m", "gpuplug.testing.small_plugin", *options]
    return node.start(name, command, env=_COMPILED)


def _pod_resources_socket(node: Node) -> Path:
    return node.inside(pod_resources.SOCKET)


async def allocatable(node: Node, resource: str) -> Mapping[str, Numa]:
    """Ask the kubelet what it can give out of a resource: Device id → NUMA nodes."""
    return (await pod_resources.allocatable(_pod_resources_socket(node))).get(resource, {})


async def held(node: Node) -> list[Held]:
    """Ask the kubelet who holds which Devices."""
    return await pod_resources.held(_pod_resources_socket(node))


async def capacity(node: Node, resource: str, count: int, *, seconds: float = 30) -> Mapping[str, Numa]:
    """Wait until the kubelet can give out exactly so many Devices of a resource."""
    return await eventually(
        f"{count} of {resource} at the kubelet",
        lambda: allocatable(node, resource),
        lambda devices: len(devices) == count,
        seconds=seconds,
    )
