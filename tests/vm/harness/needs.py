"""What a machine must have for this suite. A gap is said in one line, and nothing is skipped for it."""

import platform
import shutil


class MissingRequirementError(Exception):
    """Something this suite cannot run without is not here; the message says what."""

    def __init__(self, what: str) -> None:
        super().__init__(f"tests/vm needs {what}")


_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "depmod": "kmod",
    "udevadm": "udev",
    "crun": "crun",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "make": "make",
    "gcc": "gcc",
}


def check_machine() -> None:
    """Look at everything that a virtual machine of ours needs from this one.

    :raises MissingRequirementError: naming the first thing that is missing
    """
    if platform.machine() != "x86_64":
        raise MissingRequirementError(f"an x86-64 machine, and this is {platform.machine()}")
    for program, package in _PROGRAMS.items():
        if found(program) is None:
            raise MissingRequirementError(f"{program} (package {package})")


def found(program: str) -> str | None:
    """Find a program, those for administrators too: an ordinary user's PATH may lack their folders."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def path_of(program: str) -> str:
    """Find a program that this suite cannot run without.

    :raises MissingRequirementError: naming it and its package
    """
    path = found(program)
    if path is None:
        raise MissingRequirementError(f"{program} (package {_PROGRAMS[program]})")
    return path
