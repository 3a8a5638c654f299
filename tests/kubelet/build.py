"""Build the kubelet's device manager once, into a cache.

Compiling a good part of Kubernetes takes minutes, so the program is kept under a name that is
a hash of everything it is made of. Whoever changes a source gets a new one, and two runs at
the same time wait for each other instead of building twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES: Final = Path(__file__).parent / "devicemanager"
PROGRAM: Final = "devicemanager"
# Neither the folder of the checkout nor its commit is part of what is built.
FLAGS: Final = ("-trimpath", "-buildvcs=false")


class BuildError(Exception):
    """The program cannot be had; the message is one line that says why."""


def sources() -> list[Path]:
    """All that the program is made of, in a fixed order."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in {".go", ".mod", ".sum"})


def fingerprint() -> str:
    """Return what the program is kept under: go.mod names the Kubernetes release, so it is in here."""
    digest = hashlib.sha256(" ".join((platform.machine(), *FLAGS)).encode())
    for path in sources():
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def cache() -> Path:
    """Where built programs are kept."""
    named = os.environ.get("GPUPLUG_CACHE")
    if named:
        return Path(named) / PROGRAM
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplug" / PROGRAM


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the cache for one builder; the kernel lets go of it however that builder ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_into(program: Path) -> None:
    """Run the Go compiler as it is on this machine: no other toolchain is fetched for it."""
    go = shutil.which("go")
    if go is None:
        raise BuildError("Go is missing: the device manager is built from source and needs `go` on the PATH")
    run = subprocess.run(
        [go, "build", *FLAGS, "-o", str(program), "."],
        cwd=SOURCES,
        env={**os.environ, "GOTOOLCHAIN": "local"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        # The compiler's last words name the file or the module that is at fault.
        words = " | ".join(line.strip() for line in run.stdout.splitlines()[-5:])
        raise BuildError(f"Go cannot build the device manager: {words}")


def device_manager(tell: Callable[[str], object]) -> Path:
    """Give the program's path, after building it where no earlier run has; `tell` hears of a build."""
    folder = cache()
    home = folder / fingerprint()
    program = home / PROGRAM
    if program.exists():
        return program
    with locked(folder):
        if not program.exists():  # it may have been built while we waited
            tell(f"building the kubelet's device manager into {home}: minutes on the first run, none later")
            with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                compile_into(made / PROGRAM)
                made.rename(home)
    return program


def main() -> None:
    """Build ahead of the tests, for a machine image or a CI cache."""
    try:
        path = device_manager(lambda line: sys.stderr.write(f"{line}\n"))
    except BuildError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
