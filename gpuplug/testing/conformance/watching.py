"""See what code does besides answering: files, processes, connections, and the clock."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_EFFECTS: Final = (
    "open",
    "os.",
    "shutil.",
    "tempfile.",
    "glob.",
    "subprocess.",
    "socket.",
    "ctypes.dlopen",
    "sqlite3.",
    "urllib.",
    "fcntl.",
    "mmap.",
    "pty.",
    "signal.",
    "syslog.",
)
"""Audit events (the table in Python's documentation) of what touches the machine."""
_LOOKS: Final = (
    (os, ("stat", "lstat", "access", "readlink", "statvfs", "getenv", "uname", "getpid", "getcwd")),
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "sleep", "localtime", "gmtime", "strftime")),
    (random, ("random", "randint", "choice", "choices", "shuffle", "sample", "randrange", "getrandbits")),
)
"""What has no audit event, and makes an answer depend on more than the question."""

__tracebackhide__ = True  # a failure shows the check, and not how it was made


@dataclass(slots=True)
class Seen:
    """What a piece of code did."""

    effects: list[str] = field(default_factory=list)
    """Files that it opened, and what else it did to the machine."""
    looks: list[str] = field(default_factory=list)
    """What it asked of the machine without an effect: the clock, a file's state, chance."""


class _Auditor:
    """One audit hook for the life of the process: such a hook cannot be taken away again."""

    def __init__(self) -> None:
        self.installed = False
        self.thread = 0
        self.seen: Seen | None = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what the watched thread does."""
        seen = self.seen
        if seen is None or threading.get_ident() != self.thread or not event.startswith(_EFFECTS):
            return
        if not _importing():
            what = next((repr(a) for a in arguments if isinstance(a, str | bytes | int)), "")
            seen.effects.append(f"{event} {what}".strip())


_auditor: Final = _Auditor()


def _importing() -> bool:
    """Tell whether the import system is at work: a module's file is opened once, whoever needs it."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the documented way to the caller's frames
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def watched() -> Iterator[Seen]:
    """Watch what this thread does in the block."""
    seen = Seen()
    if not _auditor.installed:
        sys.addaudithook(_auditor)
        _auditor.installed = True
    with ExitStack() as stack:
        for module, names in _LOOKS:
            for name in names:
                stack.enter_context(patch.object(module, name, _noting(module, name, seen)))
        stack.enter_context(patch.object(os, "environ", _Environment(os.environ, seen)))
        _auditor.thread, _auditor.seen = threading.get_ident(), seen
        try:
            yield seen
        finally:
            _auditor.seen = None


class _Environment(dict[str, str]):
    """The environment, with a note of who asks for what."""

    def __init__(self, environ: os._Environ[str], seen: Seen) -> None:
        super().__init__(environ)
        self._seen = seen

    def __getitem__(self, key: str) -> str:
        self._seen.looks.append(f"os.environ[{key!r}]")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as of any mapping
        """Give a variable."""
        self._seen.looks.append(f"os.environ.get({key!r})")
        return super().get(key, default)


def _noting(module: Any, name: str, seen: Seen) -> Any:  # noqa: ANN401 - wraps any function
    original = getattr(module, name)

    def noted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if threading.get_ident() == _auditor.thread and not _importing():
            seen.looks.append(f"{module.__name__}.{name}({', '.join(map(repr, arguments))})")
        return original(*arguments, **named)

    return noted
