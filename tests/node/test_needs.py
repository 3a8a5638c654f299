"""What the machine lacks is said in one line, and the run fails: nothing is skipped."""

import os
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from .harness.node import REPOSITORY


@pytest.mark.parametrize(
    ("there", "line"),
    [
        ([], "tests/node needs the Go toolchain (1.26 or newer) on PATH"),
        (["go"], "tests/node needs runc on PATH (package runc)"),
    ],
)
async def test_a_missing_program_ends_the_run_with_one_line(
    tmp_path: Path, there: list[str], line: str
) -> None:
    for program in there:
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    ran = await anyio.run_process(
        [sys.executable, "-m", "pytest", "-q", "tests/node/test_access.py"],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": str(tmp_path)},
        check=False,
    )
    said = ran.stdout.decode().splitlines()
    assert ran.returncode == 1
    assert [text.strip("! ") for text in said if "needs" in text] == [f"_pytest.outcomes.Exit: {line}"]
