"""The pytest plugin: fixtures for the tests of a driver. It is found by itself where gpuplug is installed.

It imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuplug.observe.report import Report
    from gpuplug.settings import Settings
    from gpuplug.testing.machine import Machine


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave made-up machines alone: the links of their sysfs go in circles, and pytest would follow them."""
    return True if (collection_path / "class/drm/version").is_file() else None


@pytest.fixture
def gpuplug_machine() -> Iterator[Machine]:
    """Give a made-up machine without a GPU: the sysfs and devfs of a node, in a folder."""
    from gpuplug.testing.machine import Machine  # noqa: PLC0415 - see the module's docstring

    with tempfile.TemporaryDirectory(prefix="gpuplug-") as folder:
        yield Machine(Path(folder))


@pytest.fixture
def gpuplug_report(gpuplug_machine: Machine) -> Callable[..., Report]:
    """Give a function that says what gpuplug would advertise of the machine, and why.

    It is called with drivers by name, and with settings: ``gpuplug_report(foogpu=gpuplug_foogpu)``.
    """

    def report(settings: Settings | None = None, **drivers: Any) -> Report:  # noqa: ANN401 - modules, or objects
        from gpuplug.testing.report import report_on  # noqa: PLC0415 - see the module's docstring

        return report_on(gpuplug_machine, drivers, settings)

    return report
