"""10. What `gpuplug verify` says in a container is what the kernel answered there, and its advice works.

The container has the host's Python, mounted read-only, and one file of gpuplug: nothing else of it. No GPU
stands behind the nodes. Where a node must truly open it has the numbers of a device that is made of
software, such as /dev/fuse: to the device cgroup and to the file's mode that is a node like any other, and
unlike /dev/null it is not open to every container.
"""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuplug import cli
from gpuplug.commands import verify
from gpuplug.commands.verify import Outcome
from gpuplug.testing import Machine

from .harness.ledger import Ledger
from .harness.manifests import ContainerOrder
from .harness.node import REPOSITORY, Node
from .harness.plugins import I915, capacity, start_gpuplug
from .harness.releases import Release

pytestmark = pytest.mark.case("10 gpuplug verify in containers says what the kernel answered")

ADDRESS = "0000:03:00.0"
SOFTWARE = ("fuse", "vga_arbiter", "autofs", "userfaultfd")
"""Devices of /proc/misc that open without hardware, and that runc lets no container use unasked."""
GROUP = 4242
PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def opens_without_hardware() -> tuple[int, int]:
    """Return the numbers of a device that is made of software."""
    known = [line.split() for line in Path("/proc/misc").read_text().splitlines()]
    minors = {name: int(minor) for minor, name in known}
    for name in SOFTWARE:
        if name in minors:
            return 10, minors[name]
    raise AssertionError(f"this kernel has none of {', '.join(SOFTWARE)} (`modprobe fuse` will do)")


def let_it_be(machine: Machine, numbers: tuple[int, int], *, mode: int, group: int = 0) -> None:
    """Give the one render node these numbers, in sysfs and in /dev."""
    node = machine.dri / "renderD128"
    (machine.sys / "class/drm/renderD128/dev").write_text(f"{numbers[0]}:{numbers[1]}\n")
    node.unlink()
    os.mknod(node, stat.S_IFCHR, os.makedev(*numbers))
    node.chmod(mode)
    os.chown(node, 0, group)


def consumer(node: Node, file: Path, *, gpu: bool = True, host_paths: Sequence[str] = ()) -> ContainerOrder:
    """Order a container that has only Python and one file, and runs it."""
    python = [path for path in ("/usr", "/lib", "/lib64", "/bin") if Path(path).exists()]
    read_only = sorted({*python, str(PYTHON.parents[1]), str(file.parent)})
    paths = {path: path for path in read_only} | dict.fromkeys(host_paths, str(node.machine_root / "dev/dri"))
    return ContainerOrder(
        "main",
        [str(PYTHON), "-I", "-S", str(file)],
        resources={I915: 1} if gpu else {},
        host_paths=paths,
        read_only=tuple(read_only),
    )


@pytest.fixture
def zipapp(node: Node) -> Path:
    """Write the command as one file into a folder of the node."""
    folder = node.scratch / "tool"
    folder.mkdir()
    folder.chmod(0o755)
    assert cli.main(["verify", "--write-zipapp", str(folder / "verify.pyz")], {}) == 0
    return folder / "verify.pyz"


async def outcome(
    node: Node, name: str, order: ContainerOrder, groups: Sequence[int] = ()
) -> tuple[int, str]:
    """Run a pod to its end; the answer is its exit code and what it said."""
    node.order(name, order, restart="Never", groups=groups)
    pod = await node.ended_pod(name)
    code = pod.containers["main"].exit_code
    text = "\n".join(await node.logged(name))
    assert code is not None
    assert text.startswith("uid 1000, groups 1000"), text
    return code, text


async def test_a_container_with_the_resource_opens_its_node_and_one_with_the_host_path_is_told_to_ask(
    node: Node, machine: Machine, zipapp: Path, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu(ADDRESS, card=False)
    let_it_be(machine, opens_without_hardware(), mode=0o666)
    start_gpuplug(node)
    await capacity(node, I915, 1)

    code, text = await outcome(node, "with", consumer(node, zipapp))
    assert code == Outcome.OPENED, text
    assert "/dev/dri/renderD128: opens" in text
    assert f"GPUPLUG_GPUS={ADDRESS}" in text
    assert "GPUPLUG_RENDER_NODES=/dev/dri/renderD128" in text
    ledger.outcome("verify: the resource, a node of software", release, ["OK"])

    code, text = await outcome(node, "without", consumer(node, zipapp, gpu=False, host_paths=["/dev/dri"]))
    assert code == Outcome.CGROUP, text
    assert "/dev/dri/renderD128: EPERM: Operation not permitted" in text
    assert "the device cgroup refuses it: ask for the GPU in the container's resources.limits" in text
    assert "a hostPath mount shows the node and does not allow it" in text
    ledger.outcome("verify: a host path alone", release, ["EPERM"])

    code, text = await outcome(node, "nothing", consumer(node, zipapp, gpu=False))
    assert code == Outcome.NOTHING, text
    assert "no node in /dev/dri: this container was given no GPU" in text


async def test_who_is_not_in_the_nodes_group_is_told_which_one_to_add_and_that_helps(
    node: Node, machine: Machine, zipapp: Path, release: Release, ledger: Ledger
) -> None:
    machine.add_gpu(ADDRESS, card=False)
    let_it_be(machine, opens_without_hardware(), mode=0o660, group=GROUP)
    start_gpuplug(node, shares=2)
    await capacity(node, I915, 2)

    code, text = await outcome(node, "outsider", consumer(node, zipapp))
    assert code == Outcome.RIGHTS, text
    assert "/dev/dri/renderD128: EACCES: Permission denied" in text
    assert f"add supplementalGroups: [{GROUP}] to the pod's securityContext" in text
    assert text in (REPOSITORY / "README.md").read_text()
    ledger.outcome("verify: the resource, a node of another group", release, ["EACCES"])

    code, text = await outcome(node, "member", consumer(node, zipapp), groups=[GROUP])
    assert code == Outcome.OPENED, text
    assert f"uid 1000, groups 1000, {GROUP}" in text


async def test_a_node_without_a_device_behind_it_is_told_from_the_others(
    node: Node, machine: Machine, release: Release, ledger: Ledger
) -> None:
    """Here the one file is verify.py itself."""
    machine.add_gpu(ADDRESS, card=False, render=190)
    start_gpuplug(node)
    await capacity(node, I915, 1)
    code, text = await outcome(node, "empty", consumer(node, Path(verify.__file__)))
    assert code == Outcome.NO_DEVICE, text
    assert "/dev/dri/renderD190: ENXIO: " in text or "/dev/dri/renderD190: ENODEV: " in text
    assert "the node is there and no device behind it" in text
    ledger.outcome("verify: no device behind the node", release, ["ENXIO" if "ENXIO" in text else "ENODEV"])
