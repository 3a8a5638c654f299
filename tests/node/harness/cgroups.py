"""Where a node's cgroups go: into the machine's version 1 hierarchies, or into its one of version 2."""

import os
from dataclasses import dataclass
from pathlib import Path

from .needs import MissingRequirementError

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""What a kubelet wants to be able to limit (version 2, where each has to be asked for)."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """How this machine mounts its cgroups, and the folders in which a node makes its own."""

    unified: bool
    """Version 2 alone: device rules are BPF programs, and no file lists them."""
    homes: tuple[Path, ...]

    @property
    def joined(self) -> tuple[str, ...]:
        """The files, inside a node, to which its programs write themselves."""
        if self.unified:
            return (f"{ROOT}/init/cgroup.procs",)
        return tuple(f"{ROOT / hierarchy}/cgroup.procs" for hierarchy in self.hierarchies)

    @property
    def hierarchies(self) -> tuple[str, ...]:
        """The names of the version 1 hierarchies, as folders below /sys/fs/cgroup."""
        return tuple(sorted({home.relative_to(ROOT).parts[0] for home in self.homes if home != ROOT}))

    @property
    def devices(self) -> Path:
        """The hierarchy, inside a node, that decides on devices."""
        return ROOT if self.unified else ROOT / "devices"


def cgroups() -> Cgroups:
    """Look at how this machine mounts its cgroups.

    A node's folder is made beside this process' own in version 1. In version 2 it is made at the root,
    as a folder with processes in it can't hand controllers on to folders inside.

    :raises MissingRequirementError: where a node could not make its own
    """
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {names: path for _, names, path in (line.split(":", 2) for line in lines) if names}
    if own:
        if "devices" not in own:
            raise MissingRequirementError("the device controller among the cgroup hierarchies of version 1")
        homes = tuple(ROOT / names.removeprefix("name=") / path.lstrip("/") for names, path in own.items())
        found = Cgroups(unified=False, homes=homes)
    else:
        found = Cgroups(unified=True, homes=(ROOT,))
        offered = (ROOT / "cgroup.controllers").read_text().split()
        if missing := set(CONTROLLERS) - set(offered):
            raise MissingRequirementError(f"the cgroup controllers {', '.join(sorted(missing))}")
    for home in found.homes:
        if not os.access(home / "cgroup.procs", os.W_OK):
            raise MissingRequirementError(f"a writable cgroup folder, and {home} is not")
    return found
