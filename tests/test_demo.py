from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from gpuplug import DeviceSpec, Gpu, Mount, Settings, Verdict, hookimpl
from gpuplug.cli import parse
from gpuplug.commands import demo
from gpuplug.commands.demo_gpu import parse_gpu, show_gpu
from gpuplug.errors import SettingError
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


# one GPU, for who writes a driver


def demo_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_driver_package_is_shown_with_its_options_on_a_gpu_of_its_kernel_driver() -> None:
    shown = demo_of("--gpu", "v3d", "--drm-kernel-drivers=v3d")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (
        "Driver drm (gpuplug-drm 0.1.0) claims it as gpuplug.dev/v3d.",
        "The kubelet has gpuplug.dev/v3d: 0000:03:00.0",
        "  node /dev/dri/renderD128  rw  (made from ",
        "  env  GPUPLUG_GPUS=0000:03:00.0",
        "later the kubelet has no device.",
        "later the kubelet has it back.",
    ):
        assert words in shown.stdout, shown.stdout


def test_a_gpu_that_no_driver_claims_fails_the_demo_with_reason_and_advice() -> None:
    shown = demo_of("--gpu", "v3d")
    assert shown.returncode == 1
    assert "not advertised: no driver package claims kernel driver v3d\nwhat to do: install" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", ""], "--gpu: '' is not the name of a kernel driver"),
        (["--gpu", "a/b"], "--gpu: 'a/b' is not the name of a kernel driver"),
        (["--gpu", "foo,bar"], "--gpu: 'bar' is not FILE=TEXT"),
        (["--gpu", "foo,../x=1"], "--gpu: '../x=1' is not FILE=TEXT"),
        (["--gpu", "foo,/etc/x=1"], "--gpu: '/etc/x=1' is not FILE=TEXT"),
        (["--gpu", "foo", "--nosuch"], "unknown option or argument: '--nosuch'"),
        (["--drm-kernel-drivers=v3d"], "unknown option or argument: '--drm-kernel-drivers=v3d'"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(words)}"):
        demo.run(parse(["demo", *arguments]), {})


class Foogpu:
    """A driver with everything that there is to show."""

    @hookimpl
    def gpuplug_sysfs_attributes(self) -> list[str]:
        return ["foo/state"]

    @hookimpl
    def gpuplug_companion_nodes(self) -> list[str]:
        return ["/dev/foo"]

    @hookimpl
    def gpuplug_resource_name(self, gpu: Gpu) -> str | None:
        return "gpu.example.com/foo" if gpu.kernel_driver == "foogpu" else None

    @hookimpl
    def gpuplug_device_specs(self, gpu: Gpu) -> list[DeviceSpec]:
        return [DeviceSpec(node.path, node.host_path) for node in gpu.companions.values()]

    @hookimpl
    def gpuplug_mounts(self) -> list[Mount]:
        return [Mount("/usr/lib/foo", "/usr/lib/foo"), Mount("/run/foo", "/run/foo", read_only=False)]

    @hookimpl
    def gpuplug_health(self, gpu: Gpu) -> Verdict:
        return Verdict(gpu.attributes.get("foo/state") != "halted", "its firmware has stopped")


LOADED = loader.from_modules({"foogpu": Foogpu()})


async def test_files_and_companions_of_a_driver_are_there(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = parse_gpu("foogpu,foo/state=running")
    assert await show_gpu(LOADED, Settings(), short_path, gpu, keep=False) == ""
    printed = capsys.readouterr().out
    assert "    foo/state: running\n" in printed
    assert "  node /dev/foo             rw  (made from " in printed
    assert "  file /usr/lib/foo         read only  (from /usr/lib/foo)\n" in printed
    assert "  file /run/foo             read and write  (from /run/foo)\n" in printed


async def test_an_unhealthy_gpu_is_shown_with_its_reason(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = parse_gpu("foogpu,foo/state=halted")
    assert await show_gpu(LOADED, Settings(), short_path, gpu, keep=False) == ""
    assert "It is unhealthy, and given to no pod: its firmware has stopped\n" in capsys.readouterr().out


async def test_a_gpu_that_the_kubelet_does_not_get_fails_the_demo_in_words(short_path: Path) -> None:
    failure = await show_gpu(LOADED, Settings(), short_path, parse_gpu("foogpu"), keep=False, within=0.0)
    assert failure.startswith("not within 0.0 s: gpu.example.com/foo")
