"""``gpuplug verify``: in a container, open the GPU nodes that it was given, and say what that tells.

This command alone opens GPU nodes, and it closes them at once. It needs nothing but Python's
standard library, so this file can be copied into any image that has Python, and run by itself:

    python3 verify.py [NODE ...]

Without a NODE it takes all in /dev/dri, and those that GPUPLUG_RENDER_NODES names.

Exit codes: 0 all nodes open; else that of the first outcome below that was met: 10 EPERM, 11 EACCES,
12 ENXIO or ENODEV, 13 ENOENT, 14 anything else, 15 there was no node at all; 2 a bad option.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DRI: Final = "/dev/dri"


class Outcome(IntEnum):
    """What an attempt to open a node came to; the number is the exit code."""

    OPENED = 0
    CGROUP = 10
    RIGHTS = 11
    NO_DEVICE = 12
    NO_NODE = 13
    OTHER = 14
    NOTHING = 15


_OUTCOMES: Final = {
    errno.EPERM: Outcome.CGROUP,
    errno.EACCES: Outcome.RIGHTS,
    errno.ENXIO: Outcome.NO_DEVICE,
    errno.ENODEV: Outcome.NO_DEVICE,
    errno.ENOENT: Outcome.NO_NODE,
}


@dataclass(frozen=True)
class Identity:
    """Who tries: effective user and groups of this process."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def own(cls) -> Identity:
        """Return that of this process."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))


@dataclass(frozen=True)
class Node:
    """What ``stat`` says of a node; it is not opened for this."""

    path: str
    mode: int
    uid: int
    gid: int
    major: int
    minor: int

    @property
    def is_character_device(self) -> bool:
        """Whether it is what a GPU node must be."""
        return stat.S_ISCHR(self.mode)


@dataclass(frozen=True)
class Result:
    """One node, and what came of it."""

    path: str
    outcome: Outcome
    words: str
    advice: str = ""


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Verify the nodes named, or all that are there; print what was seen; return the exit code."""
    target, named = given.get("write_zipapp"), given.get("nodes")
    if isinstance(target, str):
        from gpuplug.commands.zipapp import write  # noqa: PLC0415 - not there where this file is alone

        return write(target, nodes=bool(named))
    paths = [str(path) for path in named] if isinstance(named, list) and named else found(environ)
    who = Identity.own()
    results = [verify(path, who) for path in paths]
    print("\n".join(lines(results, who, environ)))  # noqa: T201 - the command's answer
    return exit_code(results)


def found(environ: Mapping[str, str], folder: str = DRI) -> list[str]:
    """List the nodes in /dev/dri and those that gpuplug's variable names, each once."""
    try:
        names = sorted(p.name for p in Path(folder).iterdir() if p.name.startswith(("card", "renderD")))
    except OSError:
        names = []
    promised = [path for path in environ.get("GPUPLUG_RENDER_NODES", "").split(",") if path]
    return list(dict.fromkeys([*(f"{folder}/{name}" for name in names), *promised]))


def verify(path: str, who: Identity, sysfs: str = "/sys") -> Result:
    """Open a node for reading and writing, close it, and say what that tells.

    :param sysfs: where the kernel says which GPU is behind a node.
    """
    try:
        seen = os.stat(path)  # noqa: PTH116 - system calls, and what they answer, are the subject here
        node = Node(
            path, seen.st_mode, seen.st_uid, seen.st_gid, os.major(seen.st_rdev), os.minor(seen.st_rdev)
        )
        if not node.is_character_device:
            return Result(path, Outcome.OTHER, "is not a character device", "name a node such as renderD128")
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return _failed(path, error, who)
    return Result(path, Outcome.OPENED, f"opens{_gpu(node, sysfs)}")


def _failed(path: str, error: OSError, who: Identity) -> Result:
    name = errno.errorcode.get(error.errno or 0, "error")
    words = f"{name}: {error.strerror}"
    outcome = _OUTCOMES.get(error.errno or 0, Outcome.OTHER)
    advice = {
        Outcome.CGROUP: "the device cgroup refuses it: ask for the GPU in the container's resources.limits;"
        " a hostPath mount shows the node and does not allow it",
        Outcome.RIGHTS: _rights(path, who),
        Outcome.NO_DEVICE: "the node is there and no device behind it: the GPU was unplugged, or has another"
        " kernel driver now; restart the pod",
        Outcome.NO_NODE: "there is no such node in this container: it was not given this GPU",
    }.get(outcome, "")
    return Result(path, outcome, words, advice)


def _rights(path: str, who: Identity) -> str:
    """Say which group would be let in."""
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return "a folder on the way to the node is closed to this user"
    mode, owner = stat.filemode(seen.st_mode), f"{_user(seen.st_uid)}:{_group(seen.st_gid)}"
    if seen.st_gid in who.groups or not seen.st_mode & (stat.S_IRGRP | stat.S_IWGRP):
        return f"the node is {mode} {owner}: its mode lets only the owner in; look at the node's udev rules"
    return (
        f"the node is {mode} {owner}, and uid {who.uid} is not in that group:"
        f" add supplementalGroups: [{seen.st_gid}] to the pod's securityContext"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} ({gid})"
    except KeyError:
        return str(gid)


def _gpu(node: Node, sysfs: str) -> str:
    """Name the GPU behind a node by what sysfs says of its number; empty where it says nothing."""
    try:
        device = Path(f"{sysfs}/dev/char/{node.major}:{node.minor}/device").resolve(strict=True)
        driver = (device / "driver").resolve(strict=True)
    except OSError:
        return ""
    ids = ""
    with suppress(OSError, ValueError):  # platform devices have none
        vendor, model = (int((device / name).read_text(), 16) for name in ("vendor", "device"))
        ids = f" ({vendor:04x}:{model:04x})"
    return f": {device.name}{ids}, kernel driver {driver.name}"


def lines(results: Sequence[Result], who: Identity, environ: Mapping[str, str]) -> Iterable[str]:
    """Say everything: who tried, what was given, and one line per node."""
    groups = ", ".join(str(gid) for gid in sorted(who.groups))
    yield f"uid {who.uid}, groups {groups}"
    for key in sorted(key for key in environ if key.startswith("GPUPLUG_")):
        yield f"{key}={environ[key]}"
    if not results:
        yield f"no node in {DRI}: this container was given no GPU. Ask for one in its resources.limits"
    for result in results:
        yield f"{result.path}: {result.words}"
        if result.advice:
            yield f"  {result.advice}"


def exit_code(results: Sequence[Result]) -> int:
    """Return the code of the first outcome, in the order of their numbers, that is not a success."""
    if not results:
        return Outcome.NOTHING
    return min((result.outcome for result in results if result.outcome), default=Outcome.OPENED)


def main(arguments: Sequence[str]) -> int:
    """Run as a file of its own."""
    if {"-h", "--help"}.intersection(arguments):
        print(__doc__.strip())  # noqa: T201 - see above
        return 0
    options = [word for word in arguments if word.startswith("-")]
    if options:
        print(f"verify: unknown option: {options[0]!r}", file=sys.stderr)  # noqa: T201
        return 2
    return run({"nodes": list(arguments)}, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
