"""The files in the kubelet's folder: whose they are, and which of ours are left over."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from dataclasses import dataclass
from typing import Final

_CREDENTIALS: Final = struct.Struct("iII")
"""``struct ucred`` of unix(7): process, user and group of who listens."""


@dataclass(frozen=True, slots=True)
class SocketId:
    """What tells one socket file from a later one of the same name."""

    device: int
    inode: int
    changed: int
    """``st_ctime_ns``: an inode number may be used again at once."""


def identify(path: str) -> SocketId | None:
    """Identify a socket file; ``None`` if there is none, or something else is in its place."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketId(found.st_dev, found.st_ino, found.st_ctime_ns)


def remove_if_same(path: str, identity: SocketId | None) -> bool:
    """Remove a socket file, unless another one has taken its place; tell whether it was removed."""
    if identity is None or identify(path) != identity:
        return False
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def listening(directory: str, prefix: str, ours: str) -> frozenset[str]:
    """Name the sockets with this prefix that somebody listens on, those beginning with ``ours`` left out.

    Finding out takes a connection, so it is not done with our own.
    """
    others = (name for name in _names(directory, prefix) if not name.startswith(ours))
    return frozenset(name for name in others if _answers(f"{directory}/{name}"))


def remove_abandoned(directory: str, prefix: str) -> list[str]:
    """Remove socket files with this prefix that nobody listens on; return their names.

    Left behind by a process that was killed. A socket that answers belongs to somebody.
    """
    removed = []
    for name in _names(directory, prefix):
        path = f"{directory}/{name}"
        identity = identify(path)
        if identity is not None and not _answers(path) and remove_if_same(path, identity):
            removed.append(name)
    return removed


def remove_own(directory: str, prefix: str) -> list[str]:
    """Remove socket files with this prefix that this process listens on, or nobody; return their names.

    For an end in a hurry, when whoever made them does not come to it any more.
    """
    removed = []
    for name in _names(directory, prefix):
        path = f"{directory}/{name}"
        identity = identify(path)
        if identity is not None and _listener(path) in {None, os.getpid()} and remove_if_same(path, identity):
            removed.append(name)
    return removed


def _names(directory: str, prefix: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except OSError:
        return []


def _answers(path: str) -> bool:
    return _listener(path) is not None


def _listener(path: str) -> int | None:
    """Give the id of the process that listens, 0 if it is hidden, ``None`` if there is none.

    Anything but a plain refusal or absence counts as a process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            return None if error.errno in {errno.ECONNREFUSED, errno.ENOENT} else 0
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid
