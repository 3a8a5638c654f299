"""A folder where what is slow to get is kept: kernels, the module built for each, what they boot from.

An entry is named after what went into it, is made under a lock in a folder of its own and then renamed.
So two runs at once make it once, and a run that is interrupted leaves no half-made entry behind.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_home() -> Path:
    """Return the cache folder: in GPUPLUG_CACHE, else in the user's cache directory."""
    if named := os.environ.get("GPUPLUG_CACHE"):
        return Path(named).resolve() / "vm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplug" / "vm"


def cached(name: str, inputs: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` filled for these inputs, making it first if nobody has yet."""
    home = cache_home()
    home.mkdir(parents=True, exist_ok=True)
    entry = home / f"{name}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
    with _locked(entry.with_name(entry.name + ".lock")):
        if not entry.exists():
            for abandoned in home.glob(f".{entry.name}.*"):  # a run that was killed while it made it
                shutil.rmtree(abandoned)
            work = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=home))
            try:
                make(work)
                work.chmod(0o755)
                work.rename(entry)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    return entry


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
