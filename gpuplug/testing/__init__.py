"""For tests and demonstrations: a made-up machine and a made-up kubelet.

``Machine`` needs the standard library alone. ``FakeKubelet`` and ``FakePodResources`` bring grpclib
and anyio in, so what belongs to them is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplug.testing.gpus import make_gpu, make_node
from gpuplug.testing.lies import Lie, break_node
from gpuplug.testing.machine import FakeGpu, Machine

if TYPE_CHECKING:
    from gpuplug.testing.kubelet import FakeKubelet, FakeKubeletError
    from gpuplug.testing.pod_resources import FakePodResources

__all__ = [
    "FakeGpu",
    "FakeKubelet",
    "FakeKubeletError",
    "FakePodResources",
    "Lie",
    "Machine",
    "break_node",
    "make_gpu",
    "make_node",
]


def __getattr__(name: str) -> object:
    """Import what is not imported yet."""
    if name in __all__:
        from gpuplug.testing import kubelet, pod_resources  # noqa: PLC0415 - see the module's docstring

        return getattr(pod_resources if name == "FakePodResources" else kubelet, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
