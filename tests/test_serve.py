"""``gpuplug serve``: settings and folders are checked before anything is served."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuplug.commands.serve import check_folders, run
from gpuplug.errors import SettingError
from gpuplug.settings import Settings
from tests.rights import as_somebody_else

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplug.testing import Machine

NONE: dict[str, str] = {}


def test_folders_that_are_there_are_good(short_path: Path) -> None:
    folder = str(short_path)
    for name in ("sys", "dev"):
        (short_path / name).mkdir()
    check_folders(
        Settings(prefix=folder, kubelet_dir=folder), {"prefix": "--prefix", "kubelet_dir": "--kubelet-dir"}
    )


def test_a_link_to_a_folder_is_good(short_path: Path, kubelet_dir: Path) -> None:
    (short_path / "link").symlink_to(kubelet_dir)
    check_folders(Settings(kubelet_dir=f"{short_path}/link"), {"kubelet_dir": "--kubelet-dir"})


def test_the_kubelets_own_folder_may_come_later(short_path: Path) -> None:
    check_folders(Settings(kubelet_dir=f"{short_path}/absent"), NONE)


@pytest.mark.parametrize("field", ["prefix", "kubelet_dir"])
@pytest.mark.parametrize("source", ["--the-option", "GPUPLUG_VARIABLE"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "is not there"),
        ("dangling", "is not there"),
        ("file", "is not a folder"),
        ("socket", "is not a folder"),
        ("circle", "cannot be used: Too many levels of symbolic links"),
        ("file/below", "cannot be used: Not a directory"),
        ("n" * 256, "cannot be used: File name too long"),
    ],
)
def test_a_chosen_folder_that_cannot_be_used_is_named_with_its_option(
    short_path: Path, field: str, source: str, name: str, reason: str
) -> None:
    (short_path / "file").touch()
    (short_path / "dangling").symlink_to("nowhere")
    (short_path / "circle").symlink_to("circle")
    os.mkfifo(short_path / "socket")
    path = f"{short_path}/{name}"
    settings = Settings(prefix=path) if field == "prefix" else Settings(kubelet_dir=path)
    with pytest.raises(SettingError) as caught:
        check_folders(settings, {field: source})
    assert str(caught.value) == f"{source}: {path!r} {reason}"


@pytest.mark.parametrize(("there", "missing"), [("dev", "sys"), ("sys", "dev")])
def test_a_prefix_without_sys_or_dev_is_named(short_path: Path, there: str, missing: str) -> None:
    (short_path / there).mkdir()
    with pytest.raises(SettingError) as caught:
        check_folders(Settings(prefix=str(short_path)), {"prefix": "GPUPLUG_PREFIX"})
    assert str(caught.value) == f"GPUPLUG_PREFIX: '{short_path}/{missing}' is not there"


def test_a_file_in_the_place_of_the_kubelets_own_folder_is_an_error(short_path: Path) -> None:
    (short_path / "file").touch()
    with pytest.raises(SettingError, match=r"^--kubelet-dir: '.*/file' is not a folder$"):
        check_folders(Settings(kubelet_dir=f"{short_path}/file"), NONE)


def test_a_folder_that_may_not_be_looked_at_is_an_error_even_if_it_is_the_kubelets_own(
    short_path: Path,
) -> None:
    closed = short_path / "closed"
    closed.mkdir(mode=0)
    with as_somebody_else(), pytest.raises(SettingError) as caught:
        check_folders(Settings(kubelet_dir=f"{closed}/device-plugins"), NONE)
    assert str(caught.value) == f"--kubelet-dir: '{closed}/device-plugins' cannot be used: Permission denied"


def test_a_folder_in_which_a_socket_has_no_room_is_refused(short_path: Path) -> None:
    fits = short_path / ("k" * (107 - len(str(short_path)) - 1 - len("/gpuplug-12345678-abcdef-999999.sock")))
    fits.mkdir()
    check_folders(Settings(kubelet_dir=str(fits)), {"kubelet_dir": "--kubelet-dir"})
    longer = fits.with_name(f"{fits.name}k")
    longer.mkdir()
    with pytest.raises(SettingError) as caught:
        check_folders(Settings(kubelet_dir=str(longer)), {"kubelet_dir": "--kubelet-dir"})
    assert str(caught.value) == (
        f"--kubelet-dir: {str(longer)!r} is too long: the path of a unix socket has 107 bytes at most"
    )


def test_nothing_is_served_with_bad_settings(kubelet_dir: Path) -> None:
    with pytest.raises(SettingError, match=r"^--shared-dev-num: '0'"):
        run({"shared_dev_num": "0", "kubelet_dir": str(kubelet_dir)}, {})
    assert list(kubelet_dir.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_what_it_sees_and_ends_with_0_when_told_to(
    machine: Machine, kubelet_dir: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "gpuplug", "-kubelet-dir", str(kubelet_dir), f"-prefix={machine.root}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            first = next(process.stderr)
            assert first.endswith(f" serve --prefix={machine.root} --kubelet-dir={kubelet_dir}\n")
            for line in process.stderr:
                if "no GPU" in line:
                    break
            process.send_signal(number)
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert list(kubelet_dir.iterdir()) == []
