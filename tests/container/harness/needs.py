"""What a machine must have for this suite, beyond what a node needs."""

import shutil
from pathlib import Path

from tests.node.harness.needs import MissingRequirementError

CNI = Path("/usr/lib/cni")

_PROGRAMS = {
    "buildah": "buildah on PATH (package buildah)",
    "mmdebstrap": "mmdebstrap on PATH (package mmdebstrap)",
    "openssl": "openssl on PATH (package openssl)",
    "ip": "ip on PATH (package iproute2)",
    "uv": "uv on PATH",
}


def check_tools() -> None:
    """Look at every program that makes images or a cluster's network.

    :raises MissingRequirementError: naming the first thing that is missing
    """
    for program, what in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise MissingRequirementError(what)
    for plugin in ("bridge", "host-local", "loopback"):
        if not (CNI / plugin).exists():
            raise MissingRequirementError(f"{CNI / plugin} (package containernetworking-plugins)")
