"""The log: one sink on standard error, for people or for machines.

Records of libraries that use the standard ``logging`` come through the same sink. As JSON each line is
an object with the keys ``time`` (ISO 8601), ``level`` and ``message``; ``gpu`` (its address) and
``resource`` where the line is about one, and ``exception`` (a traceback) where there is one.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

from loguru import logger

from gpuplug.settings import LOG_LEVELS

if TYPE_CHECKING:
    from loguru import Message

MORE: Final = ("debug", "trace")
"""What is switched to at run time, where it is more than what was chosen."""
_FORMAT = "<dim>{time:YYYY-MM-DD HH:mm:ss.SSS}</dim> <level>{level: <7}</level> {message}\n{exception}"


class _Forward(logging.Handler):
    """Hand records of the standard ``logging`` to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep level, text and traceback; a record that cannot be put together is no error of ours."""
        level = record.levelname if record.levelname in _LEVELS else "WARNING"
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - whatever the library's arguments do when they are formatted
            text = f"{record.msg!r} with arguments that do not fit"
        logger.opt(exception=record.exc_info).log(level, "{}: {}", record.name, text)


_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})


class Log:
    """The sink; its level can be changed while it is used."""

    def __init__(self, level: str, format_: str, stream: TextIO) -> None:
        self._chosen: Final = level
        self._sink: Final = _Lines(stream) if format_ == "json" else stream
        self._format: Final = "{message}" if format_ == "json" else lambda _: _FORMAT
        self._id = self._add(level)
        self.level = level

    def _add(self, level: str) -> int:
        logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)
        if level == "trace":
            logging.getLogger().setLevel(logging.DEBUG)
        return logger.add(
            self._sink, level=level.upper(), format=self._format, backtrace=False, diagnose=False
        )

    def next_level(self) -> str:
        """Say more: debug, then trace; and after that what was chosen at the start. Return the level."""
        more = [level for level in MORE if LOG_LEVELS.index(level) < LOG_LEVELS.index(self._chosen)]
        levels = [self._chosen, *more]
        level = levels[(levels.index(self.level) + 1) % len(levels)]
        before, self.level = self._id, level
        if len(levels) > 1 and level == self._chosen:  # said while it can still be heard
            logger.info("the level of the log is {} again", level)
        self._id = self._add(level)  # for a moment there are two, so that nothing is lost
        logger.remove(before)
        if level != self._chosen:
            logger.info("the level of the log is {} now", level)
        return level


class _Lines:
    """Write JSON lines to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, message: str) -> None:
        """Write one record: loguru hands over its text, with the record."""
        self._stream.write(_line(cast("Message", message)) + "\n")

    def flush(self) -> None:
        """Send it on."""
        self._stream.flush()


def set_up(level: str, format_: str, stream: TextIO | None = None) -> Log:
    """Send the log to ``stream`` (standard error), from ``level`` upwards, as ``text`` or ``json``.

    Libraries are heard one level higher: grpclib calls each lost connection an "info".
    """
    logger.remove()
    return Log(level, format_, sys.stderr if stream is None else stream)


def _line(message: Message) -> str:
    record = message.record
    fields = {
        "time": record["time"].isoformat(timespec="milliseconds"),
        "level": record["level"].name.lower(),
        "message": record["message"],
        **record["extra"],
    }
    if record["exception"] is not None:
        fields["exception"] = str(message).removeprefix(record["message"]).strip()
    return json.dumps(fields, ensure_ascii=False, default=str)
