"""The kernel gives a node's number to the next one that comes; a Device id stays with the bus address."""

from gpuplug.testing import FakeKubeletError

from .asking import bearer
from .gpus import DRI, Gpus
from .serving import AMD, I915, Witness, Witnesses


async def opened_nodes_belong_to(witness: Witness, resource: str, address: str) -> dict[str, str]:
    """Ask for a GPU; what comes must be all of its nodes and no other's. Returns them by path."""
    nodes = await witness.allocated(resource, address)
    assert nodes
    assert {bearer(path) for path in nodes.values()} == {address}
    assert all(inside == outside for inside, outside in nodes.items())
    return nodes


async def test_numbers_reused_in_another_order_leave_ids_alone_and_allocate_names_the_new_nodes(
    gpus: Gpus, watched: Witnesses
) -> None:
    first, second = await gpus.plug(0), None
    await watched.come_to_have(I915, {first})
    second = await gpus.plug(1)
    await watched.come_to_have(I915, {first, second})
    before = {address: gpus.nodes(address) for address in (first, second)}
    await gpus.unbind(first)
    await gpus.unbind(second)
    await watched.come_to_have(I915, set())
    await gpus.bind(second, "i915")
    await gpus.bind(first, "i915")
    await watched.come_to_have(I915, {first, second})
    assert gpus.nodes(first) == before[second]
    assert gpus.nodes(second) == before[first]
    for witness in watched.each:
        for address in (first, second):
            nodes = await opened_nodes_belong_to(witness, I915, address)
            assert set(nodes) == {str(node.path) for node in gpus.nodes(address).values()}


async def test_an_allocate_right_after_renumbering_names_the_right_nodes_or_none(
    gpus: Gpus, watched: Witnesses
) -> None:
    first, second = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {first, second})
    await gpus.unbind(first)
    await gpus.unbind(second)
    await gpus.bind(second, "i915")
    await gpus.bind(first, "i915")
    for witness in watched.each:
        for address in (first, second):
            try:
                await opened_nodes_belong_to(witness, I915, address)
            except FakeKubeletError as error:
                assert address in str(error)  # noqa: PT017 - gone, for all that it knows yet
    await watched.come_to_have(I915, {first, second})


async def test_card_and_render_numbers_need_not_be_in_step(gpus: Gpus, watched: Witnesses) -> None:
    gpus.behave(nodes=2)
    display = await gpus.plug(0, "amdgpu")
    await gpus.bound(display, "amdgpu")
    assert set(gpus.nodes(display)) == {"card"}
    gpus.behave(nodes=0)
    address = await gpus.plug(1)
    await watched.come_to_have(I915, {address})
    await watched.come_to_have(AMD, {display})
    assert {name: node.name for name, node in gpus.nodes(address).items()} == {
        "card": "card1",
        "renderD": "renderD128",
    }
    for witness in watched.each:
        assert set(await opened_nodes_belong_to(witness, I915, address)) == {
            str(DRI / "card1"),
            str(DRI / "renderD128"),
        }
        assert set(await opened_nodes_belong_to(witness, AMD, display)) == {str(DRI / "card0")}
