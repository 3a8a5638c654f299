"""For tests and demonstrations: a made-up machine and a made-up kubelet.

``Machine`` needs the standard library alone; ``FakeKubelet`` brings grpclib in, and is
therefore loaded on first use.
"""

from __future__ import annotations

from gpuplug.testing.machine import FakeGpu, Machine

__all__ = ["FakeGpu", "Machine"]
