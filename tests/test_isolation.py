"""What one driver package does wrong costs its own GPUs alone, and is named wherever people look.

The packages are real ones: wheels that are built here, installed into a folder, and found by the real
commands through their entry points. Each is at fault about GPUs on a kernel driver of its own.
"""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from gpuplug.testing import FakeKubeletError, Machine
from tests.distributions import Distribution, Site
from tests.running import eventually, running_kubelet
from tests.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = "from gpuplug import DeviceSpec, Mount, Verdict, hookimpl\nGPUPLUG_HOOKS = 1\n"


def claims(kernel_driver: str, answer: str = "") -> str:
    return (
        "@hookimpl\ndef gpuplug_resource_name(gpu):\n"
        f"    if gpu.kernel_driver != {kernel_driver!r}: return None\n"
        f"    return {answer or repr(f'example.com/{kernel_driver}')}\n"
    )


def hook(name: str, *lines: str, arguments: str = "gpu") -> str:
    return f"@hookimpl\ndef gpuplug_{name}({arguments}):\n" + "".join(f"    {line}\n" for line in lines)


@dataclass(frozen=True)
class Fault:
    """A package with a fault, and what is said of it."""

    name: str
    """Of the package, its entry point, and the kernel driver of its GPU."""
    source: str
    words: str
    """What must be said of it."""
    advertised: bool = False
    """Whether its GPU is advertised all the same."""
    entry_point: str = ""

    @property
    def distribution(self) -> Distribution:
        module = self.name.replace("-", "_")
        return Distribution(self.name, HEAD + self.source, {self.name: self.entry_point or module})


NEVER = "and it is not asked any more"
FAULTS = (
    Fault("no-import", "import nothing_of_this_name\n", "cannot be imported: ModuleNotFoundError"),
    Fault("bad-syntax", "def (\n", "cannot be imported: SyntaxError"),
    Fault("says-exit", "raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
    Fault("nowhere", claims("nowhere"), "cannot be imported: ModuleNotFoundError", entry_point="nosuch"),
    Fault("nothing", claims("nothing"), "cannot be imported: AttributeError", entry_point="nothing:driver"),
    Fault("misspelt", claims("misspelt").replace("_name", "_nam"), "unknown hook 'gpuplug_resource_nam'"),
    Fault("missigned", hook("resource_name", "return 'a.com/b'", arguments="card"), "{'card'} are declared"),
    Fault("unmarked", claims("unmarked") + "def gpuplug_health(gpu): return None\n",
          "gpuplug_health has no @hookimpl"),
    Fault("claimless", hook("health", "return None"),
          "it has no gpuplug_resource_name, so it can claim no GPU"),
    Fault("too-new", claims("too-new") + "GPUPLUG_HOOKS = 99\n", "too new: it needs version 99 of the hooks"),
    Fault("bad-option", "from gpuplug import DriverOption\n" + claims("bad-option")
          + hook("options", "return [DriverOption('x', int, '1', 'help')]", arguments=""), "default '1'"),
    Fault("stuck-import", "import threading\nthreading.Event().wait()\n",
          "the import did not return within 3 seconds"),
    Fault("wrong-type", claims("wrong-type", "5"), "gpuplug_resource_name returned int, not str"),
    Fault("wrong-name", claims("wrong-name", "'gpu'"), "'gpu' is not a resource name"),
    Fault("raises", claims("raises") + hook("health", "raise LookupError('out of order')"),
          "gpuplug_health raised LookupError: out of order"),
    Fault("interrupts", "raise KeyboardInterrupt\n", "cannot be imported: KeyboardInterrupt"),
    Fault("cancels", "import asyncio\n" + claims("cancels")
          + hook("health", "raise asyncio.CancelledError('a task')"),
          "gpuplug_health raised CancelledError: a task"),
    Fault("panics", "class PanicException(BaseException):\n"
          "    def __str__(self): raise KeyboardInterrupt\n\n" + claims("panics")
          + hook("device_specs", "raise PanicException"), "gpuplug_device_specs raised PanicException"),
    Fault("all-of-dev", claims("all-of-dev") + hook("device_specs", "return [DeviceSpec('/dev', '/dev')]"),
          "'/dev' holds what is not of this GPU"),
    Fault("sleeps", claims("sleeps") + hook("health", "import time; time.sleep(30)"),
          f"gpuplug_health did not return within 1 second, {NEVER}"),
    Fault("loops", claims("loops") + hook("device_specs", "while True: pass"),
          f"gpuplug_device_specs did not return within 1 second, {NEVER}"),
    Fault("prints", "print('import says hello')\n" + claims("prints")
          + hook("health", "print('{', gpu.address)"),
          "gpuplug_health printed", advertised=True),
    Fault("writes", "import os\n" + claims("writes") + hook("health", "os.write(1, b'{ past Python')"),
          "", advertised=True),
    Fault("changes", claims("changes") + hook("health", "gpu.attributes['x'] = '1'"),
          "gpuplug_health raised TypeError: 'mappingproxy' object does not support item assignment"),
    Fault("alters", claims("alters") + hook("health", "gpu.address = 'x'"),
          "gpuplug_health raised FrozenInstanceError"),
    Fault("rival", claims("good"), "drivers good and rival both claim"),
    Fault("late", claims("late") + hook("envs", "import time; time.sleep(30)", arguments="devices"),
          "gpuplug_envs did not return within 1 second", advertised=True),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
TWINS = (
    Distribution("twin-a", HEAD + claims("twin", "'example.com/a'"), {"twin": "twin_a"}),
    Distribution("twin-b", HEAD + claims("twin", "'example.com/b'"), {"twin": "twin_b"}),
)
GOOD = Distribution("good", HEAD + claims("good"))
DRIVERS = [*(fault.name for fault in FAULTS if fault.name != "rival"), "good", "twin"]
ADDRESSES = {name: f"0000:{number:02x}:00.0" for number, name in enumerate(DRIVERS, 1)}
SAFE = "--no-driver=stuck-import,sleeps,loops"
"""Leaves out what would be waited for."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("site"))
    site.install(GOOD, *TWINS, *(fault.distribution for fault in FAULTS))
    return site


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("node"))
    for name, address in ADDRESSES.items():
        machine.add_gpu(address, driver=name)
    return machine


def said_of(name: str, document: dict[str, Any]) -> str:
    """Gather what a report says of a driver and of its GPU."""
    address = ADDRESSES.get(name, ADDRESSES["good"])
    texts = [d["problem"] or "" for d in document["drivers"] if d["name"] == name]
    texts += [problem for problem in document["problems"] if name in problem]
    texts += [
        gpu["refused"]["reason"] for gpu in document["gpus"] if gpu["address"] == address and gpu["refused"]
    ]
    return "\n".join(texts)


def check(document: dict[str, Any], left_out: str = "") -> None:
    """See that everything that is wrong is said, and that nothing is lost but what is at fault."""
    skipped = set(left_out.rpartition("=")[2].split(","))
    advertised = {gpu["address"] for gpu in document["gpus"] if gpu["advertised"]}
    for fault in FAULTS:
        if fault.name not in skipped:
            assert fault.words in said_of(fault.name, document) or fault.name == "late", fault.name
    expected = {fault.name for fault in FAULTS if fault.advertised} | {"good", "twin"}
    assert advertised == {ADDRESSES[name] for name in expected}
    by_resource = {resource["name"]: resource["devices"] for resource in document["resources"]}
    assert by_resource["example.com/good"] == 1
    assert "example.com/a" in by_resource, "of two entry points of one name the first by value is used"
    assert "twin_b uses a name that is taken" in said_of("twin", document)


@pytest.fixture(scope="module")
def inspecting(site: Site, node: Machine) -> Iterator[Future[dict[str, Any]]]:
    """Begin to inspect; it takes seconds, in which those that do not return are waited for."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(site.inspect, f"--prefix={node.root}")


def cpu_seconds(pid: int, seconds: float) -> float:
    """Measure the processor time that a process takes within some seconds."""
    clock = ~pid << 3 | 2  # what clock_getcpuclockid(3) gives
    before = time.clock_gettime(clock)
    time.sleep(seconds)
    return time.clock_gettime(clock) - before


def get(port: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.usefixtures("inspecting")  # both wait most of the time: at the same time
async def test_serve_names_each_fault_in_the_log_in_readyz_and_in_a_metric_and_serves_all_that_is_sound(
    site: Site, node: Machine, kubelet_dir: Path
) -> None:
    packages = site.folder
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        serving(node, kubelet_dir, "--listen=127.0.0.1:0", "--resync=1", packages=packages) as serve,
    ):
        await kubelet.wait_for_devices("example.com/good", {ADDRESSES["good"]}, within=30)
        await serve.said("/metrics")
        port = re.findall(r"http://127\.0\.0\.1:(\d+)", serve.log)[0]

        async def ask(path: str) -> str:
            return await anyio.to_thread.run_sync(get, port, path)

        await eventually(lambda: "example.com/prints: registered" in serve.log, lambda: serve.log, within=20)
        ready, report = await ask("/readyz"), json.loads(await ask("/report"))
        check(report)
        for fault in FAULTS:
            if fault.words and fault.name != "late":
                assert fault.words in serve.log, fault.name
                assert fault.words in ready, fault.name
        for said in (serve.log, ready):
            assert "driver twin: twin_b uses a name that is taken" in said
        problems = sum(1 for driver in report["drivers"] if driver["problem"]) + len(report["problems"])
        assert f"gpuplug_driver_problems {float(problems)}" in await ask("/metrics")
        await anyio.sleep(1.2)  # time for another look, which says nothing again
        lines = [line[24:] for line in serve.log.splitlines()]
        assert [line for line in set(lines) if lines.count(line) > 1] == []
        taken = await anyio.to_thread.run_sync(cpu_seconds, serve.process.pid, 0.5)
        assert taken < 0.3, "the thread of a hook that turned in circles has ended"

        # A hook that does not return is found out in an Allocate too, and holds up nobody else's.
        address = ADDRESSES["late"]
        answered: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def allocate_late() -> None:
                with pytest.raises(FakeKubeletError, match="gpuplug_envs did not return within 1 second"):
                    await kubelet.allocate("example.com/late", [[address]])
                answered.append("late")

            tasks.start_soon(allocate_late)
            await anyio.sleep(0.1)
            await kubelet.allocate("example.com/good", [[ADDRESSES["good"]]])
            answered.append("good")
        assert answered == ["good", "late"]
        await serve.said(
            "driver late: gpuplug_envs did not return within 1 second, and it is not asked any more"
        )
        with anyio.fail_after(10):  # the next look at the machine tells of it
            while "late: gpuplug_envs did not return" not in await ask("/readyz"):
                pass

        # What goes on standard output or standard error is ours alone.
        assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in serve.log.splitlines()), serve.log
        assert await serve.ended(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def inspected(inspecting: Future[dict[str, Any]]) -> dict[str, Any]:
    return inspecting.result()


def test_inspect_names_each_fault_and_advertises_all_that_is_sound(inspected: dict[str, Any]) -> None:
    """Standard output is JSON and nothing else, though drivers print to it."""
    check(inspected)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_said_in_one_line_and_costs_no_gpu_of_another(
    fault: Fault, inspected: dict[str, Any]
) -> None:
    said = said_of(fault.name, inspected)
    if fault.words and fault.name != "late":
        assert fault.words in said
    address = ADDRESSES.get(fault.name)
    for gpu in inspected["gpus"]:
        if gpu["address"] == address:
            assert bool(gpu["advertised"]) is fault.advertised
        elif gpu["refused"]:
            assert gpu["address"] in {
                ADDRESSES[f.name] for f in FAULTS if not f.advertised and f.name in ADDRESSES
            }


def test_a_driver_that_is_left_out_is_not_even_imported(site: Site, node: Machine) -> None:
    document = site.inspect(f"--prefix={node.root}", SAFE)
    check(document, SAFE)
    assert not {"stuck-import", "sleeps", "loops"} & {driver["name"] for driver in document["drivers"]}


def test_the_command_for_drivers_names_each_fault_at_its_driver(site: Site, node: Machine) -> None:
    ended = site.run("drivers", "--json", f"--prefix={node.root}", SAFE)
    assert ended.returncode == 4
    skipped = set(SAFE.rpartition("=")[2].split(","))
    drivers = json.loads(ended.stdout)["drivers"]
    by_name = {driver["name"]: driver for driver in drivers}
    assert len(drivers) == len(by_name) + 1, "one name is there twice"
    for fault in FAULTS:
        said = "\n".join(by_name[fault.name]["problems"])
        if fault.name in skipped:
            assert (said, by_name[fault.name]["left_out"]) == ("", True)
        elif fault.words and fault.name != "late":
            assert fault.words in said, fault.name
        else:
            assert said == ""
    assert by_name["good"]["gpus"] == [ADDRESSES["good"]]
    assert by_name["good"]["resources"] == ["example.com/good"]
    assert (by_name["good"]["package"], by_name["good"]["version"]) == ("good", "1.0")
