"""``gpuplug serve --listen``, from a made-up machine to what curl and Prometheus get."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuplug.cli import main
from tests.running import I915, A, B, eventually, running_kubelet, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpuplug.testing import Machine


class Served:
    """A running ``gpuplug serve --listen``, and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.port = 0

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def began(self) -> None:
        await eventually(lambda: "/metrics" in self.log, lambda: f"an address in: {self.log}", within=60)
        found = re.search(r"/metrics, .* on http://127\.0\.0\.1:(\d+)$", self.log, re.MULTILINE)
        assert found is not None, self.log
        self.port = int(found[1])

    async def get(self, path: str) -> tuple[int, str]:
        """Ask in a thread, as another process would."""

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await anyio.to_thread.run_sync(ask)

    async def metrics(self) -> dict[str, float]:
        """Give what Prometheus would keep: the value by name and, sorted, labels."""
        _, text = await self.get("/metrics")
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def comes(self, path: str, status: int, words: str = "") -> str:
        """Wait until a page is as wanted; return it."""
        code, text = 0, ""
        with anyio.move_on_after(10):
            while code != status or words not in text:
                code, text = await self.get(path)
            return text
        raise TimeoutError(f"{path} is {code}: {text}")


@asynccontextmanager
async def serving(machine: Machine, kubelet_dir: Path, *options: str) -> AsyncIterator[Served]:
    log = machine.root / "log"
    command = [sys.executable, "-m", "gpuplug", "serve", "--listen=127.0.0.1:0", *options]
    command += [f"--prefix={machine.root}", f"--kubelet-dir={kubelet_dir}"]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        served = Served(process, log)
        try:
            await served.began()
            yield served
        except BaseException:
            print(f"exit code {process.poll()}; the log:\n{served.log}")
            raise
        finally:
            process.kill()


async def test_ready_follows_the_kubelet_and_says_why_not(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    async with serving(machine, kubelet_dir) as served:
        text = await served.comes("/readyz", 503, "kubelet.sock is not there")
        assert text.startswith("not ready\ngpu.intel.com/i915: waiting for the kubelet: ")
        assert (await served.get("/healthz"))[0] == 200
        async with running_kubelet(kubelet_dir) as kubelet:
            text = await served.comes("/readyz", 200)
            assert text == "ready\ngpu.intel.com/i915: registered and streaming (1 device, 1 healthy)\n"
            await kubelet.stop()
            await served.comes("/readyz", 503)
            await kubelet.start()
            await served.comes("/readyz", 200)
        served.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(lambda: served.process.wait(10)) == 0
        assert "Traceback" not in served.log


async def test_a_node_without_a_gpu_is_ready_before_any_kubelet_and_says_so(
    machine: Machine, kubelet_dir: Path
) -> None:
    async with serving(machine, kubelet_dir) as served:
        text = await served.comes("/readyz", 200)
        assert text.startswith("ready\nno GPU is advertised\n")


async def test_all_views_tell_of_hotplug_allocations_and_registrations(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as served:
        await settled(kubelet, I915, {A})
        machine.add_gpu(B)
        await settled(kubelet, I915, {A, B})
        await kubelet.allocate(I915, [[A]])
        with pytest.raises(Exception, match="NOT_FOUND"):
            await kubelet.allocate(I915, [["nosuch"]])
        await served.comes("/metrics", 200, f'gpuplug_list_generation{{resource="{I915}"}} 2.0')
        found = await served.metrics()
        of = ("resource", I915)
        assert found[f"gpuplug_devices{[('health', 'healthy'), of]}"] == 2
        assert found[f"gpuplug_allocations_total{[('outcome', 'answered'), of]}"] == 1
        assert found[f"gpuplug_allocations_total{[('outcome', 'refused'), of]}"] == 1
        assert found[f"gpuplug_allocation_duration_seconds_count{[of]}"] == 2
        assert found[f"gpuplug_registrations_total{[('outcome', 'streaming'), of]}"] == 1
        assert found["gpuplug_hotplug_to_list_seconds_count[]"] == 1
        assert 0 < found["gpuplug_hotplug_to_list_seconds_sum[]"] < 5
        code, text = await served.get("/report")
        report = json.loads(text)
        assert code == 200
        assert [resource["devices"] for resource in report["resources"]] == [2]
        assert report["resources"][0]["kubelet"] == {
            "streaming": True,
            "phase": "registered and streaming",
            "reason": None,
        }
        assert [gpu["address"] for gpu in report["gpus"]] == [A, B]
        assert report["gpus"][0]["nodes"][0]["mode"] is not None


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /readyz HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST /readyz HTTP/1.0\r\n\r\n", b"HTTP/1.1 405 "),
    ],
)
async def test_a_plain_socket_is_answered(
    machine: Machine, kubelet_dir: Path, start: bytes, status: bytes
) -> None:
    async with serving(machine, kubelet_dir) as served:
        await served.comes("/readyz", 200)
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(start)
            assert (await stream.receive()).startswith(status)


async def test_where_the_event_loop_is_stuck_the_probe_of_life_gets_no_answer(
    machine: Machine, kubelet_dir: Path
) -> None:
    async with serving(machine, kubelet_dir) as served:
        await served.comes("/healthz", 200, "ok\n")
        served.process.send_signal(signal.SIGSTOP)
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(b"GET /healthz HTTP/1.0\r\n\r\n")
            with anyio.move_on_after(0.3) as waited:
                await stream.receive()
            assert waited.cancelled_caught
            served.process.send_signal(signal.SIGCONT)
            with anyio.fail_after(10):
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_port_in_use_is_one_line_that_names_it_and_exit_2(
    machine: Machine, kubelet_dir: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["serve", "--prefix", str(machine.root), "--kubelet-dir", str(kubelet_dir)]
        environ = {"GPUPLUG_LISTEN": where} if how == "variable" else {}
        if how == "option":
            arguments += ["--listen", where]
        assert main(arguments, environ) == 2
    signal.signal(signal.SIGTERM, handler)
    name = "GPUPLUG_LISTEN" if environ else "--listen"
    assert capsys.readouterr().err == f"gpuplug: {name}: cannot listen on {where!r}: Address already in use\n"


SEEN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=open({path!r}, "w")))
from gpuplug.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("listens", [True, False])
async def test_only_who_listens_has_prometheus_and_nobody_has_what_commands_print_with(
    machine: Machine, kubelet_dir: Path, listens: bool
) -> None:
    path = machine.root / "modules"
    machine.add_gpu(A)
    command = [sys.executable, "-c", SEEN.format(path=str(path)), "serve"]
    command += [f"--prefix={machine.root}", f"--kubelet-dir={kubelet_dir}"]
    command += ["--listen=127.0.0.1:0"] if listens else []
    async with running_kubelet(kubelet_dir) as kubelet:
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ) as process:
            try:
                await kubelet.wait_for_devices(I915, {A}, within=60)
                process.terminate()
                await anyio.to_thread.run_sync(lambda: process.wait(10))
            finally:
                process.kill()
    modules = set(path.read_text().split())
    assert not {"rich", "shtab", "gpuplug.kubelet.podresources"} & modules
    for_listeners = {"prometheus_client", "h11", "gpuplug.observe.report", "gpuplug.host.listen"}
    assert for_listeners & modules == (for_listeners if listens else set())
