"""4. The kubelet, the plugin and containerd restart, with pods running: nothing is lost.

"Not lost" is strict: the same container as before, by its id, running and never restarted.
"""

import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from gpuplug.testing import Machine

from .harness import kubelet_http
from .harness.ledger import Ledger
from .harness.manifests import ContainerOrder
from .harness.node import Node
from .harness.plugins import I915, capacity, held, start_gpuplug
from .harness.program import Program
from .harness.releases import Release

pytestmark = pytest.mark.case("4 restarts of kubelet, plugin, containerd: no pod lost")

GPU = ContainerOrder("main", resources={I915: 1})
ADDRESSES = {"0000:03:00.0", "0000:04:00.0", "0000:05:00.0"}
SEED = 20_260
ROUNDS = 6


@dataclass(slots=True)
class Stack:
    """The three programs that may restart, and a pod that must not notice."""

    node: Node
    release: Release
    ledger: Ledger
    plugin: Program
    before: kubelet_http.Pod

    async def kubelet(self, number: signal.Signals) -> None:
        await self.node.program("kubelet").stop(number)
        kubelet = await self.node.start_kubelet()
        await self.node.kubelet_healthy(kubelet)
        await self.whole()
        self.ledger.measured("kubelet start → capacity, plugin already there", self.release, kubelet.age)

    async def gpuplug(self, number: signal.Signals) -> None:
        code = await self.plugin.stop(number)
        assert code == (0 if number is signal.SIGTERM else -number)
        await capacity(self.node, I915, 0)
        self.plugin = start_gpuplug(self.node)
        await self.whole()
        self.ledger.measured("plugin start → capacity", self.release, self.plugin.age)

    async def containerd(self, number: signal.Signals) -> None:
        await self.node.program("containerd").stop(number)
        await self.node.start_containerd()
        await self.whole()

    async def whole(self) -> None:
        """Wait for the full capacity, then see that the pod is the very same one and holds what it held."""
        assert set(await capacity(self.node, I915, len(ADDRESSES))) == ADDRESSES
        assert await self.node.running_pod("steady") == self.before
        assert [each.pod for each in await held(self.node)] == ["steady-node"]


@pytest.fixture
async def stack(node: Node, machine: Machine, release: Release, ledger: Ledger) -> Stack:
    for address in sorted(ADDRESSES):
        machine.add_gpu(address)
    plugin = start_gpuplug(node)
    await capacity(node, I915, len(ADDRESSES))
    node.order("steady", GPU)
    return Stack(node, release, ledger, plugin, await node.running_pod("steady"))


async def still_works(stack: Stack) -> None:
    """Give a new pod a GPU that the first one does not hold."""
    stack.node.order("new", GPU)
    await stack.node.running_pod("new")
    ids = [identity for each in await held(stack.node) for identity in each.ids]
    assert len(ids) == len(set(ids)) == 2
    assert await stack.node.running_pod("steady") == stack.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "what", [Stack.kubelet, Stack.gpuplug, Stack.containerd], ids=lambda what: what.__name__
)
async def test_a_restart_loses_no_pod_and_the_capacity_returns(
    stack: Stack, what: Callable[[Stack, signal.Signals], Awaitable[None]], number: signal.Signals
) -> None:
    await what(stack, number)
    await still_works(stack)


async def test_restarts_in_random_order_lose_no_pod(stack: Stack) -> None:
    chance = random.Random(SEED)
    done = []
    for _ in range(ROUNDS):
        what = chance.choice([stack.kubelet, stack.gpuplug, stack.containerd])
        number = chance.choice([signal.SIGTERM, signal.SIGKILL])
        done.append(f"{what.__name__} {number.name}")
        try:
            await what(number)
        except AssertionError as error:
            error.add_note(f"seed {SEED}, restarts so far: {', '.join(done)}")
            raise
    await still_works(stack)


async def test_the_capacity_is_there_soon_after_a_cold_start(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    """Both come up at once, as after a reboot; nobody waits for anybody but the plugin for the kubelet."""
    machine.add_gpu("0000:03:00.0")
    await node.program("kubelet").stop()
    start_gpuplug(node)
    began = time.monotonic()
    await node.start_kubelet()
    await capacity(node, I915, 1)
    ledger.measured("kubelet start → capacity, cold", release, time.monotonic() - began)
