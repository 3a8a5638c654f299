"""GPUs that are torn out: gone first, and the kernel hears of it afterwards."""

import subprocess

from tests.vm.guest.asking import asked_on_and_on, bearer
from tests.vm.guest.gpus import DRI, Gpus
from tests.vm.guest.serving import I915, Witnesses

ROUNDS = 3


def torn_out() -> int:
    """Count how often the kernel was taken by surprise, by its own word."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    assert "will power off" not in said, "it was asked"
    return said.count("): Card not present")


async def test_a_gpu_that_is_torn_out_while_it_is_asked_for_costs_no_other(
    gpus: Gpus, watched: Witnesses
) -> None:
    steady, flighty = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {steady, flighty})
    before = torn_out()
    async with asked_on_and_on(watched.each[0], steady, flighty) as asked:
        for _ in range(ROUNDS):
            await asked.again("given")
            await gpus.tear_out(1)
            await watched.come_to_have(I915, {steady})
            await asked.again("refused")
            await gpus.plug(1)
            await watched.come_to_have(I915, {steady, flighty})
    assert torn_out() == before + ROUNDS
    assert {bearer(path) for path in (await watched.each[0].allocated(I915, flighty)).values()} == {flighty}


async def test_all_gpus_that_are_torn_out_at_once_take_the_folder_with_them_and_may_come_back(
    gpus: Gpus, watched: Witnesses
) -> None:
    addresses = {await gpus.plug(slot) for slot in range(4)}
    await watched.come_to_have(I915, addresses)
    before = torn_out()
    await gpus.tear_out(0, 1, 2, 3)
    await watched.come_to_have(I915, set())
    assert torn_out() == before + len(addresses)
    assert not DRI.exists()
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
