"""``gpuplug serve`` as a process of its own: signals, what it leaves behind, and what it listens on."""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from tests.running import I915, A, eventually, own_sockets, running_kubelet, settled
from tests.serving import Serving, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplug.testing import Machine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_takes_its_sockets_along_and_exits_with_0(
    machine: Machine, kubelet_dir: Path, number: signal.Signals
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as serve:
        await kubelet.wait_for_devices(I915, {A}, within=20)
        assert len(own_sockets(kubelet_dir)) == 1
        assert await serve.ended(number) == 0
        assert own_sockets(kubelet_dir) == []
        assert "Traceback" not in serve.log


async def test_a_signal_makes_the_log_say_more_and_serving_goes_on(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as serve:
        await settled(kubelet, I915, {A})
        for words in ("is debug now", "is trace now", "is info again"):
            serve.process.send_signal(signal.SIGUSR1)
            await serve.said(f"the level of the log {words}")
            await kubelet.allocate(I915, [[A]])
        assert serve.log.count(f"{I915}: gave 1 devices") == 2
        assert kubelet.resource(I915).streams == 1
        assert len(kubelet.registrations) == 1
        assert await serve.ended(signal.SIGTERM) == 0


async def test_that_signal_is_no_end_at_any_moment_of_the_start(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as serve:
        await serve.said(" serve --")  # before Python runs our first line nothing can be done about it
        for _ in range(50):
            serve.process.send_signal(signal.SIGUSR1)
            await anyio.sleep(0.003)
        await settled(kubelet, I915, {A})
        assert await serve.ended(signal.SIGTERM) == 0


async def test_told_to_stop_while_it_waits_for_a_kubelet_it_exits_with_0(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with serving(machine, kubelet_dir) as serve:
        await serve.said("kubelet.sock is not there")
        assert await serve.ended(signal.SIGTERM) == 0
        assert own_sockets(kubelet_dir) == []


async def test_told_to_stop_while_register_hangs_it_exits_with_0(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.delay = math.inf
        async with serving(machine, kubelet_dir) as serve:
            await kubelet.wait_for(lambda k: k.registrations, within=20)
            assert await serve.ended(signal.SIGTERM) == 0
            assert own_sockets(kubelet_dir) == []


async def test_a_signal_that_comes_twice_at_once_is_one(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as serve:
        await kubelet.wait_for_devices(I915, {A}, within=20)
        for _ in range(5):
            serve.process.send_signal(signal.SIGTERM)
            await anyio.sleep(0.01)
        assert await serve.ended(None) == 0
        assert own_sockets(kubelet_dir) == []


DRIVER = """
import os
from gpuplug import hookimpl

@hookimpl
def gpuplug_sysfs_attributes():
    return ["/".join(["*"] * 3)]

@hookimpl
def gpuplug_resource_name(gpu):
    return "example.com/slow"
"""


@pytest.fixture
def slow_driver(short_path: Path, machine: Machine) -> Path:
    """Install a driver package with which a look at the machine never ends: links in circles."""
    packages = short_path / "packages"
    info = packages / "slow_driver-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "slow_driver.py").write_text(DRIVER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-driver\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpuplug]\nslow = slow_driver\n")
    machine.add_gpu(A)
    for number in range(300):
        (machine.device(A) / f"circle{number}").symlink_to(".")
    return packages


async def test_a_look_at_the_machine_that_hangs_does_not_hold_up_the_end(
    machine: Machine, kubelet_dir: Path, slow_driver: Path
) -> None:
    async with serving(machine, kubelet_dir, packages=slow_driver) as serve:
        await waiting_in_a_scan(serve)
        began = time.monotonic()
        assert await serve.ended(signal.SIGTERM) == 0
        assert time.monotonic() - began < 1.5


HANGS = """
import socket, sys, time, anyio
from functools import partial
from gpuplug.commands.signals import StopSignals
from gpuplug.host.sockets import remove_own

async def main(signals):
    print("ready", flush=True)
    await signals.wait()
    await anyio.to_thread.run_sync(time.sleep, 30)

import anyio.to_thread
own = socket.socket(socket.AF_UNIX)
own.bind(sys.argv[1] + "/gpuplug-own.sock")
own.listen()
anyio.run(main, StopSignals(partial(remove_own, sys.argv[1], "gpuplug-")))
"""


@contextmanager
def what_hangs_at_the_end(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that stops as ``serve`` does, and hangs then: in a read in the kernel, say."""
    command = [sys.executable, "-c", HANGS, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            assert own_sockets(folder) == ["gpuplug-own.sock"]
            yield process
        finally:
            process.kill()


def test_what_hangs_at_the_end_is_ended_all_the_same_and_leaves_no_socket(kubelet_dir: Path) -> None:
    with what_hangs_at_the_end(kubelet_dir) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert time.monotonic() - began >= 1.5
    assert own_sockets(kubelet_dir) == []


def test_a_second_signal_ends_at_once_what_does_not_end_and_no_socket_is_left(kubelet_dir: Path) -> None:
    with what_hangs_at_the_end(kubelet_dir) as process:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.7)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(0.7) == 128 + signal.SIGTERM
    assert own_sockets(kubelet_dir) == []


async def waiting_in_a_scan(serve: Serving) -> None:
    """Wait until the process has a worker thread that burns time: the scan."""
    status = Path(f"/proc/{serve.process.pid}/task")

    def burns() -> bool:
        ticks = []
        for task in status.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
                ticks.append(int((task / "stat").read_text().rpartition(")")[2].split()[11]))
        return len(ticks) > 1 and max(ticks[1:]) > 20

    await eventually(burns, lambda: f"a scan; the log: {serve.log}", within=20)


async def test_it_listens_on_no_network(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as serve:
        await kubelet.wait_for_devices(I915, {A}, within=20)
        inodes = set()
        for link in Path(f"/proc/{serve.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a file that it closed in the meantime
                if (name := str(link.readlink())).startswith("socket:"):
                    inodes.add(name.strip("socket:[]"))
        assert inodes
        for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet"):
            lines = Path(f"/proc/{serve.process.pid}/net/{table}").read_text().splitlines()[1:]
            assert [line for line in lines if inodes & set(line.split())] == []


async def test_killed_and_started_anew_it_removes_what_it_left_and_nothing_of_others(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet:
        live = kubelet_dir / "gpuplug-of-another-process.sock"
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(live))
            other.listen()
            async with serving(machine, kubelet_dir) as serve:
                await kubelet.wait_for_devices(I915, {A}, within=20)
                assert await serve.ended(signal.SIGKILL) == -signal.SIGKILL
            left = set(own_sockets(kubelet_dir)) - {live.name}
            assert len(left) == 1
            async with serving(machine, kubelet_dir) as serve:
                await serve.said("removed what a killed process left behind")
                await settled(kubelet, I915, {A}, sockets=2)
                assert not left & set(own_sockets(kubelet_dir))
                assert live.is_socket()
                assert await serve.ended(signal.SIGTERM) == 0
            assert own_sockets(kubelet_dir) == [live.name]


async def test_two_processes_side_by_side_and_one_of_them_leaves(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as stays:
        await kubelet.wait_for_devices(I915, {A}, within=20)
        async with serving(machine, kubelet_dir) as leaves:
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 2, within=20)
            await stays.said("another process serves it too")
            assert await leaves.ended(signal.SIGTERM) == 0
        await settled(kubelet, I915, {A})
        answer = await kubelet.allocate(I915, [[A]])
        assert len(answer.container_responses) == 1
        assert await stays.ended(signal.SIGTERM) == 0
