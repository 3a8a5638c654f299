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


@given(failures=st.integers(1, 30), pause=st.floats(0, 30), steady=st.floats(0, 60), more=st.floats(0, 60))
def test_a_success_that_was_steady_and_outlasted_the_pause_makes_the_next_failure_the_first(
    failures: int, pause: float, steady: float, more: float
) -> None:
    enough = max(steady, 4 * pause)
    assert Backoff(failures).after(enough + more, pause=pause, steady=steady) == Backoff()


def test_a_success_that_a_rivals_pause_explains_does_not_make_a_retry_quick_again() -> None:
    state = Backoff(6)
    assert state.after(0.1, pause=0.16, steady=0.05) == state
    assert state.after(0.63, pause=0.16, steady=0.05) == state
    assert state.after(0.1, pause=0.01, steady=5) == state
