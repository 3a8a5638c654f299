"""``gpuplug verify --write-zipapp FILE``: the command as one file, for images that have only Python."""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from gpuplug.errors import SettingError

_OPTION: Final = "--write-zipapp"
_FIRST_LINE: Final = b"#!/usr/bin/env python3\n"
_EXECUTABLE: Final = 0o755


def write(target: str, *, nodes: bool) -> int:
    """Write the file, or nothing at all, and return 0; ``-`` stands for standard output.

    :param nodes: whether nodes were named besides.
    :raises SettingError: if it cannot be written.
    """
    if nodes:
        raise SettingError(f"{_OPTION} opens no node: leave NODE out")
    if target == "-":
        sys.stdout.buffer.write(archive())
        sys.stdout.buffer.flush()
        return 0
    try:
        _replace(Path(target), archive())
    except OSError as error:
        raise SettingError(f"{_OPTION}: {target!r} cannot be written: {error.strerror}") from error
    return 0


def archive() -> bytes:
    """Make it: an archive that Python runs, the same bytes each time (``zipapp`` would put the date in)."""
    source = Path(__file__).with_name("verify.py").read_bytes()
    packed = io.BytesIO()
    packed.write(_FIRST_LINE)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as out:
        entry = zipfile.ZipInfo("__main__.py")
        entry.compress_type = zipfile.ZIP_DEFLATED
        out.writestr(entry, source)
    return packed.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Put a file in the place of what is there, once it is whole."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(number, "wb") as out:  # noqa: PTH123 - a descriptor
            out.write(content)
        Path(name).chmod(_EXECUTABLE)
        Path(name).rename(path)
    except OSError:
        Path(name).unlink()
        raise
