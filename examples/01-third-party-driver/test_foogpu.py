"""What every driver must do, checked by gpuplug's conformance kit, and what this one does besides."""

from __future__ import annotations

import gpuplug_foogpu

from gpuplug import Verdict
from gpuplug.testing import make_gpu
from gpuplug.testing.conformance import Conformance


class TestFoogpu(Conformance):
    """The kit's checks; `pytest -v` lists them."""

    driver = gpuplug_foogpu
    gpus = (make_gpu("foogpu", attributes={"foo_state": "running"}),)


def test_a_gpu_whose_firmware_has_stopped_is_unhealthy() -> None:
    halted = make_gpu("foogpu", attributes={"foo_state": "halted"})
    assert gpuplug_foogpu.gpuplug_health(halted) == Verdict(healthy=False, reason="its firmware has stopped")
