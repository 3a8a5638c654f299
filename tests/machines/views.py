"""What ``gpuplug inspect`` prints on a layout, made the same on every machine that runs the tests."""

from __future__ import annotations

import io
import json
import stat
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplug.commands.inspect import look, look_up
from gpuplug.commands.tables import show
from gpuplug.host.names import Access
from gpuplug.observe.document import Details, document
from gpuplug.testing import Machine
from tests.machines.layouts import LAYOUTS, Layout, build

if TYPE_CHECKING:
    from gpuplug.observe.report import GpuReport, Report

SNAPSHOTS: Final = Path(__file__).parent / "snapshots"
_GROUPS: Final = {"card": (44, "video"), "rend": (993, "render")}


def see(layout: Layout, root: Path) -> tuple[Report, Details]:
    """Build the machine in ``root`` and look at it as ``inspect`` does.

    Owners and modes are those of a Debian node, since who runs the tests may not chown.
    """
    machine = Machine(root, nodes="links")
    build(layout, machine)
    settings = replace(layout.settings, prefix=str(root))
    report = look(settings, layout.loaded)
    found = look_up(settings, report)
    report = replace(report, gpus=tuple(_without_prefix(gpu, str(root)) for gpu in report.gpus))
    access = {
        name: Access(stat.S_IFCHR | 0o660, 0, _GROUPS[name[:4]][0], "root", _GROUPS[name[:4]][1])
        for name in found.access
    }
    return report, replace(found, access=access)


def _without_prefix(gpu: GpuReport, prefix: str) -> GpuReport:
    """Give paths as they are on a node, before the text is wrapped: a temporary folder's name may be long."""
    if gpu.refusal is None:
        return gpu
    return replace(gpu, refusal=replace(gpu.refusal, reason=gpu.refusal.reason.replace(prefix, "")))


def views(layout: Layout, root: Path) -> dict[str, str]:
    """Give the text and the JSON of a layout, by file name."""
    return printed(layout, *see(layout, root))


def printed(layout: Layout, report: Report, details: Details) -> dict[str, str]:
    """Give both, where the layout has been looked at already."""
    text = io.StringIO()
    show(report, details, text, {})
    made = json.dumps(document(report, details), indent=1)
    return {
        f"{layout.name}.txt": f"# {layout.about}\n\n{text.getvalue()}",
        f"{layout.name}.json": f"{made}\n",
    }


def renew() -> None:
    """Write all snapshots anew; ``git diff`` shows what is to be reviewed."""
    for path in SNAPSHOTS.iterdir():
        path.unlink()
    for layout in LAYOUTS:
        if layout.snapshot:
            with tempfile.TemporaryDirectory(prefix="gp-") as folder:
                for name, content in views(layout, Path(folder)).items():
                    (SNAPSHOTS / name).write_text(content)


if __name__ == "__main__":
    renew()
    sys.stdout.write(f"{len(list(SNAPSHOTS.iterdir()))} files in {SNAPSHOTS}: review them with git diff\n")
