"""Starts the real `gpuplug serve` in this machine, on what it would see in its container or without one.

The container is made of what counts here: a mount namespace whose mounts follow the host's and not the other
way round (HostToContainer), the host's /dev and the root read-only, no capability at all.

Nothing but the standard library is imported here: `run` does so before all else.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESYNC: Final = 86_400
"""Seconds between two looks without a reason: no test is saved by one."""
SHARE: Final = Path(os.environ.get("GPUPLUG_VM_SHARE", "/nonexistent"))

HOST: Final = ()
"""No mount of its own: gpuplug as a process of the host."""
DAEMON_SET: Final = (
    "mount --bind /dev /dev",
    "mount -o remount,bind,ro /dev",
    "mount -o remount,ro,bind /",
)
"""The mounts of our DaemonSet's container."""
DRI_ONLY: Final = (
    "mkdir -p /run/dri",
    "mount --bind /dev/dri /run/dri",
    "mount -t tmpfs tmpfs /dev",
    "mkdir /dev/dri",
    "mount --move /run/dri /dev/dri",
    "touch /dev/null",
)
"""What suggests itself, and is wrong: a mount of /dev/dri alone."""
VIEWS: Final = {"DaemonSet": DAEMON_SET, "host": HOST}
"""What gpuplugs see the machine through that are at work all the time."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A gpuplug that was started; its kubelet may come later."""

    process: subprocess.Popen[bytes]
    log: Path
    kubelet_dir: Path


EARLY: Final[dict[str, Launched]] = {}
"""Those that were started before the tests were even loaded, by the name of their view."""


def launch(view: str, mounts: tuple[str, ...]) -> Launched:
    """Start gpuplug with these mounts."""
    name = view.replace(" ", "-")
    log, kubelet_dir = SHARE / f"gpuplug-{name}.log", Path("/run", name)
    kubelet_dir.mkdir(exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(kubelet_dir, mounts), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=_clean()
        )
    return Launched(process, log, kubelet_dir)


def _command(kubelet_dir: Path, mounts: tuple[str, ...]) -> list[str]:
    options = {
        "kubelet-dir": kubelet_dir,
        "resync": RESYNC,
        "log-level": "debug",
        "drm-kernel-drivers": "virtio_gpu",
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    line = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    line += [sys.executable, "-m", "gpuplug", "serve", *words]
    script = "\n".join(["set -e", *mounts, f"exec {shlex.join(line)}"])
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script]


def _clean() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUPLUG_")}
