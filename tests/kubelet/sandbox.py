"""A piece of the machine where /var/lib/kubelet is nobody else's.

The path of the kubelet's socket is compiled into the kubelet. A mount namespace with a fresh
file system there makes any number of runs possible, on a machine that is a node, too. It is
also the place to show what gpuplug can do without: in here the root file system is read-only,
and gpuplug runs with no capability, as its container does.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.kubelet.process import started, tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KUBELET_DIR: Final = "/var/lib/kubelet/device-plugins"
TOOLS: Final = ("unshare", "nsenter", "setpriv", "mount", "strace")

# `cat` lasts until its input ends, which is no later than the end of the tests.
HOLD: Final = """
mkdir -p /var/lib/kubelet
mount -t tmpfs -o mode=0755 gpuplug-tests /var/lib/kubelet
mkdir -m 0750 /var/lib/kubelet/device-plugins
mount -o remount,bind,ro /
echo ready
exec cat
"""


def missing() -> str | None:
    """Say in one line what this machine lacks to run the suite; None: nothing."""
    if os.geteuid() != 0:
        return "root is missing: the device manager runs in a mount namespace of its own"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing: the suite needs util-linux and strace on the PATH"
    # Root in a container often has too few capabilities for what follows.
    trial = subprocess.run(
        ["unshare", "--mount", "true"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if trial.returncode != 0:
        return f"CAP_SYS_ADMIN is missing, no mount namespace can be made: {trial.stderr.strip()}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.mknod(Path(folder, "node"), stat.S_IFCHR | 0o600, os.makedev(226, 128))
        except PermissionError as error:
            return f"CAP_MKNOD is missing, no device node can be made: {error.strerror}"
    return None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A mount namespace that lives as long as `pid`."""

    pid: int

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's directory inside the sandbox, as seen from outside."""
        return Path(f"/proc/{self.pid}/root{KUBELET_DIR}")

    def sockets(self) -> set[str]:
        """Return the names of the plugins' sockets; the kubelet's own is left out."""
        return {path.name for path in self.kubelet_dir.iterdir() if path.is_socket()} - {"kubelet.sock"}

    def inside(self, *command: str) -> tuple[str, ...]:
        """Return the command line that runs another one in here."""
        return ("nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", *command)

    def unprivileged(self, *command: str) -> tuple[str, ...]:
        """Return the same, with no capability left, and bound to die with the tests."""
        drop = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL")
        return self.inside("setpriv", *drop, "--", *command)


@asynccontextmanager
async def sandbox(logs: Path) -> AsyncIterator[Sandbox]:
    """Make a sandbox. It is gone when the last process in it is."""
    log = logs / "sandbox.log"
    command = ("unshare", "--mount", "--propagation=private", "--", "sh", "-ec", HOLD)
    async with started("the sandbox", command, log, talk=True) as holder:
        assert holder.running.stdout is not None
        try:
            answer = await BufferedByteReceiveStream(holder.running.stdout).receive_until(b"\n", 100)
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise AssertionError(f"no mount namespace can be made here: {tail(log)}") from None
        assert answer == b"ready", answer
        yield Sandbox(holder.pid)
