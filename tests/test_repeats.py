"""What fails again in the same way is said once, and counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.repeats import Repeats


def test_a_failure_is_said_once_and_counted_until_it_is_different() -> None:
    repeats = Repeats()
    assert [repeats.news("a", text) for text in ("no", "no", "no", "never", "", "")] == [
        "no",
        None,
        None,
        "never; before that, 3 times: no",
        "well again",
        None,
    ]


def test_subjects_are_apart() -> None:
    repeats = Repeats()
    assert repeats.news("a", "no") == repeats.news("b", "no") == "no"


@given(texts=st.lists(st.sampled_from(["", "x", "y"])))
def test_something_is_said_exactly_when_it_is_another_thing_than_before(texts: list[str]) -> None:
    repeats = Repeats()
    said = [repeats.news("a", text) is not None for text in texts]
    assert said == [text != before for text, before in zip(texts, ["", *texts], strict=False)]
