"""The machine that users try hotplug in, driven as they drive it: through a terminal, letter by letter."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .harness.machine import REPOSITORY

_SECONDS = 240


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, command: list[str]) -> None:
        self._own, theirs = pty.openpty()
        self.program = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.text = ""
        self._seen = 0
        self._deadline = time.monotonic() + _SECONDS

    def see(self, text: str) -> None:
        """Wait until the program has written a text, after what was waited for before."""
        while (at := self.text.find(text, self._seen)) < 0:
            left = self._deadline - time.monotonic()
            assert left > 0, f"no {text!r} in:\n{self.text}"
            if select.select([self._own], [], [], left)[0]:
                try:
                    self.text += os.read(self._own, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended before {text!r}:\n{self.text}") from None
        self._seen = at + len(text)

    def type(self, letter: str) -> None:
        os.write(self._own, f"{letter}\n".encode())

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._own)


def test_a_user_plugs_gpus_with_single_letters_and_sees_the_resources_follow() -> None:
    driver = ["--driver", "examples/01-third-party-driver"]
    terminal = Terminal([sys.executable, "examples/hotplug-vm/try.py", *driver])
    try:
        terminal.see("gpuplug serves")
        terminal.type("i")
        terminal.see("kubelet: gpu.intel.com/i915: 0000:01:00.0")
        terminal.type("b")
        terminal.see("kubelet: gpu.intel.com/xe: 0000:01:00.0")
        terminal.type("m")
        terminal.see("kubelet: amd.com/gpu: 0000:02:00.0")
        terminal.type("f")
        terminal.see("kubelet: gpu.example.com/foo: 0000:03:00.0")
        terminal.type("u")
        terminal.see("kubelet: gpu.example.com/foo: no device")
        terminal.type("q")
        terminal.see("the machine is off: it ended with exit code 0")
        assert terminal.program.wait(20) == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_driver_that_is_no_package_is_named_before_anything_is_booted(tmp_path: Path, folder: str) -> None:
    command = [sys.executable, "examples/hotplug-vm/try.py", "--driver", str(tmp_path / folder)]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert f"--driver: {tmp_path / folder} has no pyproject.toml" in ran.stderr
