"""Work that asks drivers: a call that does not return is given up, and what is printed goes nowhere."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import anyio
import pytest

from gpuplug.asking import Asking
from gpuplug.plugins import attempt
from gpuplug.plugins.attempt import asked, patiently
from tests.running import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = 0.04


class Stuck:
    """Something to ask that does not return, until it has been given up."""

    def __init__(self, hang: Callable[[], object]) -> None:
        self.hang = hang
        self.words: list[str] = []
        self.ended = threading.Event()

    def work(self) -> str:
        if self.words:
            return "done without it"
        try:
            with asked(self.words.append, "hook x", QUICK):
                self.hang()
        finally:
            self.ended.set()
        return "it returned"


def circle() -> None:
    while True:
        pass


def long_sleep() -> None:
    """Sleep much longer than the limit; whoever sleeps is not told to end, and ends by returning."""
    for _ in range(50):
        time.sleep(0.01)


@pytest.mark.parametrize("hang", [circle, long_sleep])
def test_a_call_that_does_not_return_is_given_up_and_its_thread_ends(hang: Callable[[], None]) -> None:
    stuck = Stuck(hang)
    out = sys.stdout
    assert patiently(stuck.work) == "done without it"
    assert stuck.words == ["hook x did not return within 0.04 seconds"]
    assert sys.stdout is out
    assert stuck.ended.wait(5), "the thread ends"


@pytest.mark.parametrize("hang", [circle, long_sleep])
async def test_the_event_loop_goes_on_meanwhile(hang: Callable[[], None]) -> None:
    told: list[str] = []
    ask = Asking(lambda: told.append("given up"))
    stuck = Stuck(hang)
    turns = 0
    async with anyio.create_task_group() as tasks:

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.sleep(0.005)

        tasks.start_soon(count)
        assert await ask(stuck.work) == "done without it"
        tasks.cancel_scope.cancel()
    assert (told, len(stuck.words)) == (["given up"], 1)
    assert turns > 2


def test_who_is_part_of_another_call_is_named_to_that_one_too() -> None:
    outer: list[str] = []
    stuck = Stuck(circle)

    def work() -> str:
        with asked(outer.append, "the import", 5):
            return stuck.work()

    assert patiently(work) == "done without it"
    assert outer == stuck.words == ["hook x did not return within 0.04 seconds"]


def test_many_quick_calls_one_after_the_other_are_not_one_long_call() -> None:
    words: list[str] = []

    def work() -> int:
        for _ in range(30):
            with asked(words.append, "hook x", QUICK):
                time.sleep(QUICK / 10)
        return 30

    assert patiently(work) == 30
    assert words == []


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_the_work_raises_comes_out(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        patiently(work)
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            await Asking()(work)


async def test_whoever_is_cancelled_does_not_wait_for_the_thread() -> None:
    go = threading.Event()
    began = time.monotonic()
    with anyio.move_on_after(0.02):
        await Asking()(lambda: go.wait(10))
    assert time.monotonic() - began < 5
    go.set()


async def test_questions_are_asked_one_at_a_time() -> None:
    ask = Asking()
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)
        inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask, work)
    assert most == 1


async def test_a_thread_that_ends_after_the_loop_has_ended_hurts_nobody() -> None:
    go = threading.Event()
    threads = set(threading.enumerate())

    def in_a_loop_of_its_own() -> None:
        async def leave() -> None:
            with anyio.move_on_after(0.01):
                await Asking()(lambda: go.wait(10))

        anyio.run(leave)

    await anyio.to_thread.run_sync(in_a_loop_of_its_own)
    go.set()
    await eventually(
        lambda: not any(t.name == "gpuplug drivers" for t in set(threading.enumerate()) - threads),
        lambda: str(threading.enumerate()),
    )


def test_what_is_printed_while_a_driver_is_asked_is_kept_and_what_others_print_is_not() -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        with asked(print, "hook x") as heard:
            print("to standard output")
            print("to standard error", file=sys.stderr)
            sys.stdout.flush()
            other = threading.Thread(
                target=lambda: (print("other", flush=True), print("err", file=sys.stderr))
            )
            other.start()
            other.join()
            with asked(print, "a hook within") as inner:
                print("x" * 1000)
        print("afterwards")
    assert out.getvalue() == "other\nafterwards\n"
    assert err.getvalue() == "err\n"
    assert heard is inner
    assert heard.text.startswith("to standard output\nto standard error\nxxx")
    assert len(heard.text) < 2000


def test_a_driver_that_takes_standard_output_away_keeps_it_from_nobody() -> None:
    theirs, ours = io.StringIO(), sys.stdout
    with asked(print, "hook x"):
        sys.stdout = theirs
    assert sys.stdout is theirs, "others may have put another stream there: it is not ours to decide"
    sys.stdout = ours


def test_nothing_of_a_call_is_left_when_it_is_over() -> None:
    with asked(print, "hook x"):
        assert len(attempt._inside) == 1
    assert attempt._inside == {}
