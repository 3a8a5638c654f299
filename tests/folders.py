"""Where tests put what they make for a moment."""

from __future__ import annotations

import os
from typing import Final

_SHARED_MEMORY: Final = "/dev/shm"

MEMORY: Final = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
"""A folder in memory, where there is one: files are made many times faster there than on a disk.

The devfs and the sysfs of a real machine are in memory, too.
"""
