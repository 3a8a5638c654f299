"""``gpuplug verify``: what an attempt to open a node tells, and the one file that needs only Python."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplug import cli
from gpuplug.commands import verify
from gpuplug.commands.verify import Identity, Outcome, Result, exit_code, found, lines

SOMEBODY = Identity(1000, frozenset({1000}))
ROOT = os.geteuid() == 0
NEEDS_ROOT = "only root can become another user, or make nodes"


def test_a_node_that_opens_is_a_success() -> None:
    result = verify.verify("/dev/null", SOMEBODY)
    assert result.outcome is Outcome.OPENED
    assert result.words.startswith("opens")


def sysfs_with_a_gpu(root: Path, path: str, **files: str) -> str:
    """Say in a made-up sysfs that a GPU is behind a node."""
    number = Path(path).stat().st_rdev
    device, driver = root / "devices/0000:03:00.0", root / "drivers/i915"
    for folder in (device, driver, root / f"dev/char/{os.major(number)}:{os.minor(number)}"):
        folder.mkdir(parents=True)
    (device / "driver").symlink_to(driver)
    (root / f"dev/char/{os.major(number)}:{os.minor(number)}/device").symlink_to(device)
    for name, text in files.items():
        (device / name).write_text(text)
    return str(root)


def test_the_gpu_behind_a_node_is_named(tmp_path: Path) -> None:
    sysfs = sysfs_with_a_gpu(tmp_path, "/dev/null", vendor="0x8086\n", device="0x56a0\n")
    result = verify.verify("/dev/null", SOMEBODY, sysfs)
    assert result.words == "opens: 0000:03:00.0 (8086:56a0), kernel driver i915"


@pytest.mark.parametrize("files", [{}, {"vendor": "0x8086\n"}, {"vendor": "x", "device": "y"}])
def test_a_gpu_without_ids_is_named_by_its_address(tmp_path: Path, files: dict[str, str]) -> None:
    sysfs = sysfs_with_a_gpu(tmp_path, "/dev/null", **files)
    assert verify.verify("/dev/null", SOMEBODY, sysfs).words == "opens: 0000:03:00.0, kernel driver i915"


def test_a_node_that_is_not_there_is_told_from_one_that_is_closed() -> None:
    result = verify.verify("/dev/dri/renderD9", SOMEBODY)
    assert result.outcome is Outcome.NO_NODE
    assert "not given this GPU" in result.advice


def test_a_file_in_the_place_of_a_node_is_named(tmp_path: Path) -> None:
    (tmp_path / "card0").touch()
    assert verify.verify(str(tmp_path / "card0"), SOMEBODY).words == "is not a character device"


@pytest.mark.skipif(not ROOT, reason=NEEDS_ROOT)
def test_a_node_without_hardware_behind_it_says_so(tmp_path: Path) -> None:
    node = tmp_path / "renderD128"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(226, 191))
    result = verify.verify(str(node), SOMEBODY)
    assert (result.outcome, result.words.partition(":")[0]) == (Outcome.NO_DEVICE, "ENXIO")


@pytest.mark.skipif(not ROOT, reason=NEEDS_ROOT)
def test_a_user_outside_the_nodes_group_is_told_which_group_to_add(short_path: Path) -> None:
    short_path.chmod(0o755)
    node = short_path / "renderD128"
    os.mknod(node, stat.S_IFCHR, os.makedev(226, 128))
    node.chmod(0o660)
    os.chown(node, 0, 4242)
    become_somebody = "import os, sys; os.setgroups([]); os.setgid(1000); os.setuid(1000)"
    then_verify = f"from gpuplug.commands import verify; sys.exit(verify.run({{'nodes': ['{node}']}}, {{}}))"
    command = [sys.executable, "-c", f"from gpuplug.commands import verify\n{become_somebody}\n{then_verify}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == Outcome.RIGHTS, result
    assert "EACCES" in result.stdout
    assert "add supplementalGroups: [4242]" in result.stdout


def test_the_file_runs_by_itself_where_there_is_only_python(tmp_path: Path) -> None:
    shutil.copy(verify.__file__, copy := tmp_path / "verify.py")
    command = [sys.executable, "-I", "-S", str(copy), "/dev/null", str(tmp_path / "card0")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == Outcome.NO_NODE, result
    assert "/dev/null: opens" in result.stdout


def test_a_container_without_a_gpu_is_told_to_ask_for_one(tmp_path: Path) -> None:
    assert found({}, str(tmp_path / "nothing")) == []
    assert exit_code([]) == Outcome.NOTHING
    assert "resources.limits" in "\n".join(lines([], SOMEBODY, {}))


def test_what_gpuplug_promised_is_verified_even_if_it_is_not_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "card1").touch()
    (tmp_path / "by-path").mkdir()
    environ = {"GPUPLUG_RENDER_NODES": f"{tmp_path}/renderD129,{tmp_path}/card1"}
    assert found(environ, str(tmp_path)) == [f"{tmp_path}/card1", f"{tmp_path}/renderD129"]


def test_the_variables_that_the_container_got_are_shown() -> None:
    shown = list(lines([Result("/dev/dri/card0", Outcome.OPENED, "opens")], SOMEBODY,
                       {"GPUPLUG_GPUS": "0000:03:00.0", "HOME": "/"}))  # fmt: skip
    assert shown == ["uid 1000, groups 1000", "GPUPLUG_GPUS=0000:03:00.0", "/dev/dri/card0: opens"]


def test_the_exit_code_is_that_of_the_device_cgroup_before_all_others() -> None:
    results = [
        Result("a", Outcome.NO_NODE, ""), Result("b", Outcome.OPENED, ""), Result("c", Outcome.CGROUP, ""),
    ]  # fmt: skip
    assert exit_code(results) == Outcome.CGROUP
    assert exit_code(results[:2]) == Outcome.NO_NODE
    assert exit_code(results[1:2]) == Outcome.OPENED


@pytest.mark.parametrize(
    ("number", "outcome", "word"),
    [
        (1, Outcome.CGROUP, "hostPath"),
        (13, Outcome.RIGHTS, "udev"),
        (19, Outcome.NO_DEVICE, "unplugged"),
        (6, Outcome.NO_DEVICE, "unplugged"),
        (2, Outcome.NO_NODE, "not given"),
        (5, Outcome.OTHER, ""),
    ],
)
def test_each_errno_has_its_own_meaning(number: int, outcome: Outcome, word: str, tmp_path: Path) -> None:
    (tmp_path / "node").touch(mode=0o600)
    result = verify._failed(str(tmp_path / "node"), OSError(number, "as it is"), SOMEBODY)
    assert result.outcome is outcome
    assert word in result.advice


def test_the_command_line_passes_the_nodes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "/dev/null", "/dev/zero"], {}) == Outcome.OPENED
    assert "/dev/zero: opens" in capsys.readouterr().out


# as one file


@pytest.fixture
def zipapp(tmp_path: Path) -> Path:
    path = tmp_path / "verify.pyz"
    assert cli.main(["verify", "--write-zipapp", str(path)], {}) == 0
    return path


def run_alone(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run outside of this project, with nothing that Python itself does not bring."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )


def test_the_file_that_is_written_says_the_same_with_nothing_but_python(zipapp: Path, tmp_path: Path) -> None:
    nodes = ["/dev/null", str(tmp_path / "card0")]
    bare = [sys._base_executable, "-I", "-S"]  # type: ignore[attr-defined]
    alone, single = run_alone(*bare, zipapp, *nodes), run_alone(*bare, verify.__file__, *nodes)
    assert alone.returncode == single.returncode == Outcome.NO_NODE
    assert alone.stdout == single.stdout
    assert "/dev/null: opens" in alone.stdout
    assert (alone.stderr, single.stderr) == ("", "")


def test_the_file_that_is_written_is_a_program(zipapp: Path) -> None:
    assert stat.S_IMODE(zipapp.stat().st_mode) == 0o755
    done = run_alone(zipapp, "/dev/zero")
    if done.returncode == 127:  # no python3 in /usr/bin
        pytest.skip("no python3 outside of this environment")
    assert (done.returncode, "/dev/zero: opens" in done.stdout) == (0, True), done


def test_the_file_that_is_written_is_the_same_each_time_and_replaces_what_is_there(
    zipapp: Path,
) -> None:
    before = zipapp.read_bytes()
    zipapp.write_text("old")
    assert cli.main(["verify", "--write-zipapp", str(zipapp)], {}) == 0
    assert zipapp.read_bytes() == before
    assert [path.name for path in zipapp.parent.iterdir()] == ["verify.pyz"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuplug", "verify", "--write-zipapp", "-"], capture_output=True, check=True
    )
    assert done.stdout == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--write-zipapp", "/nowhere/x"], "--write-zipapp: '/nowhere/x' cannot be written: No such file"),
        (["--write-zipapp", "/"], "--write-zipapp: '/' cannot be written: "),
        (["--write-zipapp", "x", "/dev/null"], "--write-zipapp opens no node"),
        (["--write-zipapp"], "argument --write-zipapp: expected one argument"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", *arguments], {}) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_alone_it_has_a_help_and_knows_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "python3 verify.py [NODE ...]" in out
    for outcome in Outcome:
        assert re.search(rf"\b{int(outcome)}\b", out)
    assert verify.main(["--json"]) == 2
    assert capsys.readouterr().err == "verify: unknown option: '--json'\n"
