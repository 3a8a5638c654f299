"""What a driver package may be and may answer: each check names the driver and what is wrong."""

from __future__ import annotations

import inspect
from pathlib import PurePosixPath
from typing import Any, Final, TypeGuard, TypeVar

from gpuplug.errors import DriverError
from gpuplug.plugins import hookspecs
from gpuplug.plugins.words import FAILURES, sentence, shown

T = TypeVar("T")

VERSION_NAME: Final = "GPUPLUG_HOOKS"
"""The constant of a driver module that says for which version of the hooks it was written."""
MAX_WILDCARDS: Final = 3
"""Parts of a glob that may have wildcards: each of them multiplies what has to be looked at."""
_EVERYTHING: Final = ("/", "/dev", "/dev/dri")
"""Folders that no container may get as a whole: runtimes take every device that is below a DeviceSpec."""
_WILDCARDS: Final = frozenset("*?[")


def check_version(
    name: str, version: object, oldest: int = hookspecs.OLDEST, newest: int = hookspecs.VERSION
) -> None:
    """See that the driver was written for hooks as they are here.

    :raises DriverError: if it needs newer hooks, or is for older ones that are no more.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DriverError(f"driver {name}: its {VERSION_NAME} is {shown(version)}, not a number from 1 on")
    if version > newest:
        raise DriverError(
            f"driver {name} is too new: it needs version {version} of the hooks, and this gpuplug has version"
            f" {newest}; update gpuplug, or install an older version of the driver"
        )
    if version < oldest:
        raise DriverError(
            f"driver {name} is too old: it is for version {version} of the hooks, and this gpuplug has none"
            f" before {oldest}; update the driver"
        )


def check_marks(name: str, module: object) -> None:
    """See that no function is meant as a hook and is none: it would never be called, and nobody would know.

    :raises DriverError: naming the function.
    """
    for attribute in dir(module):
        if attribute.startswith(f"{hookspecs.PROJECT}_"):
            function = getattr(module, attribute)
            if inspect.isroutine(function) and not hasattr(function, f"{hookspecs.PROJECT}_impl"):
                raise DriverError(
                    f"driver {name}: {attribute} has no @hookimpl, and would never be called;"
                    " a function that is no hook needs another name"
                )


def called(module: object) -> str:
    """Name the module, or whatever an entry point led to."""
    return str(getattr(module, "__name__", type(module).__name__))


def is_bool(value: object) -> bool:
    """Tell whether it is what its annotation says: no driver is type-checked here."""
    return isinstance(value, bool)


def is_text(value: object) -> TypeGuard[str]:
    """Tell whether the kubelet and the system take it as text: UTF-8 without a NUL."""
    return isinstance(value, str) and "\0" not in value and value.encode(errors="ignore").decode() == value


def check_path(name: str, path: object) -> None:
    """See that what a container is to get is a path, and no folder that holds every GPU.

    :raises DriverError: naming the path.
    """
    if not is_text(path) or not path.startswith("/"):
        raise DriverError(f"driver {name}: {shown(path)} is not an absolute path")
    if ".." in path.split("/"):
        raise DriverError(f"driver {name}: {shown(path)} has a part '..'")
    if str(PurePosixPath(f"/{path.lstrip('/')}")) in _EVERYTHING:
        raise DriverError(f"driver {name}: {shown(path)} holds what is not of this GPU")


def each(name: str, answer: Any, kind: type[T]) -> tuple[T, ...]:  # noqa: ANN401 - a driver's answer
    """Take the items of a driver's answer.

    :raises DriverError: if it is no sequence, or has an item of another kind.
    """
    if isinstance(answer, str):  # a text is iterable, and never meant to be
        raise DriverError(f"driver {name}: {shown(answer)} is not a sequence of {kind.__name__}")
    try:
        items = tuple(answer)
    except FAILURES as error:
        raise DriverError(f"driver {name}: an answer raised {sentence(error)}") from error
    for item in items:
        if not isinstance(item, kind):
            raise DriverError(f"driver {name}: {shown(item)} is not a {kind.__name__}")
    return items


def attribute(name: str, path: str) -> str:
    """Check a sysfs attribute's path or glob: below the bus device, or below /sys."""
    below = path.removeprefix("/sys/")
    if not below or below.startswith("/") or not is_text(path) or ".." in path.split("/") or "**" in path:
        raise DriverError(
            f"driver {name}: {shown(path)} is not a path or glob below the GPU's bus device, or below /sys"
        )
    if sum(bool(_WILDCARDS & set(part)) for part in below.split("/")) > MAX_WILDCARDS:
        raise DriverError(
            f"driver {name}: {shown(path)} has wildcards in more than {MAX_WILDCARDS} of its parts;"
            " sysfs has links in circles, and looking for it would take for ever"
        )
    return path


def companion(name: str, path: str) -> str:
    """Check a companion node's path: below /dev, outside /dev/dri, and no glob."""
    parts = path.split("/")
    normal = parts[:2] == ["", "dev"] and len(parts) > 2 and not {"", ".", ".."} & set(parts[2:])  # noqa: PLR2004
    if not normal or parts[2] == "dri" or not is_text(path) or _WILDCARDS & set(path):
        raise DriverError(f"driver {name}: {shown(path)} is not a node's path in /dev, outside /dev/dri")
    return path
