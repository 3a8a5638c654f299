"""Socket files: which are ours, which are left over, and which are somebody else's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuplug.host.sockets import identify, listening, remove_abandoned, remove_if_same, remove_own
from tests.rights import as_somebody_else

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def bound(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, *, listen: bool = True) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        if listen:
            server.listen(1)
        yield


def abandoned(path: Path) -> None:
    with bound(path):
        pass


def test_a_socket_file_made_again_is_another_one(kubelet_dir: Path) -> None:
    path = kubelet_dir / "s"
    abandoned(path)
    before = identify(str(path))
    assert before is not None
    assert identify(str(path)) == before
    path.unlink()
    abandoned(path)
    assert identify(str(path)) not in {None, before}


def test_what_is_no_socket_has_no_identity(kubelet_dir: Path) -> None:
    (kubelet_dir / "file").touch()
    (kubelet_dir / "circle").symlink_to("circle")
    for name in ("absent", "file", "file/below", "circle", ".", "n" * 300):
        assert identify(f"{kubelet_dir}/{name}") is None


def test_a_link_to_a_socket_has_the_identity_of_the_socket(kubelet_dir: Path) -> None:
    abandoned(kubelet_dir / "s")
    (kubelet_dir / "link").symlink_to("s")
    assert identify(f"{kubelet_dir}/link") == identify(f"{kubelet_dir}/s")


def test_a_socket_is_removed_only_if_it_is_still_the_same(kubelet_dir: Path) -> None:
    path = kubelet_dir / "s"
    abandoned(path)
    first = identify(str(path))
    path.unlink()
    abandoned(path)
    assert not remove_if_same(str(path), first)
    assert not remove_if_same(str(path), None)
    assert path.is_socket()
    assert remove_if_same(str(path), identify(str(path)))
    assert not os.path.lexists(path)
    assert not remove_if_same(str(path), first)


def test_sockets_of_a_killed_process_are_removed_and_named(kubelet_dir: Path) -> None:
    for name in ("gpuplug-b.sock", "gpuplug-a.sock"):
        abandoned(kubelet_dir / name)
    assert remove_abandoned(str(kubelet_dir), "gpuplug-") == ["gpuplug-a.sock", "gpuplug-b.sock"]
    assert list(kubelet_dir.iterdir()) == []
    assert remove_abandoned(str(kubelet_dir), "gpuplug-") == []


def test_a_socket_that_may_not_be_removed_is_not_said_to_be(kubelet_dir: Path) -> None:
    abandoned(kubelet_dir / "gpuplug-a.sock")
    (kubelet_dir / "gpuplug-a.sock").chmod(0o777)
    kubelet_dir.parent.chmod(0o755)
    kubelet_dir.chmod(0o555)
    with as_somebody_else():
        assert remove_abandoned(str(kubelet_dir), "gpuplug-") == []
    assert (kubelet_dir / "gpuplug-a.sock").is_socket()
    kubelet_dir.chmod(0o755)


def test_sockets_that_answer_and_sockets_of_others_and_other_files_stay(kubelet_dir: Path) -> None:
    abandoned(kubelet_dir / "kubelet.sock")
    abandoned(kubelet_dir / "nvidia-gpu.sock")
    (kubelet_dir / "gpuplug-file").touch()
    (kubelet_dir / "gpuplug-folder").mkdir()
    (kubelet_dir / "gpuplug-dangling").symlink_to("nowhere")
    before = sorted(kubelet_dir.iterdir())
    with (
        bound(kubelet_dir / "gpuplug-alive.sock"),
        bound(kubelet_dir / "gpuplug-datagram.sock", socket.SOCK_DGRAM, listen=False),
    ):
        assert remove_abandoned(str(kubelet_dir), "gpuplug-") == []
    assert set(before) < set(kubelet_dir.iterdir())


def test_a_socket_with_a_full_queue_is_alive(kubelet_dir: Path) -> None:
    path = kubelet_dir / "gpuplug-busy.sock"
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(4)]
    with bound(path):
        for caller in callers:
            caller.connect_ex(str(path))
        assert remove_abandoned(str(kubelet_dir), "gpuplug-") == []
        for caller in callers:
            caller.close()


def test_sockets_of_others_that_answer_are_named_and_our_own_are_not_asked(kubelet_dir: Path) -> None:
    abandoned(kubelet_dir / "gpuplug-dead.sock")
    (kubelet_dir / "gpuplug-dangling").symlink_to("nowhere")
    with (
        bound(kubelet_dir / "gpuplug-theirs.sock"),
        bound(kubelet_dir / "gpuplug-ours.sock"),
        bound(kubelet_dir / "other.sock"),
    ):
        assert listening(str(kubelet_dir), "gpuplug-", "gpuplug-ours") == {"gpuplug-theirs.sock"}
    assert listening(f"{kubelet_dir}/absent", "gpuplug-", "gpuplug-ours") == frozenset()


def test_a_folder_that_is_not_there_has_nothing_abandoned(kubelet_dir: Path) -> None:
    assert remove_abandoned(f"{kubelet_dir}/absent", "gpuplug-") == []


def test_an_end_in_a_hurry_removes_what_this_process_listens_on_and_nothing_of_others(
    kubelet_dir: Path,
) -> None:
    elsewhere = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); input()"
    )
    other = kubelet_dir / "gpuplug-other.sock"
    command = [sys.executable, "-c", elsewhere, str(other)]
    with bound(kubelet_dir / "gpuplug-own.sock"), bound(kubelet_dir / "kubelet.sock"):
        abandoned(kubelet_dir / "gpuplug-left.sock")
        (kubelet_dir / "gpuplug-file").touch()
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            try:
                while not listening(str(kubelet_dir), other.name, "\0"):
                    assert process.poll() is None
                gone = remove_own(str(kubelet_dir), "gpuplug-")
                assert gone == ["gpuplug-left.sock", "gpuplug-own.sock"]
                assert {path.name for path in kubelet_dir.iterdir()} == {
                    other.name,
                    "kubelet.sock",
                    "gpuplug-file",
                }
            finally:
                process.kill()
    assert remove_own(f"{kubelet_dir}/absent", "gpuplug-") == []
