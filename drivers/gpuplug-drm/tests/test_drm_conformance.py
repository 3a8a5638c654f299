"""The generic driver keeps to what every driver must do, whatever it is told to serve."""

from __future__ import annotations

import gpuplug_drm

from gpuplug.testing import make_gpu
from gpuplug.testing.conformance import Conformance


class TestDrm(Conformance):
    driver = gpuplug_drm
    options = {"kernel-drivers": "virtio_gpu,panfrost"}  # noqa: RUF012 - read only
    gpus = (
        make_gpu("virtio_gpu", vendor=0x1AF4, device=0x1050),
        make_gpu("panfrost", "fd940000.gpu", bus="platform", nodes=["renderD128"]),
    )
    others = (make_gpu("v3d"), make_gpu(""))


class TestDrmWithANameOfItsOwn(TestDrm):
    options = {"kernel-drivers": "virtio_gpu,panfrost", "resource": "example.com/gpu"}  # noqa: RUF012
