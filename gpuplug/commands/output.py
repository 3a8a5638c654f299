"""Standard output for a command alone: what a driver package writes there must not get into it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_STANDARD_ERROR = 2


@contextmanager
def own_output() -> Iterator[TextIO]:
    """Give a stream that only we write to, and send descriptor 1 to standard error meanwhile.

    What is printed in Python is kept away from it elsewhere; this is for libraries and programs that
    a driver calls. Where standard output is no file of the system it is given as it is.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        yield sys.stdout
        return
    sys.stdout.flush()
    ours = os.dup(descriptor)
    os.dup2(_STANDARD_ERROR, descriptor)
    try:
        with os.fdopen(
            ours, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False
        ) as out:
            yield out
    except BrokenPipeError:  # `| head` has seen enough
        ours = _nowhere(ours)
    finally:
        os.dup2(ours, descriptor)
        os.close(ours)


def _nowhere(descriptor: int) -> int:
    os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY)
