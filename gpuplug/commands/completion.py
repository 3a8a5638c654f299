"""``gpuplug completion SHELL``: print a script that completes commands, options, words and paths.

It is made by shtab from the parser of the command line, so that it knows what the program knows; the
shell runs no Python for it. Exit code: 0.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

import shtab

from gpuplug.commands.usage import COMMANDS, add_drivers, parser
from gpuplug.settings import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PATHS: Final = {"DIR": shtab.DIRECTORY, "FILE": shtab.FILE, "NODE": shtab.FILE, "PATH": shtab.FILE}
"""What completes a value, by the name that stands for it in the help."""


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Print the script, and return 0."""
    del environ
    sys.stdout.write(f"{script(str(given['shell']))}\n")
    return 0


def script(shell: str) -> str:
    """Make the script for one of ``usage.SHELLS``."""
    whole = parser()
    words = {option.field: option.choices for option in OPTIONS if option.choices}
    for name, one in _commands(whole):
        if COMMANDS[name].asks_drivers:
            add_drivers(one)
        for action in one._actions:  # noqa: SLF001 - argparse has no other way to list them
            if action.dest in words:
                action.choices = words[action.dest]
            elif action.metavar in _PATHS:
                action.complete = _PATHS[str(action.metavar)]  # type: ignore[attr-defined]
    return shtab.complete(whole, shell)


def _commands(whole: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in whole._actions:  # noqa: SLF001 - see above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()
