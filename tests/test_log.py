"""The log: lines for people or for machines, and the standard logging goes the same way."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
from loguru import logger

from gpuplug.log import set_up

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logger.remove()
    logger.add(sys.__stderr__ or sys.stderr)


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_is_one_line_with_time_level_and_message() -> None:
    stream = io.StringIO()
    set_up("info", "text", stream)
    logger.info("{} <red>and</red> {{}}", "{x}")
    assert stream.getvalue().endswith(" INFO    {x} <red>and</red> {}\n")
    assert stream.getvalue()[:2] == "20"


def test_json_is_one_object_a_line_with_time_level_message_and_what_was_bound() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream)
    logger.bind(gpu="0000:03:00.0", path=io).warning("two\nlines, ä and {}", "{x}")
    logger.info("next")
    first, second = logged(stream)
    assert first.pop("time").startswith("20")
    assert first.pop("path") == str(io)
    assert first == {"level": "warning", "message": "two\nlines, ä and {x}", "gpu": "0000:03:00.0"}
    assert second["message"] == "next"


@pytest.mark.parametrize("format_", ["text", "json"])
def test_what_is_below_the_level_is_not_logged(format_: str) -> None:
    stream = io.StringIO()
    set_up("warning", format_, stream)
    logger.info("quiet")
    logging.getLogger("lib").info("quiet")
    assert stream.getvalue() == ""


def fail() -> None:
    raise KeyError("secret of a local variable")


@pytest.mark.parametrize("message", ["it failed", "it failed\nin two lines"])
def test_an_exception_is_logged_with_its_traceback(message: str) -> None:
    text, machine = io.StringIO(), io.StringIO()
    for format_, stream in (("text", text), ("json", machine)):
        set_up("info", format_, stream)
        try:
            fail()
        except KeyError:
            logger.exception(message)
    (record,) = logged(machine)
    assert record["message"] == message
    assert record["exception"].startswith("Traceback (most recent call last):")
    assert record["exception"].endswith("KeyError: 'secret of a local variable'")
    assert message in text.getvalue()
    assert "Traceback" in text.getvalue()


def test_the_standard_logging_goes_the_same_way() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream)
    library = logging.getLogger("lib")
    library.error("lost %s", "{it}")
    library.info("of no interest")
    library.log(35, "between two levels")
    try:
        fail()
    except KeyError:
        library.exception("and why")
    lines = logged(stream)
    assert [(line["level"], line["message"]) for line in lines] == [
        ("error", "lib: lost {it}"),
        ("warning", "lib: between two levels"),
        ("error", "lib: and why"),
    ]
    assert "KeyError" in lines[2]["exception"]


def test_a_library_whose_arguments_do_not_fit_is_logged_and_not_failed() -> None:
    stream = io.StringIO()
    set_up("info", "json", stream)
    logging.getLogger("lib").warning("lost %d", "it")
    assert logged(stream)[0]["message"] == "lib: 'lost %d' with arguments that do not fit"


def test_trace_lets_libraries_say_all() -> None:
    stream = io.StringIO()
    set_up("trace", "json", stream)
    logging.getLogger("lib").debug("detail")
    logger.trace("more")
    assert [line["level"] for line in logged(stream)] == ["debug", "trace"]
    set_up("info", "json", stream)
    logging.getLogger("lib").info("quiet again")
    assert len(logged(stream)) == 2


def test_without_a_stream_it_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    logger.info("here")
    assert capsys.readouterr().err.endswith("here\n")
    logger.remove()


def test_the_level_changes_from_what_was_chosen_to_all_and_back() -> None:
    stream = io.StringIO()
    log = set_up("info", "json", stream)
    library = logging.getLogger("lib")
    for number in range(5):
        library.info("%d", number)
        logger.trace("trace {}", number)
        logger.debug("debug {}", number)
        log.next_level()
    said = [line["message"] for line in logged(stream)]
    now, again = "the level of the log is {} now", "the level of the log is info again"
    assert said == [
        now.format("debug"),
        "debug 1",
        now.format("trace"),
        "lib: 2",
        "trace 2",
        "debug 2",
        again,
        now.format("debug"),
        "debug 4",
        now.format("trace"),
    ]


@pytest.mark.parametrize(
    ("chosen", "levels"),
    [
        ("error", ["debug", "trace", "error"]),
        ("debug", ["trace", "debug", "trace"]),
        ("trace", ["trace", "trace", "trace"]),
    ],
)
def test_more_is_never_less_than_what_was_chosen(chosen: str, levels: list[str]) -> None:
    log = set_up(chosen, "text", io.StringIO())
    assert [log.next_level() for _ in range(3)] == levels


def test_nothing_is_lost_or_said_twice_while_the_level_changes() -> None:
    stream = io.StringIO()
    log = set_up("info", "json", stream)
    for number in range(100):
        logger.info("{}", number)
        log.next_level()
    said = [line["message"] for line in logged(stream) if "level" not in line["message"]]
    assert said == [str(number) for number in range(100)]
