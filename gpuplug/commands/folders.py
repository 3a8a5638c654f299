"""Whether the folders that an operator named can be used."""

from __future__ import annotations

import stat
from pathlib import Path

from gpuplug.errors import SettingError


def check_folder(option: str, path: str, *, may_come_later: bool = False) -> None:
    """See that a path is a folder.

    :param option: the option or variable that named it.
    :raises SettingError: naming the option or variable, and the folder.
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        if not may_come_later:
            raise SettingError(f"{option}: {path!r} is not there") from None
    except OSError as error:
        raise SettingError(f"{option}: {path!r} cannot be used: {error.strerror}") from error
    else:
        if not stat.S_ISDIR(mode):
            raise SettingError(f"{option}: {path!r} is not a folder")
