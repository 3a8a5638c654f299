"""The process around one node: makes its namespaces and cgroups, and removes them whatever happens.

    python -m tests.node.harness.keeper SCRATCH NAME

The keeper forks the node's process 1, which joins cgroups of its own and mounts all that a kubelet writes to
in a private mount namespace. When the keeper's standard input ends (a test is over, failed, was interrupted,
or was killed without a word) process 1 leaves. The kernel then kills every process of the node and drops its
mounts and its network, and the keeper removes the empty cgroups and the scratch folder. So nothing of this
clean-up depends on the tests being alive.

Process 1 also lays files over the kernel settings that a kubelet insists on changing, so that it changes
those and not the machine's.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from . import namespaces
from .cgroups import CONTROLLERS, ROOT, Cgroups, cgroups

PRIVATE = "private"
"""The folder of the scratch folder whose content only the node sees, in memory."""
_KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_HANDED_ON = "cgroup.subtree_control"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_REMOVAL_SECONDS = 10


def main(scratch: Path, name: str) -> int:
    """Keep one node until standard input ends; the first line printed is its process 1's id."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input is the one way to end a node
    machine = cgroups()
    own = [home / name for home in machine.homes]
    lent: list[str] = []
    try:
        if machine.unified:
            lent = _hand_on_controllers(ROOT)
        for cgroup in own:
            cgroup.mkdir()
            if not machine.unified:
                _give_cpus(cgroup)
        namespaces.unshare(namespaces.PID)
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ready)
            _process_one(scratch, name, machine, tell)
        os.close(tell)
        if os.read(ready, 1):
            sys.stdout.write(f"{child}\n")
            sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        for cgroup in own:
            _remove_cgroup(cgroup)
        with suppress(OSError):  # somebody else may count on them by now
            for controller in lent:
                (ROOT / _HANDED_ON).write_text(f"-{controller}")
        shutil.rmtree(scratch, ignore_errors=True)


def _give_cpus(cgroup: Path) -> None:
    """Make a cgroup one that processes may join: a cpuset of version 1 starts without any CPU."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (cgroup / setting).exists():
            (cgroup / setting).write_text((cgroup.parent / setting).read_text())


def _hand_on_controllers(folder: Path) -> list[str]:
    """Let folders inside this one use every controller that a kubelet wants; return those newly handed on."""
    already = (folder / _HANDED_ON).read_text().split()
    new = [controller for controller in CONTROLLERS if controller not in already]
    for controller in new:
        (folder / _HANDED_ON).write_text(f"+{controller}")
    return new


def _remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup and those inside; the kernel may need a moment after the last process is gone."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    for folder, _, _ in os.walk(cgroup, topdown=False):
        while True:
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    sys.stderr.write(f"cannot remove {folder}: {error}\n")
                    break
                time.sleep(0.01)
            else:
                break


def _process_one(scratch: Path, name: str, machine: Cgroups, tell: int) -> None:
    """Set the node up, say so, and stay until standard input ends. Never returns."""
    code = 1
    try:
        for home in machine.homes:
            (home / name / "cgroup.procs").write_text("0")
        ours = namespaces.MOUNT | namespaces.NETWORK | namespaces.CGROUP | namespaces.IPC | namespaces.UTS
        namespaces.unshare(ours)
        socket.sethostname(name)
        _mount_all(scratch, machine)
        _loopback_up()
        signal.signal(signal.SIGCHLD, _reap)
        os.write(tell, b"+")
        while os.read(0, 4096):
            pass
        code = 0
    except Exception as error:  # noqa: BLE001 - this is a process' outermost frame
        sys.stderr.write(f"cannot set up the node: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def _reap(_number: int, _frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _mount_all(scratch: Path, machine: Cgroups) -> None:
    _mount("--make-rprivate", "/")
    private = scratch / PRIVATE
    private.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(private))
    for folder in ("upper", "work"):
        (private / "var-lib" / folder).mkdir(parents=True)
    layers = f"lowerdir=/var/lib,upperdir={private}/var-lib/upper,workdir={private}/var-lib/work"
    _mount("-t", "overlay", "-o", layers, "overlay", "/var/lib")
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    for folder in ("/var/lib/kubelet", "/var/log", "/run"):
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    _mount("-t", "proc", "proc", "/proc")
    settings = private / "settings"
    settings.mkdir()
    _mount("-t", "tmpfs", "tmpfs", str(settings))  # apart, as the kubelet looks up a disk by its last mount
    for setting in _KERNEL_SETTINGS:
        real, stand_in = Path("/proc/sys", setting), settings / setting
        if real.exists():
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.write_text(real.read_text())
            _mount("--bind", str(stand_in), str(real))
    _mount_cgroups(machine)
    _mount("--make-rshared", "/")  # a container may ask for mounts that follow the host's, as on a real node


def _mount_cgroups(machine: Cgroups) -> None:
    """Mount the cgroups afresh: inside the cgroup namespace their root is this node's own folder."""
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(ROOT))
    if machine.unified:  # the kernel refuses it right on top of itself, hence the folder in between
        _mount("-t", "cgroup2", "cgroup2", str(ROOT))
        (ROOT / "init").mkdir()
        (ROOT / "init/cgroup.procs").write_text("0")
        _hand_on_controllers(ROOT)
        return
    for hierarchy in machine.hierarchies:
        (ROOT / hierarchy).mkdir()
        options = "none,name=systemd" if hierarchy == "systemd" else hierarchy
        _mount("-t", "cgroup", "-o", options, "cgroup", str(ROOT / hierarchy))


def _mount(*arguments: str) -> None:
    ran = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise OSError(f"mount {' '.join(arguments)}: {ran.stderr.strip()}")


def _loopback_up() -> None:
    """Bring up the one interface that the node has: the kubelet answers on it, and nothing else is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
