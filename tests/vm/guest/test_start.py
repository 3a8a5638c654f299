"""gpuplug starts on a machine that has its GPUs already, or none."""

import pytest

from .gpus import DRI, Gpus
from .serving import DAEMON_SET, I915, witness


@pytest.mark.parametrize("count", [0, 1, 4])
async def test_a_cold_start_finds_all_gpus_that_are_there(gpus: Gpus, count: int) -> None:
    addresses = {await gpus.plug(slot) for slot in range(count)}
    for address in addresses:
        await gpus.bound(address, "i915")
    async with witness(f"cold {count}", DAEMON_SET) as started:
        await started.comes_to_have(I915, addresses)
        if not count:
            assert not DRI.exists()
            first = await gpus.plug(0)
            await started.comes_to_have(I915, {first})
