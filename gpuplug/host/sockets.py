"""The files in the kubelet's folder: whose they are, and which of ours are left over."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass


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


def _names(directory: str, prefix: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except OSError:
        return []


def _answers(path: str) -> bool:
    """Tell whether a process listens; anything but a plain refusal or absence counts as yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}
    return True
