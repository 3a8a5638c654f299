"""What README.md says of commands and options is what there is."""

from __future__ import annotations

import re
from pathlib import Path

from gpuplug.commands.usage import COMMANDS
from gpuplug.settings import OPTIONS, default

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_table_of_options_is_the_one_that_the_program_has() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `([A-Z_]+)` \| (.*?) ?\| (.+) \|$", README, re.MULTILINE)
    found = {flag: (variable, shown.strip()) for flag, variable, shown, _ in rows}
    assert found == {o.flag: (o.variable, "60" if o.flag == "--resync" else default(o))
                     for o in OPTIONS if o.serves}  # fmt: skip


def test_every_command_that_it_shows_exists() -> None:
    shown = set(re.findall(r"gpuplug ([a-z]+)", README))
    assert set(COMMANDS) & shown
    named = re.findall(r"^[$#] .*?gpuplug ([a-z]+)", README, re.MULTILINE)
    assert set(named) <= set(COMMANDS)


def test_each_file_that_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (Path(__file__).parent.parent / link).exists()] == []
