"""The decisive tests once more, on cgroup version 2 and with a driver behind the GPU's nodes.

    uv run python -m tests.node.unified [RELEASE [TESTS…]]

They run in a virtual machine of tests/vm, as this machine has cgroups of one version only. There, device
rules are BPF programs, and the kernel's own vgem answers at 226:0 and 226:128, so what is let through is a
true OK, and at a number of DRM's that has no device the answer is ENODEV. The machine is emulated, hence
slow, hence no part of the suite: a run takes some minutes.
"""

import os
import sys

from tests.vm.harness.kernels import KERNELS, bootable
from tests.vm.harness.machine import Plan, booted

from .harness.releases import RELEASES

TESTS = ("tests/node/test_access.py", "tests/node/test_verify.py")
_SECONDS = 1200
_PATIENCE = 10


def main(release: str, *paths: str) -> int:
    """Run the tests of one release; the answer is the exit code, and their output is printed."""
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *(paths or TESTS)]
    command = ["sh", "-c", 'modprobe vgem && exec "$@"', "sh", *tests, "-k", release]
    environment = {"GPUPLUG_PATIENCE": str(_PATIENCE), "PATH": os.environ["PATH"]}
    plan = Plan(bootable(KERNELS[0], print), command, _SECONDS, environment, memory="5G")
    with booted(plan) as machine:
        how = machine.wait()
        output = machine.share / "output.log"
        print(output.read_text() if output.exists() else machine.story())
    print(how)
    return 0 if how == "it ended with exit code 0" else 1


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [str(RELEASES[-1])])))
