"""What the machine lacks is said in one line, and the run fails: nothing is skipped."""

import os
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from tests.node.harness.node import REPOSITORY

NODES = ["go", "runc", "nsenter", "mount"]


@pytest.mark.parametrize(
    ("there", "line"),
    [
        (NODES, "tests/container needs buildah on PATH (package buildah)"),
        ([*NODES, "buildah"], "tests/container needs mmdebstrap on PATH (package mmdebstrap)"),
    ],
)
async def test_a_missing_program_ends_the_run_with_one_line(
    tmp_path: Path, there: list[str], line: str
) -> None:
    for program in there:
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    ran = await anyio.run_process(
        [sys.executable, "-m", "pytest", "-q", "tests/container/test_image.py"],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": str(tmp_path)},
        check=False,
    )
    said = ran.stdout.decode().splitlines()
    assert ran.returncode == 1
    assert [text.strip("! ") for text in said if "needs" in text] == [f"_pytest.outcomes.Exit: {line}"]
