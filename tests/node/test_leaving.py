"""A node leaves nothing behind, however it ends: no process, no mount, no cgroup, no folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from .harness.cgroups import cgroups
from .harness.manifests import ContainerOrder
from .harness.node import REPOSITORY, Binaries, Node, booted
from .harness.plugins import start_gpuplug
from .harness.releases import Release
from .harness.waiting import eventually

pytestmark = pytest.mark.case("the node leaves nothing behind, whatever happens")

OWNER = """
import sys
import anyio
from tests.node.harness.manifests import ContainerOrder
from tests.node.harness.node import booted, build
from tests.node.harness.plugins import start_gpuplug
from tests.node.harness.releases import Release

async def main():
    release = Release(sys.argv[1])
    async with booted(release, build(release)) as node:
        node.order("some", ContainerOrder("main"))
        await node.running_pod("some")
        start_gpuplug(node)
        print(node.pid, node.scratch, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def left(pid: int, scratch: Path) -> list[str]:
    """Return what is left of a node."""
    name = scratch.name.rpartition("-")[0]
    found = [str(path) for home in cgroups().homes for path in home.glob(f"{name}*")]
    found += [str(path) for path in (scratch, Path(f"/proc/{pid}")) if path.exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(scratch) in line]
    return found


async def nothing_left(pid: int, scratch: Path) -> None:
    async def look() -> list[str]:
        return left(pid, scratch)

    await eventually("the node to be gone", look, lambda found: not found)


async def fail_with_everything_running(release: Release, binaries: Binaries, seen: list[Node]) -> None:
    async with booted(release, binaries) as node:
        seen.append(node)
        node.order("some", ContainerOrder("main"))
        await node.running_pod("some")
        start_gpuplug(node)
        raise LookupError("the test went wrong")


async def test_after_a_failure(release: Release, binaries: Binaries) -> None:
    seen: list[Node] = []
    with pytest.raises(LookupError, match="the test went wrong"):
        await fail_with_everything_running(release, binaries, seen)
    (node,) = seen
    assert left(node.pid, node.scratch) == []


@pytest.mark.usefixtures("binaries")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
async def test_after_its_owner_was_interrupted_or_killed(release: Release, number: signal.Signals) -> None:
    owner = await anyio.open_process(
        [sys.executable, "-c", OWNER, str(release)],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    async with owner:
        assert owner.stdout is not None
        line = await BufferedByteReceiveStream(owner.stdout).receive_until(b"\n", 4096)
        pid, scratch = line.decode().split()
        assert left(int(pid), Path(scratch))
        os.killpg(owner.pid, number)  # as a terminal does it: the whole group
        await owner.wait()
    await nothing_left(int(pid), Path(scratch))
