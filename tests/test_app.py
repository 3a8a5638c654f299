"""The whole story in one process: from a made-up machine to a made-up kubelet."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from loguru import logger

from gpuplug import DeviceSpec, Gpu, Verdict, app, hookimpl
from gpuplug.host.sysfs import Roots, scan
from gpuplug.host.watch import open_notifier
from gpuplug.kubelet.endpoint import Endpoints, Phase
from gpuplug.plugins.loader import BrokenDriver, Loaded, from_modules, load
from gpuplug.settings import Settings
from gpuplug.testing import FakeKubeletError, Machine
from tests.running import (
    I915,
    XE,
    A,
    B,
    C,
    eventually,
    heard,
    open_files,
    own_sockets,
    running_kubelet,
    settled,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from gpuplug.host.watch import Notifier
    from gpuplug.testing import FakeKubelet

INSTALLED = load()
D = "0000:06:00.0"


@asynccontextmanager
async def serving(
    machine: Machine,
    kubelet_dir: Path,
    *,
    loaded: Loaded = INSTALLED,
    resync: float = 60.0,
    shares: int = 1,
    notifier: Callable[[], Notifier] = open_notifier,
) -> AsyncIterator[Endpoints]:
    """Run ``app.serve``, and end it."""
    settings = Settings(
        prefix=str(machine.root), kubelet_dir=str(kubelet_dir), resync=resync, shared_dev_num=shares
    )
    async with anyio.create_task_group() as tasks:
        endpoints = await tasks.start(partial(app.serve, settings, loaded, notifier=notifier))
        assert isinstance(endpoints, Endpoints)
        yield endpoints
        tasks.cancel_scope.cancel()


def lists(kubelet: FakeKubelet, name: str) -> list[set[str]]:
    return [set(listed.devices) for listed in kubelet.resource(name).lists]


async def nodes_settle(machine: Machine) -> None:
    """Wait until no node is so young that others may follow."""
    look = partial(scan, Roots(str(machine.root)))
    while wait := (await anyio.to_thread.run_sync(look)).settled_in:  # noqa: ASYNC110 - files have no event
        await anyio.sleep(wait)


async def test_every_gpu_is_there_from_the_first_list_on(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A, driver="i915", numa_node=0)
    machine.add_gpu(B, driver="xe")
    machine.add_gpu(C, driver="i915", numa_node=1)
    await nodes_settle(machine)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir, shares=2) as endpoints:
        await settled(kubelet, I915, {A, f"{A}::1", C, f"{C}::1"}, sockets=2)
        await settled(kubelet, XE, {B, f"{B}::1"}, sockets=2)
        assert [kubelet.resource(I915).devices[id_].numa for id_ in (A, C)] == [(0,), (1,)]
        assert len(lists(kubelet, I915)) == 1
        await eventually(
            lambda: {state.phase for state in endpoints.states.values()} == {Phase.STREAMING}, str
        )
        answer = await kubelet.allocate(I915, [[A, f"{A}::1"]])
        assert [spec.container_path for spec in answer.container_responses[0].devices] == [
            "/dev/dri/card0",
            "/dev/dri/renderD128",
        ]
    assert own_sockets(kubelet_dir) == []


async def test_a_gpu_that_is_plugged_in_reaches_the_kubelet_whole_and_once(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        await settled(kubelet, I915, {A})
        made = machine.add_gpu(B, card=False)
        await anyio.sleep(0.008)  # the card node follows milliseconds later
        card = machine.add_node(B, "card")
        await settled(kubelet, I915, {A, B})
        answer = await kubelet.allocate(I915, [[B]])
        assert {spec.container_path for spec in answer.container_responses[0].devices} == {
            f"/dev/dri/{made.render}",
            f"/dev/dri/{card}",
        }
        machine.remove_gpu(B)
        await settled(kubelet, I915, {A})
        assert lists(kubelet, I915) == [{A}, {A, B}, {A}]
        with pytest.raises(FakeKubeletError, match=f"NOT_FOUND: {I915} has no device {B}"):
            await kubelet.allocate(I915, [[B]])


async def test_all_gpus_gone_is_an_empty_list_and_they_may_come_back(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        for _ in range(3):
            await settled(kubelet, I915, {A})
            machine.remove_gpu(A)
            assert not machine.dri.exists()
            await settled(kubelet, I915, set())
            machine.add_gpu(A)
        await settled(kubelet, I915, {A})
        assert lists(kubelet, I915) == [{A}, set(), {A}, set(), {A}, set(), {A}]
        assert len(kubelet.registrations) == 1


async def test_a_gpu_that_gets_another_kernel_driver_moves_to_its_resource(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A, driver="i915")
    machine.add_gpu(B, driver="i915")
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        await settled(kubelet, I915, {A, B})
        machine.rebind(A, "xe")
        await settled(kubelet, XE, {A}, sockets=2)
        await settled(kubelet, I915, {B}, sockets=2)
        machine.rebind(A, "i915")
        await settled(kubelet, I915, {A, B}, sockets=2)
        await settled(kubelet, XE, set(), sockets=2)


async def test_a_machine_without_a_gpu_registers_nothing_says_so_once_and_waits(
    machine: Machine, kubelet_dir: Path
) -> None:
    with heard() as lines:
        async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir) as endpoints:
            await eventually(lambda: bool(lines), lambda: "a word")
            (machine.dev / "tty0").touch()
            assert endpoints.states == {}
            assert kubelet.registrations == []
            machine.add_gpu(A)
            await settled(kubelet, I915, {A})
    assert sum("no GPU" in line for line in lines) == 1


async def test_the_kubelets_folder_may_come_later(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    kubelet_dir.rmdir()
    async with serving(machine, kubelet_dir), running_kubelet(kubelet_dir) as kubelet:
        await settled(kubelet, I915, {A})


async def test_the_resync_alone_finds_what_changed_where_no_event_is_had(
    machine: Machine, kubelet_dir: Path
) -> None:
    """A mount that is not told of: the kubelet's folder is another one behind a link, unseen by inotify."""
    machine.add_gpu(A)
    (machine.root / "gone").mkdir()
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir, resync=0.05):
        await settled(kubelet, I915, {A})
        # No event comes of what happens to the file that a link leads to.
        node = machine.dri / "renderD128"
        before = len(lists(kubelet, I915))
        machine.write_attribute(A, "drm/renderD128/dev", "1:1\n")
        await settled(kubelet, I915, set())
        assert node.exists()
        assert len(lists(kubelet, I915)) == before + 1


def no_instance_left() -> Notifier:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_without_inotify_everything_is_found_all_the_same(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            serving(machine, kubelet_dir, notifier=no_instance_left),
        ):
            await settled(kubelet, I915, {A})
            machine.add_gpu(B)
            await settled(kubelet, I915, {A, B})
            machine.remove_gpu(A)
            await settled(kubelet, I915, {B})
            await kubelet.restart()
            await settled(kubelet, I915, {B})
    assert sum("fs.inotify.max_user_instances" in line for line in lines) == 1


class Third:
    """A driver package of a third party."""

    def __init__(self, kernel_driver: str, *, broken: bool = False) -> None:
        self.kernel_driver = kernel_driver
        self.broken = broken

    @hookimpl
    def gpuplug_resource_name(self, gpu: Gpu) -> str | None:
        return f"example.com/{self.kernel_driver}" if gpu.kernel_driver == self.kernel_driver else None

    @hookimpl
    def gpuplug_health(self) -> Verdict:
        if self.broken:
            raise ValueError("out of order")
        return Verdict(healthy=True)


async def test_a_broken_driver_costs_its_own_gpus_and_no_others(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A, driver="amdgpu")
    machine.add_gpu(B, driver="nouveau")
    good, bad = Third("amdgpu"), Third("nouveau")
    loaded = from_modules({"good": good, "bad": bad})
    loaded = Loaded(loaded.drivers, (BrokenDriver("worse", "driver worse cannot be imported"),))
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            serving(machine, kubelet_dir, loaded=loaded, resync=0.05),
        ):
            await settled(kubelet, "example.com/amdgpu", {A}, sockets=2)
            await settled(kubelet, "example.com/nouveau", {B}, sockets=2)
            bad.broken = True
            machine.remove_node("card1")
            await settled(kubelet, "example.com/nouveau", set(), sockets=2)
            machine.add_gpu(C, driver="amdgpu")
            await settled(kubelet, "example.com/amdgpu", {A, C}, sockets=2)
    assert sum("driver worse is not used" in line for line in lines) == 1
    assert sum("driver bad: gpuplug_health raised ValueError: out of order" in line for line in lines) >= 1


async def test_a_node_of_a_gpu_that_goes_makes_it_unhealthy_and_it_recovers(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        await settled(kubelet, I915, {A, B})
        machine.devfs.remove("card0")
        await settled(kubelet, I915, {B})
        assert set(kubelet.resource(I915).devices) == {A, B}
        with pytest.raises(FakeKubeletError, match=f"FAILED_PRECONDITION: device {A} is unhealthy"):
            await kubelet.allocate(I915, [[A]])
        machine.devfs.add("card0")
        await settled(kubelet, I915, {A, B})


async def test_a_storm_of_changes_ends_with_the_truth(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpu(A)
    machine.add_gpu(D, driver="xe")
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        await settled(kubelet, I915, {A}, sockets=2)
        for number in range(20):
            machine.add_gpu(B, driver="xe" if number % 2 else "i915")
            if number % 7 == 0:
                await kubelet.restart()
            await anyio.sleep(0.001)
            machine.remove_gpu(B)
        machine.add_gpu(C, driver="i915")
        await settled(kubelet, I915, {A, C}, sockets=2)
        await settled(kubelet, XE, {D}, sockets=2)


async def test_sockets_of_a_process_that_was_killed_are_removed_at_the_start(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
        await settled(kubelet, I915, {A})
        (live,) = own_sockets(kubelet_dir)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(kubelet_dir / "gpuplug-i915-bd618a55-dead00-1.sock"))
        with heard() as lines:
            async with serving(machine, kubelet_dir):
                await kubelet.wait_for(lambda k: len(k.registrations) == 2)
                assert live in own_sockets(kubelet_dir)
                assert len(own_sockets(kubelet_dir)) == 2
        removed = "INFO removed what a killed process left behind: gpuplug-i915-bd618a55-dead00-1.sock"
        assert removed in lines
        await settled(kubelet, I915, {A})


async def test_it_ends_soon_in_the_middle_of_anything_and_gives_everything_back(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    machine.add_gpu(B, driver="xe")
    before = open_files()
    slowest = 0.0
    for milliseconds in range(0, 60, 3):
        async with running_kubelet(kubelet_dir):
            async with serving(machine, kubelet_dir):
                await anyio.sleep(milliseconds / 1000)
                began = time.monotonic()
            slowest = max(slowest, time.monotonic() - began)
            assert own_sockets(kubelet_dir) == []
    await eventually(lambda: open_files() == before, lambda: f"{open_files()} as before, {before}")
    assert slowest < 2


class Companionable:
    """A driver whose GPUs need /dev/kfd, too, where it is there."""

    @staticmethod
    @hookimpl
    def gpuplug_companion_nodes() -> list[str]:
        return ["/dev/kfd"]

    @staticmethod
    @hookimpl
    def gpuplug_resource_name() -> str:
        return I915

    @staticmethod
    @hookimpl
    def gpuplug_device_specs(gpu: Gpu) -> list[DeviceSpec]:
        beside = [DeviceSpec(n.path, n.host_path) for n in gpu.companions.values()]
        return [DeviceSpec(n.path, n.host_path) for n in gpu.nodes] + beside


async def test_a_companion_that_comes_later_is_seen_at_once_and_handed_out(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    loaded = from_modules({"companionable": Companionable})
    async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir, loaded=loaded):
        await kubelet.wait_for_devices(I915, {A})
        before = kubelet.resource(I915).latest
        machine.add_device("kfd")
        await kubelet.wait_for(lambda k: k.resource(I915).latest is not before)
        answer = (await kubelet.allocate(I915, [[A]])).container_responses[0]
        given = {spec.container_path: spec.host_path for spec in answer.devices}
        assert given["/dev/kfd"] == f"{machine.dev}/kfd"
        assert len(given) == 3
        (machine.dev / "kfd").unlink()
        answer = (await kubelet.allocate(I915, [[A]])).container_responses[0]
        assert "/dev/kfd" not in {spec.container_path for spec in answer.devices}


async def test_a_line_about_a_gpu_or_a_resource_has_it_as_a_key_too(
    machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A)
    found: list[tuple[str, dict[str, object]]] = []
    sink = logger.add(lambda m: found.append((m.record["message"], m.record["extra"])), level="INFO")
    try:
        async with running_kubelet(kubelet_dir) as kubelet, serving(machine, kubelet_dir):
            await settled(kubelet, I915, {A})
            machine.remove_gpu(A)
            await settled(kubelet, I915, set())
    finally:
        logger.remove(sink)
    assert {text.split(":")[0]: extra for text, extra in found if text.startswith("gpu.intel")} == {
        I915: {"resource": I915}
    }
    about = [extra for text, extra in found if text.startswith(A)]
    assert about == [{"gpu": A}] * 2


async def test_no_line_grows_with_the_number_of_devices(machine: Machine, kubelet_dir: Path) -> None:
    machine.add_gpus(32)
    await nodes_settle(machine)
    with heard("DEBUG") as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            serving(machine, kubelet_dir, shares=100),
        ):
            await kubelet.wait_for(lambda k: len(k.resource(I915).devices) == 3200)
            every = sorted(kubelet.resource(I915).devices)
            await kubelet.allocate(I915, [every])
            with pytest.raises(FakeKubeletError, match="NOT_FOUND"):
                await kubelet.allocate(I915, [[*every, "nosuch"]])
    assert len(lines) < 32 + 20
    assert max(map(len, lines)) < 200
