"""Arguments and environment → ``Settings`` → a command; and what it all exits with.

Exit codes: 0 done, 1 failed, 2 a bad option or variable (one line on standard error), 130 interrupted.
A command's others stand with its examples in ``commands.usage``.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from gpuplug.commands.prepare import WORDS
from gpuplug.commands.usage import COMMANDS, parser
from gpuplug.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ONE_DASH: Final = re.compile(r"-[a-z]{2}")


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code."""
    environ = os.environ if environ is None else environ
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        name = options.pop("command")
        if name == "serve":
            # Until serving begins there is nothing to end in order; and as the first process of a
            # container we would not even be killed by a signal that we have no handler for.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it asks for more log, of which there is none yet
        command = importlib.import_module(f"gpuplug.commands.{name}")
        return int(command.run(options, environ))
    except SettingError as error:
        print(f"gpuplug: {error}", file=sys.stderr)  # noqa: T201 - no log is set up yet
        return 2
    except KeyboardInterrupt:  # serve and demo have an orderly end of their own
        return 128 + signal.SIGINT


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Read arguments: the command's name as ``command``, and its options.

    What may be an option of a driver is left to the command, which loads the drivers.

    :raises SettingError: for what cannot be understood.
    """
    options, unknown = parser().parse_known_args(_normal(arguments))
    if unknown and not COMMANDS[options.command].asks_drivers:
        raise SettingError(f"unknown option or argument: {unknown[0]!r}")
    return {**vars(options), **({WORDS: unknown} if unknown else {})}


def _normal(arguments: Sequence[str]) -> list[str]:
    """Take the arguments of Intel's plugin as they are: one dash, and no command.

    Go's flags may bear one dash or two, so existing manifests say ``-shared-dev-num=10``.
    """
    words = ["-" + word if _ONE_DASH.match(word) else word for word in arguments]
    if words and words[0].startswith("-") and words[0] not in {"-h", "--help", "--version"}:
        words.insert(0, "serve")
    return words
