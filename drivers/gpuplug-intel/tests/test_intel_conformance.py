"""Intel's drivers keep to what every driver must do."""

from __future__ import annotations

from gpuplug_intel import i915, xe

from gpuplug.testing import make_gpu
from gpuplug.testing.conformance import Conformance


class TestI915(Conformance):
    driver = i915
    gpus = (
        make_gpu("i915", vendor=0x8086, device=0x56A0, numa_node=0),
        make_gpu("i915", "0000:00:02.0", vendor=0x8086, device=0x9BC8, nodes=["card1"]),
        make_gpu("i915", "i915.0", bus="platform", nodes=["renderD129"]),
    )
    others = (make_gpu("xe", vendor=0x8086, device=0x56A0),)


class TestXe(Conformance):
    driver = xe
    gpus = (make_gpu("xe", vendor=0x8086, device=0xE20B),)
    others = (make_gpu("i915", vendor=0x8086, device=0xE20B),)
