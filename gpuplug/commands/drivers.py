"""``gpuplug drivers``: which driver packages are installed, what they claim here, and what is wrong.

Exit codes: 0 all is well, 3 no driver is installed, or all are left out, 4 one of them has a problem,
2 a bad option.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gpuplug.commands.folders import check_folder
from gpuplug.commands.inspect import look
from gpuplug.commands.output import own_output
from gpuplug.commands.prepare import prepared
from gpuplug.observe.drivers import drivers_document, installed
from gpuplug.settings import origins

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE: Final = 3
PROBLEM: Final = 4
"""The exit codes beside 0."""


def run(given: Mapping[str, object], environ: Mapping[str, str]) -> int:
    """Print the drivers, and return an exit code.

    :raises SettingError: for an option, variable or folder that cannot be used.
    """
    code = 0
    with own_output() as out:
        settings, loaded = prepared(given, environ)
        if settings.prefix:
            options = {name: value for name, value in given.items() if isinstance(value, str)}
            check_folder(origins(options, environ)["prefix"], settings.prefix)
        drivers = installed(loaded, look(settings, loaded))
        if any(driver.problems for driver in drivers):
            code = PROBLEM
        elif not any(driver.loaded for driver in drivers):
            code = NONE
        if given["json"]:
            out.write(f"{json.dumps(drivers_document(drivers), indent=2)}\n")
        else:
            from gpuplug.commands.driver_tables import show  # noqa: PLC0415 - rich, which JSON does without

            show(drivers, out, environ)
    return code
