"""Give root's rights up for a while: nothing is closed to root."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Run the block as a user without rights; who is none but root stays who they are."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
