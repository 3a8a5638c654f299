"""Listening on TCP: which addresses, and what is said where it cannot be."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gpuplug.host.listen import bind, spelt, words
from gpuplug.settings import resolve, split_address

if TYPE_CHECKING:
    from collections.abc import Callable


def has_ipv6() -> bool:
    """Tell whether this machine has ::1, which containers often do not."""
    try:
        bind("::1", 0)[0].close()
    except OSError:
        return False
    return True


IPV6 = ["::1"] if has_ipv6() else []
needs_ipv6 = pytest.mark.skipif(not IPV6, reason="this machine has no ::1")


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        (":0", ["127.0.0.1", *IPV6]),
        pytest.param("[::]:0", ["127.0.0.1", "::1"], marks=needs_ipv6),
        ("0.0.0.0:0", ["127.0.0.1"]),
        ("127.0.0.1:0", ["127.0.0.1"]),
        pytest.param("[::1]:0", ["::1"], marks=needs_ipv6),
        ("localhost:0", ["localhost"]),
    ],
)
def test_an_address_is_listened_on_and_no_other(text: str, reached: list[str]) -> None:
    host, port = split_address(resolve({"listen": text}, {}).listen)
    with ExitStack() as stack:
        sockets = [stack.enter_context(made) for made in bind(host, port)]
        ports = {made.getsockname()[1] for made in sockets}
        assert len(ports) == 1
        assert 0 not in ports
        assert all(made.getblocking() is False for made in sockets)
        found = [host for host in ("127.0.0.1", "::1", "localhost") if reaches(host, ports.copy().pop())]
        assert (
            set(reached)
            <= set(found)
            <= {*reached, "localhost", *(["127.0.0.1", "::1"] * (host == "localhost"))}
        )


def test_a_port_can_be_used_again_at_once() -> None:
    (first,) = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        peer, _ = first.accept()
        peer.close()  # who closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    first.close()
    (again,) = bind("127.0.0.1", port)
    again.close()


def test_a_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    with bind("127.0.0.1", 0)[0] as first, pytest.raises(OSError, match="in use") as caught:
        bind("127.0.0.1", first.getsockname()[1])
    assert words(caught.value) == "Address already in use"


def addresses(*hosts: str) -> Callable[..., object]:
    """Resolve any name to these."""
    return lambda _, port, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in hosts]


def test_an_address_of_a_name_that_this_machine_does_not_have_is_left_out() -> None:
    elsewhere = "192.0.2.1"  # RFC 5737: nobody's
    (only,) = bind("node", 0, addresses(elsewhere, "127.0.0.1"))
    with only:
        assert only.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match="assign requested address"):
        bind("node", 0, addresses(elsewhere))


def test_several_addresses_of_a_name_have_one_port() -> None:
    with ExitStack() as stack:
        made = [stack.enter_context(one) for one in bind("node", 0, addresses("127.0.0.1", "127.0.0.2"))]
        assert [one.getsockname()[0] for one in made] == ["127.0.0.1", "127.0.0.2"]
        assert len({one.getsockname()[1] for one in made}) == 1


def test_a_host_that_is_none_is_an_error_in_words() -> None:
    with pytest.raises(socket.gaierror) as caught:
        bind("nosuch.invalid", 9380)
    assert words(caught.value)[0].isalpha()
    assert words(OSError(errno.EACCES, "x")) == "Permission denied"


def test_where_it_listens_is_written_as_the_option_is() -> None:
    with bind("127.0.0.1", 0)[0] as four:
        assert spelt(four) == f"127.0.0.1:{four.getsockname()[1]}"


@needs_ipv6
def test_where_it_listens_on_ipv6_is_written_in_brackets() -> None:
    with bind("::1", 0)[0] as six:
        assert spelt(six) == f"[::1]:{six.getsockname()[1]}"
