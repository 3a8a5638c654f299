"""Whatever happens in whatever order: once it is over, the kubelet has what the machine has.

Hypothesis draws what happens to the GPUs, to the kubelet, to the sockets and to the streams.
gpuplug runs as it does on a node, with real sockets and real inotify, on an event loop of its own.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuplug import app
from gpuplug.kubelet.endpoint import Phase
from gpuplug.plugins.loader import load
from gpuplug.settings import Settings
from gpuplug.testing import FakeKubelet, FakeKubeletError, Machine
from tests.folders import MEMORY
from tests.running import I915, XE, own_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from gpuplug.kubelet.endpoint import Endpoints

INSTALLED = load()
ADDRESSES = ("0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:06:00.0")
NAMES = {"i915": I915, "xe": XE}
SETTLED_IN = 15.0
"""Seconds after which what has not settled never will; mostly it takes hundredths of one."""

MOST_LOSSES = 6
"""From one kubelet; after each the next pause is twice as long."""

drivers = st.sampled_from(["i915", "xe"])
kinds = st.sampled_from(["before", "after"])


class Node:
    """A node: its machine, its kubelet, and gpuplug."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder / "machine")
        self.directory = folder / "kubelet"
        self.directory.mkdir()
        self.endpoints: Endpoints | None = None
        self.kubelet: FakeKubelet | None = None
        self.closing = anyio.Event()

    async def serve(self) -> None:
        """Run gpuplug until the node is closed."""
        chosen = Settings(prefix=str(self.machine.root), kubelet_dir=str(self.directory))
        async with anyio.create_task_group() as tasks:
            self.endpoints = await tasks.start(app.serve, chosen, INSTALLED)
            await self.closing.wait()
            tasks.cancel_scope.cancel()

    async def close(self) -> None:
        self.closing.set()


class Everything(RuleBasedStateMachine):
    """All that can happen to a node."""

    node: Node
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="gp-", dir=MEMORY)
        self.loop = start_blocking_portal()
        self.portal = self.loop.__enter__()
        self.node = self.portal.call(Node, Path(self.folder.name))
        self.served = self.portal.start_task_soon(self.node.serve)
        self.gpus: dict[str, str] = {}
        self.losses = 0
        self.living: AbstractContextManager[FakeKubelet] | None = None

    @initialize(kind=kinds, plugged=st.dictionaries(st.sampled_from(ADDRESSES), drivers, max_size=2))
    def begin(self, kind: Literal["before", "after"], plugged: dict[str, str]) -> None:
        for address, driver in plugged.items():
            self.plug(address, driver)
        self.start_kubelet(kind)

    def once_more(self) -> bool:
        """Allow so many losses in a row that the back-off stays below a second."""
        self.losses += 1
        return self.losses <= MOST_LOSSES

    def start_kubelet(self, kind: Literal["before", "after"]) -> None:
        self.losses = 0
        kubelet = FakeKubelet(self.node.directory, dial_back=kind)
        self.living = self.portal.wrap_async_context_manager(kubelet)
        self.node.kubelet = self.living.__enter__()

    def stop_kubelet(self) -> None:
        if self.living is not None:
            self.living.__exit__(None, None, None)
        self.living = None

    @property
    def kubelet(self) -> FakeKubelet:
        assert self.node.kubelet is not None
        return self.node.kubelet

    def expected(self) -> dict[str, set[str]]:
        return {
            name: {address for address, driver in self.gpus.items() if NAMES[driver] == name}
            for name in NAMES.values()
        }

    # what happens to the machine

    @rule(address=st.sampled_from(ADDRESSES), driver=drivers)
    def plug(self, address: str, driver: str) -> None:
        if address not in self.gpus:
            self.node.machine.add_gpu(address, driver=driver)
            self.gpus[address] = driver

    @precondition(lambda self: self.gpus)
    @rule(data=st.data())
    def unplug(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.gpus)))
        self.node.machine.remove_gpu(address)
        del self.gpus[address]

    @precondition(lambda self: self.gpus)
    @rule(data=st.data())
    def rebind(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.gpus)))
        self.gpus[address] = "xe" if self.gpus[address] == "i915" else "i915"
        self.node.machine.rebind(address, self.gpus[address])

    # what happens to the kubelet and to the sockets

    @rule(kind=kinds)
    def another_kubelet(self, kind: Literal["before", "after"]) -> None:
        self.stop_kubelet()
        self.start_kubelet(kind)

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        self.losses = 0
        self.portal.call(lambda: self.kubelet.restart(remove_socket=orderly))

    @rule(change=st.sampled_from(["plug", "unplug", "nothing"]))
    def restart_while_something_changes(self, change: str) -> None:
        self.portal.call(self.kubelet.stop)
        if change == "plug" and len(self.gpus) < len(ADDRESSES):
            self.plug(min(set(ADDRESSES) - set(self.gpus)), "i915")
        elif change == "unplug" and self.gpus:
            address = min(self.gpus)
            self.node.machine.remove_gpu(address)
            del self.gpus[address]
        self.losses = 0
        self.portal.call(self.kubelet.start)

    def lose(self, names: Iterable[str], how: Callable[[], object]) -> None:
        """Do what costs these resources their connection; wait until each has registered again.

        Until then all may look as before: the next rule would find the connection going away.
        """
        kubelet = self.kubelet
        before = {name: len(kubelet.registered(name)) for name in names}

        async def lose() -> None:
            result = how()
            if inspect.isawaitable(result):
                await result
            await kubelet.wait_for(
                lambda k: all(len(k.registered(name)) > count for name, count in before.items()),
                within=SETTLED_IN,
            )

        self.portal.call(lose)

    @rule()
    def make_the_kubelets_socket_anew(self) -> None:
        self.losses = 0
        served = self.node.endpoints.states if self.node.endpoints is not None else ()
        self.lose(served, self.kubelet.recreate_socket)

    @rule()
    def delete_our_sockets(self) -> None:
        for name in own_sockets(self.node.directory) if self.once_more() else ():
            (self.node.directory / name).unlink(missing_ok=True)

    @rule(name=st.sampled_from([I915, XE]), whole=st.booleans())
    def lose_a_stream(self, name: str, whole: bool) -> None:
        drop = self.kubelet.break_connection if whole else self.kubelet.drop_stream
        if self.kubelet.resource(name).connected and self.once_more():
            self.lose([name], lambda: drop(name))

    @rule(name=st.sampled_from([I915, XE]))
    def refuse_and_accept(self, name: str) -> None:
        if not self.kubelet.resource(name).connected or not self.once_more():
            return
        self.kubelet.faults.refuse = "not now"
        self.lose([name], lambda: self.kubelet.drop_stream(name))
        assert self.kubelet.registered(name)[-1].error == "not now"
        self.kubelet.faults.refuse = ""

    # what a pod does

    @precondition(lambda self: self.gpus)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.gpus)))
        name = NAMES[self.gpus[address]]
        answer = self.portal.call(lambda: self.kubelet.allocate(name, [[address]]))
        (container,) = answer.container_responses
        nodes = {f"/dev/dri/{node}" for node in self.node.machine.nodes_of(address)}
        assert {spec.container_path for spec in container.devices} == nodes
        assert container.envs["GPUPLUG_GPUS"] == address

    @precondition(lambda self: len(self.gpus) < len(ADDRESSES))
    @rule()
    def allocate_what_is_gone(self) -> None:
        gone = min(set(ADDRESSES) - set(self.gpus))
        if self.kubelet.resource(I915).connected:
            with pytest.raises(FakeKubeletError, match=f"has no device {gone}"):
                self.portal.call(lambda: self.kubelet.allocate(I915, [[gone]]))

    # what is true when it is over

    @invariant()
    def the_kubelet_has_what_the_machine_has(self) -> None:
        if self.living is None:
            return
        until = time.monotonic() + SETTLED_IN
        while (fault := self.portal.call(self.fault)) and time.monotonic() < until:
            time.sleep(0.002)
        assert not fault, f"{fault}; the kubelet has: {self.kubelet}; the folder has: {self.files()}"

    def files(self) -> list[str]:
        return sorted(path.name for path in self.node.directory.iterdir())

    def fault(self) -> str:
        """Say what is not as it should be (yet)."""
        states = self.node.endpoints.states if self.node.endpoints is not None else {}
        served = set(states)
        expected = self.expected()
        if missing := {name for name, devices in expected.items() if devices} - served:
            return f"{missing} not served"
        for name in served:
            there = self.kubelet.resource(name)
            if not there.connected or there.streams != 1 or there.latest is None:
                return f"{name} not followed over one stream"
            if there.healthy != expected[name] or set(there.devices) != expected[name]:
                return f"{name} has {sorted(there.devices)}, not {sorted(expected[name])}"
        for name, state in states.items():
            if state.phase is not Phase.STREAMING:
                return f"{name}: {state}"
        registered = {self.kubelet.registered(name)[-1].endpoint for name in served}
        ours = set(own_sockets(self.node.directory))
        return "" if ours == registered else f"sockets {ours}, registered {registered}"

    def teardown(self) -> None:
        try:
            self.portal.call(self.node.close)
            self.served.result(timeout=SETTLED_IN)
            left = own_sockets(self.node.directory)
            self.stop_kubelet()
        finally:
            self.loop.__exit__(None, None, None)
            self.folder.cleanup()
        assert left == []


TestEverything = Everything.TestCase
TestEverything.settings = settings(
    max_examples=15,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
