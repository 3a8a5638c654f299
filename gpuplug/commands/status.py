"""``gpuplug status``: who holds which GPU, what is free, and where the kubelet and the machine differ.

It asks the kubelet's pod-resources API, which root alone may, and looks at /sys and /dev; nothing is
opened there. Exit codes: 0 both agree, 3 both have nothing, 4 they differ, 1 the kubelet cannot be
asked, 2 a bad option.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TextIO

import anyio

from gpuplug.commands.folders import check_folder
from gpuplug.commands.inspect import look as look_at_machine
from gpuplug.commands.prepare import prepared
from gpuplug.errors import KubeletError, SettingError
from gpuplug.host.attributes import Roots
from gpuplug.host.pci import addresses
from gpuplug.kubelet.pod_resources import ask
from gpuplug.observe.status import StatusReport, build_status, shares_told
from gpuplug.observe.status_document import status_document
from gpuplug.settings import MAX_SHARES, origins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplug.core.belief import Belief
    from gpuplug.plugins.loader import Loaded
    from gpuplug.settings import Settings

FAILED: Final = 1
NOTHING: Final = 3
DIFFERENT: Final = 4
"""The exit codes beside 0."""

_CLEAR: Final = "\x1b[H\x1b[2J"
"""Cursor to the corner, and the screen emptied: ECMA-48, known to all terminals but dumb ones."""
_AROUND: Final = 3
"""Lines that a terminal needs beside those of the view: the time, a blank, and how many more there are."""
_SHORTEST: Final = 0.1
_LONGEST: Final = 86_400.0
_PAUSE: Final = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?", re.ASCII)


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Print how it stands, once or until interrupted; return the exit code of the last look.

    :raises SettingError: for an option, variable or folder that cannot be used.
    """
    options = {name: value for name, value in given.items() if isinstance(value, str)}
    pause = None if given["watch"] is None else seconds(str(given["watch"]))
    settings, loaded = prepared(given, environ)
    chosen = origins(options, environ)
    if settings.prefix:
        check_folder(chosen["prefix"], settings.prefix)

    def look_again() -> StatusReport:
        return look(settings, loaded, shares_chosen="shared_dev_num" in chosen)

    screen = Screen(sys.stdout, sys.stderr, environ, as_json=bool(given["json"]), stays=pause is not None)
    try:
        screen.show(look_again)
        with contextlib.suppress(KeyboardInterrupt):
            while pause is not None:
                time.sleep(pause)
                screen.show(look_again)
    except BrokenPipeError:  # `| head` has seen enough; nothing more must be written at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return screen.code


def seconds(text: str) -> float:
    """Read the time between two looks.

    :raises SettingError: if it is none.
    """
    if not _PAUSE.fullmatch(text) or not _SHORTEST <= (number := float(text)) <= _LONGEST:
        raise SettingError(f"--watch: {text!r} is not a number of seconds from {_SHORTEST:g} to {_LONGEST:g}")
    return number


def look(settings: Settings, loaded: Loaded, *, shares_chosen: bool) -> StatusReport:
    """Ask the kubelet, look at the machine, and join the two; parameters are those of ``join``.

    :raises KubeletError: if the kubelet does not answer.
    """
    belief = anyio.run(ask, settings.pod_resources_socket)
    return join(belief, settings, loaded, shares_chosen=shares_chosen)


def join(belief: Belief, settings: Settings, loaded: Loaded, *, shares_chosen: bool) -> StatusReport:
    """Look at the machine, and join it with what the kubelet says.

    :param shares_chosen: whether the operator named the number of shares; otherwise it is what the
        kubelet was told.
    """
    report = look_at_machine(settings, loaded)
    if not shares_chosen:
        shares = min(shares_told(belief, {gpu.address for gpu in report.gpus}), MAX_SHARES)
        if shares != settings.shared_dev_num:
            report = look_at_machine(replace(settings, shared_dev_num=shares), loaded)
    return build_status(report, belief, addresses(Roots(settings.prefix)))


def exit_code(status: StatusReport) -> int:
    """Say how it stands, as an exit code."""
    if not status.agree:
        return DIFFERENT
    return 0 if status.resources else NOTHING


@dataclass(slots=True)
class Screen:
    """Where it is printed, and what was printed there last."""

    out: TextIO
    err: TextIO
    environ: Mapping[str, str]
    as_json: bool
    stays: bool
    """Whether there will be more than one look."""
    last: list[str] = field(default_factory=list)
    code: int = 0
    """The exit code that the last look stands for."""

    @property
    def redraws(self) -> bool:
        """Whether every look takes the place of the one before."""
        terminal = self.out.isatty() and self.environ.get("TERM", "dumb") != "dumb"
        return self.stays and terminal and not self.as_json

    def show(self, look: Callable[[], StatusReport]) -> None:
        """Look, and print it if it is new."""
        try:
            status = look()
        except KubeletError as error:
            self.code = FAILED
            self._print([f"gpuplug: {error}"], self.out if self.redraws else self.err)
        else:
            self.code = exit_code(status)
            self._print(self._lines(status), self.out)

    def _lines(self, status: StatusReport) -> list[str]:
        if self.as_json:
            return json.dumps(status_document(status), indent=None if self.stays else 2).splitlines()
        from gpuplug.commands.status_tables import lines  # noqa: PLC0415 - rich, which JSON does without

        return lines(status, self.out, self.environ)

    def _print(self, lines: list[str], stream: TextIO) -> None:
        new, self.last = lines != self.last, lines
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        if self.redraws:
            height = os.get_terminal_size(self.out.fileno()).lines  # 0 where the terminal does not say
            room = max(height - _AROUND, 1) if height else len(lines)
            rest = len(lines) - room
            more = [f"… {rest} more lines: enlarge the window, or leave --watch out"] if rest > 0 else []
            stream.write(_CLEAR + "\n".join([now, "", *lines[:room], *more]))
        elif new:
            headed = self.stays and not self.as_json and stream is self.out
            stream.writelines(
                f"{line}\n" for line in [*([now] if headed else []), *lines, *([""] if headed else [])]
            )
        stream.flush()
