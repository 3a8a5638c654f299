"""What a machine must have for this suite. A gap is said in one line, and nothing is skipped for it."""

import ctypes
import os
import re
import shutil
import tempfile
from itertools import takewhile
from pathlib import Path


class MissingRequirementError(Exception):
    """Something this suite cannot run without is not here; the message says what."""

    def __init__(self, what: str) -> None:
        super().__init__(f"tests/node needs {what}")


_PROGRAMS = {
    "go": "the Go toolchain (1.26 or newer) on PATH",
    "runc": "runc on PATH (package runc)",
    "nsenter": "nsenter on PATH (package util-linux)",
    "mount": "mount on PATH (package mount)",
}


def inotify_to_spare(count: int) -> bool:
    """Whether this user can have so many inotify instances more. A kubelet that gets none ends at once."""
    init = ctypes.CDLL(None).inotify_init1
    taken = list(takewhile(lambda fd: fd >= 0, (init(os.O_CLOEXEC) for _ in range(count))))
    for fd in taken:
        os.close(fd)
    return len(taken) == count


def check_machine() -> None:
    """Look at everything that a node needs from the machine.

    :raises MissingRequirementError: naming the first thing that is missing
    """
    if os.geteuid() != 0:
        raise MissingRequirementError(
            "root: it mounts, makes device nodes and moves processes between cgroups"
        )
    for program, what in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise MissingRequirementError(what)
    effective = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    for bit, name in ((21, "CAP_SYS_ADMIN"), (27, "CAP_MKNOD")):
        if effective is None or not int(effective[1], 16) >> bit & 1:
            raise MissingRequirementError(f"the capability {name}, which this root user lacks")
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise MissingRequirementError("overlayfs in the kernel (/proc/filesystems does not list it)")
    temporary = tempfile.gettempdir()
    if os.statvfs(temporary).f_flag & os.ST_NODEV:
        raise MissingRequirementError(f"a TMPDIR where device nodes work, and {temporary} is mounted nodev")
