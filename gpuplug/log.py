"""The log: one sink on standard error, for people or for machines.

Records of libraries that use the standard ``logging`` come through the same sink.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, TextIO

from loguru import logger

if TYPE_CHECKING:
    from loguru import Message

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


def set_up(level: str, format_: str, stream: TextIO | None = None) -> None:
    """Send the log to ``stream`` (standard error), from ``level`` upwards, as ``text`` or ``json``.

    Libraries are heard one level higher: grpclib calls each lost connection an "info".
    """
    stream = sys.stderr if stream is None else stream
    logger.remove()
    if format_ == "json":

        def write(message: Message) -> None:
            stream.write(_line(message) + "\n")
            stream.flush()

        logger.add(write, level=level.upper(), format="{message}", backtrace=False, diagnose=False)
    else:
        logger.add(stream, level=level.upper(), format=lambda _: _FORMAT, backtrace=False, diagnose=False)
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)
    if level == "trace":
        logging.getLogger().setLevel(logging.DEBUG)


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
