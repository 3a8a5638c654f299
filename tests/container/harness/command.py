"""Runs a program and returns what came of it."""

import subprocess
from pathlib import Path


def ran(*words: str | Path) -> tuple[int, str]:
    """Run a program; the answer is its exit code and all that it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
