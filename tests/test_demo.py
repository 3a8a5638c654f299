from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from gpuplug.commands import demo
from gpuplug.plugins import loader

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-m", "gpuplug", "demo")


@pytest.fixture(scope="module")
def shown() -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_ends_by_itself_and_says_nothing_on_standard_error(
    shown: subprocess.CompletedProcess[str],
) -> None:
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        r"  0000:03:00\.0  i915  8086:56a0  NUMA node 0  card0, renderD128",
        r" +\d+ ms after the start the kubelet has gpu\.intel\.com/i915: 0000:03:00\.0",
        r" +\d+ ms after the start the kubelet has gpu\.intel\.com/xe: 0000:04:00\.0",
        r"  node /dev/dri/card0       rw  \(made from /.+/dev/dri/card0\)",
        r"  node /dev/dri/renderD128  rw  \(made from /.+/dev/dri/renderD128\)",
        r"  env  GPUPLUG_GPUS=0000:03:00\.0",
        r" +\d+ ms later the kubelet has gpu\.intel\.com/i915: 0000:03:00\.0, 0000:05:00\.0",
        r" +\d+ ms later the kubelet has gpu\.intel\.com/i915: 0000:03:00\.0",
        r" +\d+ ms later the kubelet has gpu\.intel\.com/xe: no device",
        r" +\d+ ms later the kubelet has gpu\.intel\.com/i915: 0000:03:00\.0, 0000:04:00\.0",
        r" +\d+ ms after its socket .* gpu\.intel\.com/i915: 0000:03:00\.0, 0000:04:00\.0",
        r" +\d+ ms after its socket was there the kubelet has gpu\.intel\.com/xe: no device",
    ],
)
def test_the_demo_shows(shown: subprocess.CompletedProcess[str], line: str) -> None:
    assert re.search(rf"^{line}$", shown.stdout, re.MULTILINE), shown.stdout


def test_a_demo_that_is_kept_stays_until_it_is_interrupted() -> None:
    with subprocess.Popen(
        [*COMMAND, "--keep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as kept:
        assert kept.stdout is not None
        assert any("It stays until you press Ctrl-C" in line for line in kept.stdout)
        folder = next(line for line in kept.stdout if "rm " in line).split()[-1]
        assert os.path.lexists(folder)
        kept.send_signal(signal.SIGINT)
        assert kept.wait(timeout=30) == 0
        assert not os.path.lexists(folder)


def test_without_a_driver_the_demo_says_what_to_install() -> None:
    assert demo.missing_drivers(loader.Loaded()) == "no driver i915 and no driver xe: install gpuplug-intel"
    assert demo.missing_drivers(loader.load()) == ""


async def test_a_step_that_does_not_happen_fails_the_demo_in_words(short_path: Path) -> None:
    with anyio.fail_after(30):
        failure = await demo.show(loader.Loaded(), short_path, keep=False, within=0.2)
    assert failure.startswith("not within 0.2 s: gpu.intel.com/i915")
