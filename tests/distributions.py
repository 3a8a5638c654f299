"""Driver packages for tests: real wheels, built here, and installed into a folder on a process's path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Distribution:
    """One package with one module, and entry points that lead to it."""

    name: str
    source: str
    """The text of its module, which is called as the package, with underscores."""
    entry_points: Mapping[str, str] = field(default_factory=dict)
    """Name → object reference; empty for one that has the name of the package and leads to the module."""
    version: str = "1.0"

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    def wheel(self, folder: Path) -> Path:
        """Build the wheel (the binary distribution format of packaging.python.org)."""
        info = f"{self.module}-{self.version}.dist-info"
        entry_points = self.entry_points or {self.name: self.module}
        files = {
            f"{self.module}.py": textwrap.dedent(self.source),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[gpuplug]\n"
            + "".join(f"{name} = {value}\n" for name, value in entry_points.items()),
        }
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
        path = folder / f"{self.module}-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
        return path


@dataclass(frozen=True, slots=True)
class Site:
    """A folder that packages are installed into, beside those of this environment."""

    folder: Path

    def install(self, *distributions: Distribution) -> None:
        """Unpack the wheels, which is what installing a pure one comes to."""
        self.folder.mkdir(exist_ok=True)
        for distribution in distributions:
            path = distribution.wheel(self.folder)
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(self.folder)
            path.unlink()

    def environ(self, **variables: str) -> dict[str, str]:
        """Give the environment of a process that has them on its path."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("GPUPLUG_")}
        path = os.pathsep.join(filter(None, (str(self.folder), own.get("PYTHONPATH", ""))))
        return {**own, "PYTHONPATH": path, **variables}

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run gpuplug to its end."""
        return subprocess.run(
            [sys.executable, "-m", "gpuplug", *arguments],
            env=self.environ(**variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def inspect(self, *arguments: str, **variables: str) -> dict[str, Any]:
        """Run ``gpuplug inspect --json`` and read what it prints."""
        ended = self.run("inspect", "--json", *arguments, **variables)
        assert ended.returncode in {0, 3}, ended.stderr
        document: dict[str, Any] = json.loads(ended.stdout)
        return document
