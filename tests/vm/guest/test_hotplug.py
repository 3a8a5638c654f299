"""GPUs are plugged in and pulled out, and their drivers are bound, unbound and exchanged."""

from .asking import bearer
from .gpus import DRI, Gpus
from .serving import AMD, I915, XE, Witnesses


async def test_a_gpu_that_is_plugged_in_is_listed_and_one_that_is_pulled_out_is_not(
    gpus: Gpus, watched: Witnesses
) -> None:
    intel = await gpus.plug(0, "i915")
    await watched.come_to_have(I915, {intel})
    other = await gpus.plug(1, "i915")
    await watched.come_to_have(I915, {intel, other})
    await gpus.unplug(0)
    await watched.come_to_have(I915, {other})
    newer = await gpus.plug(2, "xe")
    await watched.come_to_have(XE, {newer})


async def test_the_last_gpu_goes_and_comes_back_twenty_times(gpus: Gpus, watched: Witnesses) -> None:
    assert not DRI.exists()
    address = await gpus.plug(0)
    for _ in range(20):
        await watched.come_to_have(I915, {address})
        assert DRI.exists()
        await gpus.unbind(address)
        assert not DRI.exists()
        await watched.come_to_have(I915, set())
        await gpus.bind(address, "i915")


async def test_a_gpu_that_is_rebound_leaves_one_resource_and_appears_in_the_other(
    gpus: Gpus, watched: Witnesses
) -> None:
    first, second = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {first, second})
    await gpus.rebind(second, "xe")
    await watched.come_to_have(XE, {second})
    await watched.come_to_have(I915, {first})
    await gpus.rebind(second, "i915")
    await watched.come_to_have(I915, {first, second})
    await watched.come_to_have(XE, set())


async def test_gpus_of_several_vendors_are_each_listed_by_the_driver_package_for_them(
    gpus: Gpus, watched: Witnesses
) -> None:
    intel, amd, unknown = await gpus.plug(0), await gpus.plug(1, "amdgpu"), await gpus.plug(2, "foogpu")
    await watched.come_to_have(AMD, {amd})
    await watched.come_to_have(I915, {intel})
    await watched.logged(f"{unknown}: not advertised: no driver package claims kernel driver foogpu")
    for witness in watched.each:
        nodes = await witness.allocated(AMD, amd)
        assert {bearer(path) for path in nodes.values()} == {amd}
        assert len(nodes) == len(gpus.nodes(amd))
    await gpus.unplug(1)
    await watched.come_to_have(AMD, set())
    await watched.come_to_have(I915, {intel})
