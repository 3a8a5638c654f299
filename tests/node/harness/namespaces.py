"""The two system calls behind a private node, which Python 3.11 does not offer itself."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT = 0x0002_0000
CGROUP = 0x0200_0000
UTS = 0x0400_0000
IPC = 0x0800_0000
PID = 0x2000_0000
NETWORK = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process (for PID: its next children) namespaces of its own."""
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


def _setns(fd: int, flags: int) -> None:
    if _libc.setns(fd, flags):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put this thread into the network of another process; a socket made here stays in that network."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    theirs = -1
    try:
        theirs = os.open(Path(f"/proc/{pid}/ns/net"), os.O_RDONLY)
        _setns(theirs, NETWORK)
        try:
            yield
        finally:
            _setns(own, NETWORK)
    finally:
        for fd in (own, theirs):
            if fd >= 0:
                os.close(fd)
