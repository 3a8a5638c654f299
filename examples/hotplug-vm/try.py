"""Give a user a virtual machine in which GPUs are plugged in and pulled out with single letters."""

# ruff: noqa: INP001 - a program, not a package

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.vm.harness.kernels import KERNELS, bootable  # noqa: E402 - found by the line above
from tests.vm.harness.machine import Plan, booted  # noqa: E402
from tests.vm.harness.needs import MissingRequirementError, check_machine  # noqa: E402
from tests.vm.harness.remote import KERNEL, bytecode  # noqa: E402

SECONDS = 600.0


def main() -> int:
    """Boot the machine on this terminal and wait for its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=[kernel.name for kernel in KERNELS], default=KERNELS[0].name)
    parser.add_argument("--driver", type=Path, help="the folder of a driver package")
    options = parser.parse_args()
    if options.driver is not None and not (options.driver / "pyproject.toml").exists():
        parser.error(f"--driver: {options.driver} has no pyproject.toml: it takes the folder of a package")
    kernel = next(kernel for kernel in KERNELS if kernel.name == options.kernel)
    try:
        check_machine()
        ready = bootable(kernel, say)
    except MissingRequirementError as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="gpuplug-driver-") as folder:
        environment = {
            "GPUPLUG_VM_INTERACTIVE": "1",
            KERNEL: kernel.name,
            "PYTHONPYCACHEPREFIX": str(bytecode()),
        }
        if options.driver is not None:
            environment["PYTHONPATH"] = str(_installed(options.driver.resolve(), Path(folder)))
        command = [sys.executable, str(Path(__file__).with_name("inside.py"))]
        say(f"booting Linux {ready.release}; it takes a moment")
        with booted(Plan(ready, command, SECONDS, environment, interactive=True)) as machine:
            why = machine.wait()
    say(f"the machine is off: {why}")
    return 0 if why.endswith("exit code 0") else 1


def say(line: str) -> None:
    """Print at once: the machine writes to the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _installed(driver: Path, target: Path) -> Path:
    """Install a driver package where only this run finds it."""
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(driver)]
    subprocess.run(command, check=True)  # noqa: S603 - what the user asked for
    return target


if __name__ == "__main__":
    sys.exit(main())
