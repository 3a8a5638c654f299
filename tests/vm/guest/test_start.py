"""gpuplug starts on a machine that has its GPUs already, or none."""

import pytest

from .gpus import Gpus
from .launch import DAEMON_SET
from .serving import I915, Witnesses, witness


async def test_a_cold_start_without_a_gpu_says_so_and_lists_the_first_that_comes(
    gpus: Gpus, watched: Witnesses
) -> None:
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    for (
        started
    ) in watched.each:  # long ago, when there was no GPU, no /dev/dri, and not even DRM in the kernel
        told = [line for line in started.said().splitlines() if "no GPU" in line or "advertised" in line]
        assert "no GPU" in told[0]


@pytest.mark.parametrize("count", [1, 4])
async def test_a_cold_start_finds_all_gpus_that_are_there(gpus: Gpus, count: int) -> None:
    addresses = {await gpus.plug(slot) for slot in range(count)}
    for address in addresses:
        await gpus.bound(address, "i915")
    async with witness(f"cold {count}", DAEMON_SET) as started:
        await started.comes_to_have(I915, addresses)
