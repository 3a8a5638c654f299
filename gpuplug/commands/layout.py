"""How tables and paragraphs look, on a terminal or not: what the commands that use rich have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

WIDTH: Final = 100
"""Columns where the output is no terminal and COLUMNS does not say."""
_LISTED: Final = 8
"""Names that a paragraph lists before it only counts."""
_STYLES: Final = {"Not advertised": "red", "Differs": "red", "Unhealthy": "yellow", "Do next": "bold"}


def laid_out(stream: TextIO, environ: Mapping[str, str], show: Callable[[Console], None]) -> list[str]:
    """Let ``show`` print, and return the lines for this stream; colours only where a terminal wants them."""
    width = None if stream.isatty() or environ.get("COLUMNS") else WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=environ)
    with console.capture() as captured:
        show(console)
    # Tables fill their columns up with blanks, and a name may have a letter that the locale lacks.
    encoding = stream.encoding or "utf-8"
    lines = (line.rstrip() for line in captured.get().splitlines())
    return [line.encode(encoding, "backslashreplace").decode(encoding) for line in lines]


def listed(names: Sequence[str]) -> str:
    """Name some, and count the rest."""
    shown = ", ".join(names[:_LISTED])
    rest = len(names) - _LISTED
    return f"{shown} and {rest} more" if rest > 0 else shown


def rows(pairs: Iterable[tuple[str, str]]) -> Table:
    """Lay names and texts out in two columns; a text wraps in its own."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=14)
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(Text(f"  {name}"), Text(printable(text), _STYLES.get(name, "")))
    return grid


def printable(text: str) -> str:
    """Show control characters as what they are: a name in sysfs, or a driver's words, may have any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
