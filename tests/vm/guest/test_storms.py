"""GPUs that go at the worst moment, that flap, and that come all at once."""

import time
from collections import Counter
from typing import Final

import anyio
import anyio.lowlevel
import pytest

from gpuplug.testing import FakeKubeletError

from .gpus import Gpus
from .serving import I915, Witness, Witnesses
from .test_numbers import bearer

FLAPPING_SECONDS: Final = 60
FLAPS_PER_SECOND: Final = 20


async def _ask_on_and_on(witness: Witness, address: str, outcomes: Counter[str]) -> None:
    """Ask for a GPU until cancelled. An answer must name nodes, an error must name the GPU."""
    while True:
        try:
            nodes = await witness.allocated(I915, address)
        except FakeKubeletError as error:
            assert address in str(error)  # noqa: PT017 - one of many outcomes
            outcomes["refused"] += 1
        else:
            assert nodes
            outcomes["answered"] += 1
        await anyio.lowlevel.checkpoint()


async def test_a_gpu_that_vanishes_while_it_is_asked_for_costs_no_other(
    gpus: Gpus, watched: Witnesses
) -> None:
    steady, flighty = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {steady, flighty})
    witness = watched.each[0]
    outcomes: dict[str, Counter[str]] = {steady: Counter(), flighty: Counter()}
    async with anyio.create_task_group() as tasks:
        for address, seen in outcomes.items():
            tasks.start_soon(_ask_on_and_on, witness, address, seen)
        for _ in range(5):
            await gpus.unbind(flighty)
            await watched.come_to_have(I915, {steady})
            await gpus.bind(flighty, "i915")
            await watched.come_to_have(I915, {steady, flighty})
        tasks.cancel_scope.cancel()
    assert outcomes[steady]["answered"] > 0
    assert not outcomes[steady]["refused"]
    assert min(outcomes[flighty]["answered"], outcomes[flighty]["refused"]) > 0
    assert {bearer(path) for path in (await witness.allocated(I915, flighty)).values()} == {flighty}


async def test_a_gpu_that_flaps_for_a_minute_harms_no_other_and_is_right_in_the_end(
    gpus: Gpus, watched: Witnesses
) -> None:
    steady, flapping = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {steady, flapping})
    begin, flaps = time.monotonic(), 0
    while (now := time.monotonic()) < begin + FLAPPING_SECONDS:
        await anyio.sleep(max(0.0, begin + flaps / FLAPS_PER_SECOND - now))
        await (gpus.bind(flapping, "i915") if flaps % 2 else gpus.unbind(flapping))
        flaps += 1
    if flaps % 2:
        await gpus.bind(flapping, "i915")
    await watched.come_to_have(I915, {steady, flapping})
    for witness in watched.each:
        resource = witness.kubelet.resource(I915)
        assert len(witness.kubelet.registered(I915)) <= 2, "it had to register again"
        late = [each for each in resource.lists if each.at > begin]
        assert all(each.devices[steady].healthy for each in late)
        assert {bearer(path) for path in (await witness.allocated(I915, flapping)).values()} == {flapping}


@pytest.mark.parametrize("count", [16])
async def test_gpus_that_all_come_at_once_are_all_listed(gpus: Gpus, watched: Witnesses, count: int) -> None:
    gpus.unload()
    addresses = {await gpus.plug(slot) for slot in range(count)}
    for address in addresses:
        await gpus.there(address)
    gpus.load()
    await watched.come_to_have(I915, addresses)
    gpus.unload()
    await watched.come_to_have(I915, set())
