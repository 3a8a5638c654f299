"""GPUs that go at the worst moment, and that come all at once."""

import pytest

from .asking import asked_on_and_on, bearer
from .gpus import Gpus
from .serving import I915, Witnesses


async def test_a_gpu_that_vanishes_while_it_is_asked_for_costs_no_other(
    gpus: Gpus, watched: Witnesses
) -> None:
    steady, flighty = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {steady, flighty})
    async with asked_on_and_on(watched.each[0], steady, flighty) as asked:
        for _ in range(5):
            await asked.again("given")
            await gpus.unbind(flighty)
            await watched.come_to_have(I915, {steady})
            await asked.again("refused")
            await gpus.bind(flighty, "i915")
            await watched.come_to_have(I915, {steady, flighty})
    assert {bearer(path) for path in (await watched.each[0].allocated(I915, flighty)).values()} == {flighty}


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
