"""What commands that ask drivers begin with: settings, the drivers chosen, and the drivers' own options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplug.errors import SettingError
from gpuplug.plugins.attempt import patiently
from gpuplug.plugins.chosen import configured
from gpuplug.plugins.loader import load
from gpuplug.settings import origins, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplug.plugins.loader import Loaded
    from gpuplug.settings import Settings

WORDS = "words"
"""Under this name the command line gives the words that it does not know: options of drivers, perhaps."""


def prepared(given: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Settings, Loaded]:
    """Resolve the settings, and load the drivers that they choose.

    :raises SettingError: for an option or a variable that cannot be used.
    """
    options = {name: value for name, value in given.items() if isinstance(value, str)}
    words = given.get(WORDS)
    settings = resolve(options, environ)
    return settings, load_chosen(
        settings, origins(options, environ), words if isinstance(words, list) else [], environ
    )


def load_chosen(
    settings: Settings, chosen: Mapping[str, str], words: Sequence[str], environ: Mapping[str, str]
) -> Loaded:
    """Load the drivers that the settings choose, and give each the values of its options.

    :param chosen: for each field that was set, the option or variable that set it.
    :raises SettingError: naming the option or variable, and a driver that is not installed.
    """
    loaded = load(only=settings.driver, without=settings.no_driver)
    for field, names in (("driver", settings.driver), ("no_driver", settings.no_driver)):
        for name in names:
            if name not in loaded.names:
                installed = ", ".join(loaded.names) or "none"
                raise SettingError(f"{chosen[field]}: {name!r} is not installed; installed: {installed}")
    return patiently(lambda: configured(loaded, words, environ))
