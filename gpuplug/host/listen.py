"""Listen on TCP: the sockets are made before anything is served, so that a bad address is told at once."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BACKLOG: Final = 128
"""Connections that the kernel keeps until we accept them."""
KERNEL_BUFFER: Final = 32 * 1024
"""Bytes that the kernel keeps for a connection in each direction; it would give megabytes otherwise."""
_ALL: Final = ("", "::")
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def bind(host: str, port: int, resolve: Callable[..., Any] = socket.getaddrinfo) -> list[socket.socket]:
    """Listen on every address of a host; return the sockets, which do not block.

    An empty host, and ``::``, mean all interfaces with IPv4 and IPv6, as far as the machine has both.
    Of a name's addresses those that this machine does not have are left out: ``localhost`` where IPv6
    is turned off. With port 0 the kernel chooses one, and all sockets have the same.

    :param resolve: finds the addresses of a host.
    :raises OSError: if the host has no address here, or one of them cannot be listened on.
    """
    if host in _ALL:
        if socket.has_dualstack_ipv6():
            try:
                return [_listen(socket.AF_INET6, ("::", port), both=True)]
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
        host = host or "0.0.0.0"  # noqa: S104 - what was asked for
    found = resolve(host, port, type=socket.SOCK_STREAM)
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            same = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(undo.enter_context(_listen(family, (address[0], same, *address[2:]))))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if absent is not None and not sockets:
            raise absent
        undo.pop_all()
    return sockets


def _listen(family: int, address: tuple[str | int, ...], *, both: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections linger in TIME_WAIT is free: a restart must not wait for them.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)  # connections inherit both
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def spelt(bound: socket.socket) -> str:
    """Write where a socket listens as ``HOST:PORT``."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def words(error: OSError) -> str:
    """Say why, without a number: ``Address already in use``."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
