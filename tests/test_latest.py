"""The newest value reaches every reader, and no reader holds up another."""

from __future__ import annotations

import anyio
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.latest import Latest


def test_a_new_cell_has_its_first_value_as_version_0() -> None:
    cell = Latest("a")
    assert (cell.value, cell.version) == ("a", 0)


@given(values=st.lists(st.integers(), max_size=9))
def test_each_setting_counts_even_of_an_equal_value(values: list[int]) -> None:
    cell = Latest(0)
    for value in values:
        cell.set(value)
    assert cell.version == len(values)
    assert cell.value == [0, *values][-1]


async def test_whoever_has_seen_nothing_gets_the_value_at_once() -> None:
    cell = Latest("a")
    with anyio.fail_after(1):
        assert await cell.newer(-1) == (0, "a")


async def test_a_reader_waits_for_what_it_has_not_seen() -> None:
    cell = Latest("a")
    with anyio.move_on_after(0.01) as waiting:
        await cell.newer(0)
    assert waiting.cancelled_caught


async def test_a_setting_wakes_all_readers_and_a_slow_one_skips_what_is_outdated() -> None:
    cell = Latest("a")
    got: list[tuple[int, str]] = []

    async def read() -> None:
        got.append(await cell.newer(0))

    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            cell.set("b")
            cell.set("c")
    assert got == [(2, "c")] * 3


async def test_a_reader_that_is_cancelled_leaves_the_others_waiting_well() -> None:
    cell = Latest("a")
    got: list[tuple[int, str]] = []

    async def read() -> None:
        got.append(await cell.newer(0))

    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            with anyio.move_on_after(0.001):
                await cell.newer(0)
            cell.set("b")
    assert got == [(1, "b")]
