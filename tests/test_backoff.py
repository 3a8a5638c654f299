"""Pauses between tries: never shorter than the floor, never longer than the ceiling."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.backoff import CEILING, FLOOR, Backoff


@given(failures=st.integers(0, 10**9), chance=st.floats(0, 1))
def test_a_pause_is_between_floor_and_ceiling(failures: int, chance: float) -> None:
    assert FLOOR <= Backoff(failures).delay(chance) <= CEILING


@given(failures=st.integers(0, 30))
def test_chance_takes_at_most_half_of_a_pause_away(failures: int) -> None:
    state = Backoff(failures)
    assert state.delay(0) == max(FLOOR, state.delay(1) / 2)


@given(failures=st.integers(0, 30), chance=st.floats(0, 1), other=st.floats(0, 1))
def test_pauses_grow_with_failures_and_with_chance(failures: int, chance: float, other: float) -> None:
    low, high = sorted((chance, other))
    assert Backoff(failures).delay(low) <= Backoff(failures).delay(high)
    assert Backoff(failures).delay(chance) <= Backoff(failures).failed().delay(chance)


def test_pauses_double_until_the_ceiling() -> None:
    state, pauses = Backoff(), []
    for _ in range(14):
        pauses.append(state.delay(1))
        state = state.failed()
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert pauses[11:] == [20.48, 30.0, 30.0]
