"""Boots a virtual machine on the host's own files, and ends it at its deadline whatever it does.

The host's root is shared with it read-only, and it writes to memory; so the virtual environment, the checkout
and every program that the host has are there, and nothing that the machine does is left behind. One folder,
`share`, is shared for writing: what to run comes from there, and what came of it goes there.
"""

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .kernels import Bootable
from .needs import path_of

REPOSITORY = Path(__file__).resolve().parents[3]
SHARE = "@share@"
"""Stands for the shared folder in a command."""
PORTS = 16
"""Slots that a GPU can be plugged into."""
_INIT = Path(__file__).parents[1] / "guest/init.sh"
_TAIL = 60
_PANIC = "Kernel panic"


@dataclass(frozen=True, slots=True)
class Plan:
    """A machine that is to be booted, and what it is to do."""

    bootable: Bootable
    command: Sequence[str]
    seconds: float
    """Its deadline, from its start."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What the shared folder starts with."""
    memory: str = "2G"
    pciehp: bool = False
    """Whether its slots are in the hands of the kernel's own PCIe hotplug, and not of ACPI's."""
    cpusets: bool = False
    """Whether its kernel has cgroup cpusets."""
    interactive: bool = False
    """Whether its console is the terminal, rather than a file."""


class Machine:
    """A machine that is running, or was."""

    def __init__(self, plan: Plan, share: Path, process: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.share = share
        self._process = process
        self._begun = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._begun

    def over(self) -> str:
        """Say why it runs no more; empty while it runs. One that is past its deadline is ended."""
        if self._process.poll() is not None:
            code = self.share / "code"
            if code.exists():
                return f"it ended with exit code {code.read_text().strip()}"
            if _PANIC in tail(self.share / "console"):
                return "its kernel panicked"
            return f"it ended without a word (QEMU's exit code: {self._process.returncode})"
        if self.age > self.plan.seconds:
            self.end()
            return f"it was ended, as it was not done within {self.plan.seconds:g} s"
        return ""

    def wait(self) -> str:
        """Wait for its end, or for its deadline; say what it was."""
        while not (why := self.over()):
            try:
                self._process.wait(min(1.0, max(0.1, self.plan.seconds - self.age)))
            except subprocess.TimeoutExpired:
                continue
        return why

    def end(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def story(self) -> str:
        """Tell all that a person needs to see what went wrong: the console, and every log."""
        logs = [self.share / "console", *sorted(self.share.glob("*.log"))]
        parts = [
            f"--- the last of {log.name}, kernel {self.plan.bootable.release}\n{tail(log)}" for log in logs
        ]
        return "\n".join(parts)


def tail(log: Path, lines: int = _TAIL) -> str:
    """Return the end of a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


@contextmanager
def booted(plan: Plan) -> Iterator[Machine]:
    """Boot a machine, and end it."""
    folder = Path(tempfile.mkdtemp(prefix="gpuplug-vm-"))
    try:
        share = folder / "share"
        share.mkdir()
        shutil.copy(_INIT, share / "init")
        for name, text in plan.files.items():
            (share / name).write_text(text)
        (share / "command").write_text(_script(plan, share))
        with (share / "qemu.log").open("wb") as log:
            process = subprocess.Popen(
                command_line(plan, folder),
                stdin=None if plan.interactive else subprocess.DEVNULL,
                stdout=None if plan.interactive else log,
                stderr=None if plan.interactive else log,
            )
        machine = Machine(plan, share, process)
        try:
            yield machine
        finally:
            machine.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _script(plan: Plan, share: Path) -> str:
    own = {
        "GPUPLUG_VM_SHARE": str(share),
        "GPUPLUG_VM_MODULES": str(plan.bootable.modules),
        "GPUPLUG_VM_STUB": str(plan.bootable.stub),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    exports = [
        f"export {name}={shlex.quote(value)}" for name, value in (own | dict(plan.environment)).items()
    ]
    command = shlex.join(plan.command).replace(SHARE, str(share))
    return "\n".join([*exports, f"cd {shlex.quote(str(REPOSITORY))}", f"set -- {command}", ""])


def command_line(plan: Plan, folder: Path) -> list[str]:
    """Return QEMU's command line.

    A KVM that is there may still fail on these kernels, so it is never used. QMP goes to a port inside the
    machine: who runs there plugs its own devices. util-linux' setpriv lets the machine die with the tests.
    """
    share = folder / "share"
    kernel_words = [
        "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off random.trust_cpu=on",
        # Else the kernel distrusts this clock, and each look at the time asks a slow device.
        "tsc=reliable clocksource=tsc",
        f"gpuplug.share={share}",
    ]
    if not plan.cpusets:
        # The first cpuset, which a container's runtime makes, has the kernel rewrite its page allocator while
        # it runs. An emulated CPU may then stop at the breakpoint that another has taken away: a panic.
        kernel_words.append("cgroup_disable=cpuset")
    options: list[tuple[str, str]] = [
        ("accel", "tcg,thread=multi"),
        ("cpu", "max,la57=off"),
        ("machine", "q35,hpet=off"),
        ("smp", "2"),
        ("m", plan.memory),
        ("display", "none"),
        ("serial", "mon:stdio" if plan.interactive else f"file:{share}/console"),
        ("fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        ("device", "virtio-9p-pci,fsdev=host,mount_tag=host,addr=2"),
        ("fsdev", f"local,id=share,path={share},security_model=none,multidevs=remap"),
        ("device", "virtio-9p-pci,fsdev=share,mount_tag=share,addr=3"),
        ("chardev", f"socket,id=qmp,path={folder}/qmp,server=on,wait=off"),
        ("mon", "chardev=qmp,mode=control"),
        ("device", "virtio-serial-pci,addr=4"),
        ("chardev", f"socket,id=loop,path={folder}/qmp"),
        ("device", "virtserialport,chardev=loop,name=qmp"),
        ("device", "virtio-gpu-pci,addr=5,id=virtio-gpu"),
        *([("global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off")] if plan.pciehp else []),
        *[("device", _port(number)) for number in range(PORTS)],
        ("kernel", str(plan.bootable.image)),
        ("initrd", str(plan.bootable.initramfs)),
        ("append", " ".join(kernel_words)),
    ]
    words = [word for name, value in options for word in (f"-{name}", value)]
    dies_with_us = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10"]
    return [*dies_with_us, path_of("qemu-system-x86_64"), "-nodefaults", "-no-reboot", *words]


def _port(number: int) -> str:
    """Describe one slot. Without a limit each would take 4 KiB of I/O ports, and there are 64."""
    room = "io-reserve=0,mem-reserve=4M,pref64-reserve=32M"
    return (
        f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1},addr={8 + number:#x},{room}"
    )
