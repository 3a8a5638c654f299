"""Measure gpuplug against its goals: ``uv run python -m tests.benchmarks [NAME…]``.

The real ``gpuplug serve`` process, on a made-up machine in a temporary folder, in front of
the made-up kubelet in this process. Where a time depends on the machine it runs on, the
floor for it (what the libraries alone need, an empty gRPC call) is measured in the same run
and printed beside it, with the ratio.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from gpuplug.kubelet.v1beta1 import AllocateRequest, ContainerAllocateRequest
from gpuplug.testing import FakeKubelet, Machine
from tests.distributions import Distribution, Site
from tests.folders import MEMORY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

RESOURCE = "gpu.intel.com/i915"
SERVE = (sys.executable, "-m", "gpuplug", "serve")
LIBRARIES = "import anyio, grpclib.client, grpclib.server, betterproto2, loguru, pluggy, inotify_simple"
COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""The environment of what is measured: modules are compiled once, as they are in an image."""
IDLE = float(os.environ.get("GPUPLUG_BENCH_IDLE", "60"))
"""Seconds of idling that are measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    measured: str
    goal: str
    met: bool | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A machine, a kubelet, and room for log files."""

    folder: Path
    machine: Machine
    kubelet: FakeKubelet

    def options(self, shares: int = 1) -> list[str]:
        return [
            f"--prefix={self.machine.root}",
            f"--kubelet-dir={self.kubelet.directory}",
            f"--shared-dev-num={shares}",
        ]

    @contextmanager
    def process(self, *command: str, packages: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command; its log is shown if the block fails.

        :param packages: a folder with driver packages to find besides those that are installed.
        """
        environ = COMPILED if packages is None else {**COMPILED, "PYTHONPATH": str(packages)}
        with (self.folder / "log").open("w+b") as log:
            process = subprocess.Popen(command, stderr=log, env=environ)
            try:
                yield process
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read().decode()[-4000:])
                raise
            finally:
                process.kill()
                process.wait()

    async def list_arrives(self, after: float, within: float = 30.0) -> float:
        """Wait for a list that arrives after a moment; return the seconds since then."""
        found = await self.kubelet.wait_for(
            lambda kubelet: (
                (latest := kubelet.resource(RESOURCE).latest) is not None and latest.at > after and latest
            ),
            "a new list",
            within=within,
        )
        assert found
        return float(found.at - after)


@asynccontextmanager
async def stage(gpus: int) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="gp-", dir=MEMORY) as name:
        folder = Path(name)
        machine = Machine(folder / "m")
        machine.add_gpus(gpus, numa_nodes=2)
        async with FakeKubelet(folder / "k", history=1) as kubelet:
            yield Stage(folder, machine, kubelet)


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    return 1000 * statistics.median(ordered), 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def memory(pid: int) -> tuple[float, float]:
    """Return RSS and private memory of a process, in MiB (proc(5), smaps_rollup)."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value, *_ = line.split()
        sizes[key] = int(value) / 1024
    return sizes["Rss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"]


def anonymous(pid: int) -> float:
    """Return the memory of a process that is no page of a file, in MiB: its own, whoever else runs Python."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads, those that have ended too, in nanoseconds' resolution.

    The id of a process' clock is what clock_getcpuclockid(3) makes of its number.
    """
    return time.clock_gettime(~pid << 3 | 2)


async def start_up() -> list[Row]:
    """Measure exec → Register at the kubelet, beside the time that importing the libraries takes."""
    took, floor = [], []
    for _ in range(8):
        async with stage(1) as on:
            begun = time.monotonic()
            with on.process(*SERVE, *on.options()):
                await on.kubelet.wait_for(lambda kubelet: kubelet.registrations, "a registration", within=20)
                took.append(on.kubelet.registrations[0].at - begun)
        begun = time.monotonic()
        await anyio.run_process([sys.executable, "-c", LIBRARIES], env=COMPILED)
        floor.append(time.monotonic() - begun)
    took, floor = took[1:], floor[1:]  # the first ones may have compiled
    best, middle, libraries = min(took), statistics.median(took), statistics.median(floor)
    return [
        Row(
            "exec → registered",
            f"{middle:.2f} s (best {best:.2f})",
            "≤ 0.4 s",
            middle <= 0.4,
            f"importing the libraries and exit: {libraries:.2f} s; ratio {middle / libraries:.2f}",
        )
    ]


async def hotplug() -> list[Row]:
    """Measure new node → list at the kubelet, 200 plugs and as many removals."""
    plugged: list[float] = []
    removed: list[float] = []
    async with stage(1) as on:
        with on.process(*SERVE, *on.options()):
            await on.list_arrives(0)
            for _ in range(200):
                for act, times in (
                    (lambda: on.machine.add_gpu("0000:07:00.0"), plugged),
                    (lambda: on.machine.remove_gpu("0000:07:00.0"), removed),
                ):
                    begun = time.monotonic()
                    act()
                    times.append(await on.list_arrives(begun))
    p50, p99 = quantiles(plugged)
    gone50, gone99 = quantiles(removed)
    return [
        Row("plug → list at the kubelet, p50 / p99", f"{p50:.0f} / {p99:.0f} ms", "p99 ≤ 100 ms", p99 <= 100,
            "200 plugs; a GPU counts as settled after 30 ms"),
        Row("unplug → list at the kubelet, p50 / p99", f"{gone50:.0f} / {gone99:.0f} ms", "", None),
    ]  # fmt: skip


async def footprint() -> list[Row]:
    """Measure memory with 1 and with 12,800 Devices; CPU over an idle minute with 1 GPU and with 128."""
    rows = []
    for gpus, shares, goal in ((1, 1, 36.0), (128, 100, 48.0)):
        async with stage(gpus) as on:
            with on.process(*SERVE, *on.options(shares)) as process:
                await on.list_arrives(0)
                await anyio.sleep(2)
                before, begun = cpu_seconds(process.pid), time.monotonic()
                await anyio.sleep(IDLE)
                share = 100 * (cpu_seconds(process.pid) - before) / (time.monotonic() - begun)
                rss, private = memory(process.pid)
        name = f"{gpus * shares:,} devices on {gpus} GPU" + ("s" if gpus > 1 else "")
        rows += [
            Row(f"RSS / private, {name}", f"{rss:.1f} / {private:.1f} MiB", f"≤ {goal:.0f} MiB", rss <= goal),
            Row(f"CPU over {IDLE:.0f} idle s, {name}", f"{share:.4f} %", "≤ 0.02 %", share <= 0.02),
        ]
    return rows


async def timed(call: Callable[[], Awaitable[object]], times: int) -> tuple[float, float]:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        took.append(time.perf_counter() - begun)
    return quantiles(took)


def _ask_for(*ids: str) -> AllocateRequest:
    return AllocateRequest([ContainerAllocateRequest(list(ids))])


async def allocate() -> list[Row]:
    """Measure Allocate, beside GetDevicePluginOptions: the same way there and back with nothing to do."""
    rows = []
    for gpus, shares in ((1, 1), (128, 100)):
        async with stage(gpus) as on:
            with on.process(*SERVE, *on.options(shares)):
                await on.list_arrives(0)
                call = partial(on.kubelet.stub(RESOURCE).allocate, _ask_for("0000:03:00.0"))
                empty = on.kubelet.stub(RESOURCE).get_device_plugin_options
                await timed(call, 100)
                p50, p99 = await timed(call, 2000)
                floor50, floor99 = await timed(empty, 2000)
        first = gpus == 1
        rows.append(
            Row(
                f"Allocate p50 / p99, {gpus * shares:,} devices",
                f"{p50:.2f} / {p99:.2f} ms",
                "≤ 0.6 / 2 ms" if first else "",
                (p50 <= 0.6 and p99 <= 2) if first else None,
                f"an empty call: {floor50:.2f} / {floor99:.2f} ms; ratio {p50 / floor50:.2f}",
            )
        )
    return rows


async def many_devices() -> list[Row]:
    """Measure one GPU's change among 12,800 Devices → list on the wire, and the loop's longest stop."""
    took, lag = [], []
    async with stage(128) as on:
        out = on.folder / "lag"
        command = (sys.executable, "-m", "tests.loop_lag", str(out), *on.options(100))
        with on.process(*command) as process:
            await on.list_arrives(0)
            await anyio.sleep(2)
            await _lag(process, out)
            for _ in range(20):
                for act in (on.machine.devfs.dri.joinpath("card0").rename, None):
                    begun = time.monotonic()
                    if act is not None:
                        act(on.folder / "card0")
                    else:
                        (on.folder / "card0").rename(on.machine.dri / "card0")
                    took.append(await on.list_arrives(begun))
                lag.append(await _lag(process, out))
    p50, p99 = quantiles(took)
    held = 1000 * max(lag)
    return [
        Row("one change in 12,800 → list on the wire, p50 / max", f"{p50:.0f} / {p99:.0f} ms", "≤ 150 ms",
            p99 <= 150),
        Row("longest time that the loop was held up meanwhile", f"{held:.0f} ms", "≤ 50 ms", held <= 50),
    ]  # fmt: skip


async def _lag(process: subprocess.Popen[bytes], out: Path) -> float:
    """Ask the process for the longest gap since the last time."""
    lines = len(out.read_text().splitlines()) if out.exists() else 0
    process.send_signal(signal.SIGUSR1)
    with anyio.fail_after(10):
        while not out.exists() or len(found := out.read_text().splitlines()) <= lines:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return float(found[-1])


async def stopping() -> list[Row]:
    """Measure SIGTERM → exit 0 with our sockets gone; kubelet restart → list."""
    stopped, restarted = [], []
    clean = True
    for _ in range(5):
        async with stage(1) as on:
            with on.process(*SERVE, *on.options()) as process:
                await on.list_arrives(0)
                await on.kubelet.restart()
                begun = time.monotonic()
                restarted.append(await on.list_arrives(begun))
                begun = time.monotonic()
                process.terminate()
                clean &= await asyncio.to_thread(process.wait) == 0
                stopped.append(time.monotonic() - begun)
                clean &= not list(on.kubelet.directory.glob("gpuplug-*"))
    slowest = max(stopped)
    left = "sockets gone, exit 0" if clean else "SOCKETS LEFT or another exit code"
    return [
        Row("SIGTERM → exit, slowest of 5", f"{slowest:.2f} s, {left}", "≤ 0.5 s", clean and slowest <= 0.5),
        Row("kubelet restarted → list, p50 of 5", f"{1000 * statistics.median(restarted):.0f} ms", "", None),
    ]


async def _fetch(port: int, path: str) -> bytes:
    """Ask once, as a scrape does; return the body."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        parts = []
        with suppress(anyio.EndOfStream):
            while True:
                parts.append(await stream.receive())
    return b"".join(parts)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def listening() -> list[Row]:
    """Measure what ``--listen`` costs with 12,800 Devices: memory, time of a scrape, stops of the loop."""
    used: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    scrape: list[float] = []
    report: list[float] = []
    for listens in (False, True, False, True):
        port = _free_port()
        async with stage(128) as on:
            options = [*on.options(100), *([f"--listen=127.0.0.1:{port}"] if listens else [])]
            with on.process(*SERVE, *options) as process:
                await on.list_arrives(0)
                await anyio.sleep(2)
                for path, times in (("/metrics", scrape), ("/report", report)) if listens else ():
                    for _ in range(50):
                        await anyio.sleep(0.11)  # a page is made anew after 0.1 s
                        begun = time.perf_counter()
                        assert b"200 OK" in await _fetch(port, path)
                        times.append(time.perf_counter() - begun)
                used[listens].append((memory(process.pid)[0], anonymous(process.pid)))
    (rss, own), (rss0, own0) = min(used[True]), min(used[False])
    p50, p99 = quantiles(scrape)
    slow50, slow99 = quantiles(report)
    return [
        Row("--listen: RSS / anonymous memory grow by", f"{rss - rss0:.1f} / {own - own0:.1f} MiB",
            "≤ 4 MiB", own - own0 <= 4, "12,800 devices, 50 scrapes and reports; the rest is in files"),
        Row("/metrics with 12,800 devices, p50 / p99", f"{p50:.1f} / {p99:.1f} ms", "≤ 50 ms", p99 <= 50),
        Row("/report with 12,800 devices, p50 / p99", f"{slow50:.1f} / {slow99:.1f} ms", "", None),
        *await _stops(),
    ]  # fmt: skip


async def _stops() -> list[Row]:
    """Measure how long the loop is held up, in intervals with a scrape and in ones without."""
    port = _free_port()
    quiet: list[float] = []
    busy: list[float] = []
    async with stage(128) as on:
        out = on.folder / "lag"
        options = [*on.options(100), f"--listen=127.0.0.1:{port}"]
        with on.process(sys.executable, "-m", "tests.loop_lag", str(out), *options) as process:
            await on.list_arrives(0)
            await anyio.sleep(2)
            await _lag(process, out)
            for _ in range(100):
                await anyio.sleep(0.12)
                quiet.append(await _lag(process, out))
                await anyio.sleep(0.12)
                await _fetch(port, "/metrics")
                busy.append(await _lag(process, out))
    idle, held = 1000 * statistics.median(quiet), 1000 * statistics.median(busy)
    return [
        Row("longest stop of the loop, with a scrape / without, p50", f"{held:.1f} / {idle:.1f} ms", "≤ 5 ms",
            held <= 5, f"worst of 100: {1000 * max(busy):.1f} / {1000 * max(quiet):.1f} ms"),
    ]  # fmt: skip


async def idle_clients() -> list[Row]:
    """Measure Allocate, a probe, memory and files while 10,000 connections are open and say nothing."""
    number = 10_000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    port = _free_port()
    probes: list[float] = []
    async with stage(1) as on:
        with (
            on.process(*SERVE, *on.options(), f"--listen=127.0.0.1:{port}") as process,
            ExitStack() as clients,
        ):
            await on.list_arrives(0)
            await _fetch(port, "/readyz")
            call = partial(on.kubelet.stub(RESOURCE).allocate, _ask_for("0000:03:00.0"))
            await timed(call, 100)
            before50, before99 = await timed(call, 1000)
            rss, files = memory(process.pid)[0], _files(process.pid)
            opened: list[socket.socket] = []
            during: list[float] = []
            for one in range(number):
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
                opened.append(client)
                if one % 10 == 0:
                    begun = time.perf_counter()
                    await call()
                    during.append(time.perf_counter() - begun)
                if one % 500 == 0:
                    begun = time.perf_counter()
                    assert b"ready" in await _fetch(port, "/readyz")
                    probes.append(time.perf_counter() - begun)
            await anyio.sleep(1)
            grown, more = memory(process.pid)[0] - rss, _files(process.pid) - files
            after50, after99 = await timed(call, 1000)
            closed = sum(_is_closed(client) for client in opened)
    p50, p99 = quantiles(during)
    return [
        Row("10,000 connect: closed / still served", f"{closed:,} / {number - closed:,}", "≤ 64 served",
            number - closed <= 64, f"{more} more files, {grown:.1f} MiB more"),
        Row("Allocate p50 / p99 before / while / after", f"{before50:.2f} / {before99:.2f}", "", None,
            f"while they connect {p50:.2f} / {p99:.2f} ms, idle {after50:.2f} / {after99:.2f} ms"),
        Row("/readyz while they connect, slowest", f"{1000 * max(probes):.1f} ms", "≤ 1 s", max(probes) <= 1),
    ]  # fmt: skip


def _files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def drivers() -> list[Row]:
    """Measure what ten more drivers add to the start and to memory, with and without them by turns."""
    amdgpu = Path(__file__).parent.parent / "drivers/gpuplug-amdgpu/gpuplug_amdgpu"
    source = "".join((amdgpu / name).read_text() for name in ("partitions.py", "__init__.py"))
    source = re.sub(r"^from (__future__|gpuplug_amdgpu\.\w+) import .*\n", "", source, flags=re.MULTILINE)
    source = f"from __future__ import annotations\n{source}"
    took: dict[bool, list[float]] = {False: [], True: []}
    processor: dict[bool, list[float]] = {False: [], True: []}
    private: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="gp-") as name:
        site = Site(Path(name) / "site")
        site.install(*(Distribution(f"driver-{letter}", source) for letter in "abcdefghij"))
        listed = json.loads(site.run("drivers", "--json").stdout)["drivers"]
        assert sum(one["loaded"] and one["name"].startswith("driver-") for one in listed) == 10, listed
        for _ in range(11):
            for ten in (False, True):
                async with stage(1) as on:
                    begun = time.monotonic()
                    packages = site.folder if ten else None
                    with on.process(*SERVE, *on.options(), packages=packages) as process:
                        await on.kubelet.wait_for(lambda kubelet: kubelet.registrations, "it", within=20)
                        took[ten].append(on.kubelet.registrations[0].at - begun)
                        processor[ten].append(cpu_seconds(process.pid))
                        await anyio.sleep(0.5)
                        private[ten].append(memory(process.pid)[1])

    def more(of: dict[bool, list[float]], take: Callable[[Sequence[float]], float]) -> float:
        return take(of[True][1:]) - take(of[False][1:])  # the first ones may have compiled

    added, best = 1000 * more(took, statistics.median), 1000 * more(took, min)
    spent, mib = 1000 * more(processor, statistics.median), more(private, statistics.median)
    return [
        Row(
            "ten more drivers: added to the start",
            f"{added:.0f} ms (best {best:.0f})",
            "≤ 50 ms",
            added <= 50,
            f"of processor time, which a busy machine blurs less: {spent:.0f} ms",
        ),
        Row("ten more drivers: added to private memory", f"{mib:.1f} MiB", "≤ 3 MiB", mib <= 3),
    ]


BENCHMARKS: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "start_up": start_up,
    "hotplug": hotplug,
    "allocate": allocate,
    "many_devices": many_devices,
    "stopping": stopping,
    "listening": listening,
    "idle_clients": idle_clients,
    "drivers": drivers,
    "footprint": footprint,
}


def show(rows: Sequence[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'measured':24}  {'goal':13}  met")
    for row in rows:
        met = {True: "yes", False: "NO", None: ""}[row.met]
        print(f"{row.what:{width}}  {row.measured:24}  {row.goal:13}  {met:3}  {row.note}".rstrip())


async def main(names: Sequence[str]) -> int:
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"… {name}", file=sys.stderr, flush=True)
        rows += await BENCHMARKS[name]()
    show(rows)
    return 0


if __name__ == "__main__":
    wrong = [name for name in sys.argv[1:] if name not in BENCHMARKS]
    if wrong:
        sys.exit(f"benchmarks: no {wrong[0]!r}; there are {', '.join(BENCHMARKS)}")
    sys.exit(anyio.run(main, sys.argv[1:]))
