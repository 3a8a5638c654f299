"""gpuplug looks at device nodes and never opens one: a trace of a whole life shows it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from tests.kubelet.devicemanager import pod
from tests.kubelet.node import I915, XE

if TYPE_CHECKING:
    from tests.kubelet.node import Node

# 4711 openat(3</somewhere/dev>, "dri/card0", O_RDONLY|O_CLOEXEC) = 5</somewhere/dev/dri/card0>
CALL = re.compile(
    r"^(?:\d+ +)?open(?:at2?)?\((?:(?:AT_FDCWD|\d+)(?:<(?P<folder>[^>]*)>)?, )?\"(?P<name>[^\"]*)\""
    r"(?:.* = \d+<(?P<opened>[^>]*)>)?"
)
# 4711 <... openat resumed>) = 5</somewhere/dev/dri/card0>: the end of a call that another one interrupted.
RESUMED = re.compile(r"^(?:\d+ +)?<\.\.\. open\w* resumed>.* = (?:\d+<(?P<opened>[^>]*)>|-1 )")


@dataclass(frozen=True, slots=True)
class Opened:
    """One attempt to open a file: the path that was asked for, and what it led to, if anything."""

    asked: Path
    led_to: Path | None


def calls(trace: str) -> list[Opened]:
    """All attempts in a trace. A line that is about opening and is not understood is a failure."""
    found = []
    for line in trace.splitlines():
        if "open" not in line:
            continue
        begun, ended = CALL.match(line), RESUMED.match(line)
        assert begun or ended, f"this line of the trace is not understood: {line}"
        if begun:
            led_to = begun["opened"]
            asked = Path(begun["folder"] or "/") / begun["name"]
            found.append(Opened(asked, Path(led_to) if led_to else None))
        elif ended and ended["opened"]:
            found.append(Opened(Path(ended["opened"]), Path(ended["opened"])))
    return found


def nodes_opened(opened: list[Opened], dri: Path) -> list[Opened]:
    """Those that are about something below /dev/dri. The folder may be listed, and so may by-path in it."""
    folders = {dri, dri / "by-path"}
    return [
        one
        for one in opened
        if any(path and dri in path.parents and path not in folders for path in (one.asked, one.led_to))
    ]


async def test_no_gpu_node_is_opened_in_the_whole_life_of_a_plugin(node: Node, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    node.machine.add_gpu("0000:03:00.0", driver="i915")
    serving = await node.serve(shares=2, trace=trace)
    await node.kubelet.until_allocatable(I915, 2)
    assert (await node.kubelet.admit_one(pod("first", I915))).nodes
    node.machine.add_gpu("0000:04:00.0", driver="xe")
    await node.kubelet.until_allocatable(XE, 2)
    (node.machine.dri / "by-path").mkdir()
    (node.machine.dri / "by-path/pci-0000:03:00.0-render").symlink_to("../renderD128")
    node.machine.rebind("0000:03:00.0", "xe")
    await node.kubelet.until_allocatable(XE, 4)
    assert (await node.kubelet.admit_one(pod("second", XE, 2))).nodes
    await node.kubelet.restart("stop")
    await node.kubelet.until_allocatable(XE, 4)
    node.machine.remove_gpu("0000:04:00.0")
    await node.kubelet.until_allocatable(XE, 2)
    ended = await serving.process.terminate(within=20)
    assert ended.code == 0

    opened = calls(trace.read_text())
    assert nodes_opened(opened, node.machine.dri) == []
    # The trace has seen what gpuplug does all the time, so it would have seen the rest, too.
    asked = {one.asked for one in opened}
    assert node.machine.sys / "class/drm" in asked
    assert node.machine.dri / "by-path" in asked
    assert any(path.name in {"uevent", "vendor"} for path in asked)


async def test_the_trace_shows_a_node_that_is_opened_by_whatever_name(node: Node, tmp_path: Path) -> None:
    gpu = node.machine.add_gpu()
    assert gpu.card is not None
    link = tmp_path / "link"
    link.symlink_to(node.machine.dri / gpu.card)
    (node.machine.dri / "by-path").mkdir()
    (node.machine.dri / "by-path/card").symlink_to(f"../{gpu.card}")
    program = (
        "import contextlib, os, sys\n"
        "dri, card, link = sys.argv[1:]\n"
        "folder = os.open(dri, os.O_RDONLY)\n"
        "by_path = f'{dri}/by-path/card'\n"
        "for path, at in ((f'{dri}/{card}', None), (card, folder), (link, None), (by_path, None)):\n"
        "    with contextlib.suppress(OSError):\n"
        "        os.open(path, os.O_PATH, dir_fd=at)\n"
    )
    trace = tmp_path / "trace"
    watch = ("strace", "-f", "-y", "-qq", "-s", "4096", "-e", "trace=open,openat,openat2", "-o", str(trace))
    await anyio.run_process(
        [*watch, sys.executable, "-c", program, str(node.machine.dri), gpu.card, str(link)]
    )
    seen = nodes_opened(calls(trace.read_text()), node.machine.dri)
    card = node.machine.dri / gpu.card
    assert [one.asked for one in seen] == [card, card, link, node.machine.dri / "by-path/card"]


def test_calls_are_read_from_a_trace_whole_or_in_two_parts() -> None:
    trace = (
        '7 openat(AT_FDCWD</>, "/a/link", O_RDONLY) = 3</a/node>\n'
        '7 openat(3</a>, "b", O_RDONLY <unfinished ...>\n'
        '8 open("/c", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        "7 <... openat resumed>)             = 4</d/e>\n"
        "7 <... openat resumed>)             = -1 ENXIO (No such device or address)\n"
        "7 +++ exited with 0 +++\n"
    )
    assert calls(trace) == [
        Opened(Path("/a/link"), Path("/a/node")),
        Opened(Path("/a/b"), None),
        Opened(Path("/c"), None),
        Opened(Path("/d/e"), Path("/d/e")),
    ]
