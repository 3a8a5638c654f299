"""``gpuplug completion``: what it prints completes commands, options, words and paths, in the real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from gpuplug.cli import main
from gpuplug.commands.completion import script
from gpuplug.commands.usage import COMMANDS, SHELLS
from tests.test_inspect import imported_by

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = {"trace", "debug", "info", "warning", "error"}


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """Print each to a file, under the name that the help gives it."""
    made = {}
    for shell, name in (("bash", "gpuplug"), ("zsh", "_gpuplug"), ("fish", "gpuplug.fish")):
        assert main(["completion", shell], {}) == 0
        out, err = capsys.readouterr()
        assert err == ""
        made[shell] = tmp_path / shell / name
        made[shell].parent.mkdir()
        made[shell].write_text(out)
    return made


CASES = [
    (["gpuplug", ""], set(COMMANDS)),
    (["gpuplug", "ins"], {"inspect"}),
    (["gpuplug", "serve", "--shared"], {"--shared-dev-num"}),
    (["gpuplug", "serve", "--log-level", ""], LEVELS),
    (["gpuplug", "status", "--pod"], {"--pod-resources-socket"}),
    (["gpuplug", "serve", "--drm-kernel"], {"--drm-kernel-drivers"}),
    (["gpuplug", "completion", ""], set(SHELLS)),
]
IDS = [" ".join(words) for words, _ in CASES]


@needs("bash")
@pytest.mark.parametrize(("words", "wanted"), CASES, ids=IDS)
def test_bash_completes(words: list[str], wanted: set[str], scripts: dict[str, Path]) -> None:
    asked = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE};'
        " function=$(complete -p gpuplug | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        ' $function gpuplug "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}";'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", asked, str(scripts["bash"]), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert wanted <= {line.strip() for line in done.stdout.splitlines()}
    assert done.stderr == ""


@needs("bash")
def test_bash_completes_folders_where_a_folder_is_meant(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "fruit").mkdir()
    (tmp_path / "fruit-list").touch()
    asked = (
        'source "$0"; COMP_WORDS=(gpuplug serve --prefix "$1"); COMP_CWORD=3;'
        " function=$(complete -p gpuplug | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        ' $function gpuplug "$1" --prefix; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", asked, str(scripts["bash"]), f"{tmp_path}/fru"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.rstrip("/ ") for line in done.stdout.splitlines()] == [f"{tmp_path}/fruit"]


@needs("fish")
@pytest.mark.parametrize(("words", "wanted"), CASES, ids=IDS)
def test_fish_completes(words: list[str], wanted: set[str], scripts: dict[str, Path], tmp_path: Path) -> None:
    asked = f"source {scripts['fish']}; complete -C '{' '.join(words)}'"
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    command = ["fish", "--no-config", "-c", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert wanted <= {line.partition("\t")[0] for line in done.stdout.splitlines()}


@needs("zsh")
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("gpuplug insp", "gpuplug inspect "),
        ("gpuplug serve --shared", "gpuplug serve --shared-dev-num"),
        ("gpuplug serve --log-level tr", "gpuplug serve --log-level trace"),
    ],
)
def test_zsh_completes(typed: str, wanted: str, scripts: dict[str, Path], tmp_path: Path) -> None:
    """It is typed at a terminal, since zsh completes nowhere else."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - another program by now
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "ready> "}
        os.execvpe("zsh", ["zsh", "-f", "-i"], environ)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 20
        while text not in seen and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x07", "", os.read(terminal, 4096).decode())
        assert text in seen, f"{text!r} did not come: {seen!r}"

    try:
        until("ready> ")
        folder = scripts["zsh"].parent
        os.write(
            terminal,
            f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; echo set-$((1+1))\n".encode(),
        )
        until("set-2")
        os.write(terminal, f"{typed}\t".encode())
        until(wanted)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def test_every_command_and_option_is_in_every_script(scripts: dict[str, Path]) -> None:
    for shell, path in scripts.items():
        text = path.read_text()
        assert text == f"{script(shell)}\n"
        for command in COMMANDS:
            assert command in text
        assert re.search("-*pod-resources-socket", text)
        assert "amdgpu-partitions" in text


def test_another_shell_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"], {}) == 2
    assert main(["completion"], {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2
    assert "invalid choice: 'tcsh' (choose from" in err


def test_serve_does_not_import_it() -> None:
    assert "shtab" not in imported_by("import gpuplug.cli, gpuplug.commands.serve")
    assert "shtab" in imported_by("import gpuplug.commands.completion")
