"""A whole Kubernetes node for a test: containerd, a kubelet that takes static pods, nothing left behind.

All that the two write lives in namespaces made by the keeper (see `keeper`), and ends with them. The tests
see the same scratch folder; what is mounted for the node alone is reached through `Node.inside`.
"""

import json
import platform
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from . import config, gobuild, kubelet_http
from .cgroups import cgroups
from .image import write_image
from .keeper import PRIVATE
from .kubelet_http import Container, Pod
from .manifests import IMAGE, ContainerOrder, pod_manifest
from .needs import inotify_to_spare
from .program import Program
from .releases import Release
from .waiting import eventually

REPOSITORY = Path(__file__).resolve().parents[3]
_LEAVE_SECONDS = 20
_INOTIFY = 16
"""More than a kubelet, containerd and gpuplug take of the user's inotify instances."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs of a node are, once built."""

    kubelet: Path
    containerd: Path
    probe: Path


def build(release: Release) -> Binaries:
    """Build what a node of this release needs, or find it in the cache."""
    return Binaries(gobuild.kubelet(release), gobuild.containerd(), gobuild.probe())


class Node:
    """A running node. Made by `booted`, which also ends it."""

    def __init__(self, release: Release, binaries: Binaries, scratch: Path, pid: int) -> None:
        """Take charge of a node whose namespaces exist.

        :param pid: the id of its process 1
        """
        self.release = release
        self.scratch = scratch
        self.pid = pid
        self.binaries = binaries
        self.cgroups = cgroups()
        self.programs: list[Program] = []
        self.machine_root = scratch / "machine"
        for folder in (self.machine_root, scratch / "manifests"):
            folder.mkdir()

    def inside(self, path: str) -> Path:
        """Return where a path of the node is found from outside."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Program:
        """Start a program inside the node."""
        program = Program(self.pid, name, command, self.scratch / f"{name}.log", env=env, cwd=cwd)
        self.programs.append(program)
        return program

    def cgroup_of(self, container: Container) -> Path:
        """Return the cgroup of a container that decides on its devices, as a folder seen from outside."""
        hierarchy = self.inside(str(self.cgroups.devices))
        (folder,) = hierarchy.rglob(container.id.removeprefix("containerd://"))
        return folder

    def program(self, name: str) -> Program:
        """Return the program of that name that was started last."""
        return next(program for program in reversed(self.programs) if program.name == name)

    async def start_containerd(self) -> Program:
        """Start containerd and wait until it answers."""
        path = f"{self.binaries.containerd}:/usr/sbin:/usr/bin:/sbin:/bin"
        command = [f"{self.binaries.containerd}/containerd", "--config", f"{self.scratch}/containerd.toml"]
        containerd = self.start("containerd", command, env={"PATH": path})

        async def look() -> int:
            assert containerd.running, f"containerd ended:\n{containerd.tail()}"
            return await self._ctr("version")

        await eventually("containerd to answer", look, lambda code: code == 0)
        return containerd

    async def start_kubelet(
        self, *, fail_on_cgroup_v1: bool | None = False, kubeconfig: Path | None = None, address: str = ""
    ) -> Program:
        """Start the kubelet; whoever needs it healthy waits with `kubelet_healthy`.

        :param kubeconfig: how to reach an API server; without one it takes static pods
        :param address: the node's address, for an API server
        """
        await eventually(
            f"{_INOTIFY} inotify instances to spare (fs.inotify.max_user_instances)",
            lambda: to_thread.run_sync(inotify_to_spare, _INOTIFY),
            bool,
        )
        settings = config.kubelet(
            self.scratch, fail_on_cgroup_v1=fail_on_cgroup_v1, registered=kubeconfig is not None
        )
        (self.scratch / "kubelet.json").write_text(json.dumps(settings))
        flags = {
            "config": f"{self.scratch}/kubelet.json",
            "root-dir": "/var/lib/kubelet",
            "cert-dir": f"{self.scratch}/{PRIVATE}/pki",
            "hostname-override": "node",
            "v": "2",
        }
        if kubeconfig is not None:
            flags |= {"kubeconfig": str(kubeconfig), "node-ip": address}
        command = [
            f"{self.binaries.kubelet}/kubelet",
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
        return self.start("kubelet", command)

    async def kubelet_healthy(self, kubelet: Program) -> None:
        """Wait until the kubelet answers its health check."""

        async def look() -> bool:
            assert kubelet.running, f"the kubelet ended:\n{kubelet.tail()}"
            return await kubelet_http.healthy(self.pid)

        await eventually("the kubelet to be healthy", look, bool)

    async def import_image(self) -> None:
        """Give containerd the one image that all test containers use."""
        archive = self.scratch / "image.tar"
        files = {"probe": (self.binaries.probe / "probe").read_bytes()}
        write_image(archive, IMAGE, files, ["/probe", "pause"], platform.machine())
        await self.import_archive(archive)

    async def import_archive(self, archive: Path) -> None:
        """Give containerd the images of an OCI archive, under the names in it."""
        assert await self._ctr("-n", "k8s.io", "image", "import", str(archive)) == 0, self.tails()

    async def _ctr(self, *arguments: str) -> int:
        command = [f"{self.binaries.containerd}/ctr", "-a", config.CONTAINERD_SOCKET, *arguments]
        ctr = Program(self.pid, "ctr", command, self.scratch / "ctr.log")
        return await ctr.ended()

    def order(
        self, name: str, *containers: ContainerOrder, init: Sequence[ContainerOrder] = (), **more: Any
    ) -> None:
        """Hand the kubelet a static pod. It is seen whole: the file is complete before it has its name."""
        hidden = self.scratch / "manifests" / f".{name}.json"
        hidden.write_text(json.dumps(pod_manifest(name, containers, init=init, **more)))
        hidden.rename(hidden.with_name(f"{name}.json"))

    async def withdraw(self, name: str) -> None:
        """Take a pod's manifest away and wait until the kubelet knows the pod no more."""
        (self.scratch / "manifests" / f"{name}.json").unlink()

        async def look() -> Mapping[str, Pod]:
            return await kubelet_http.pods(self.pid)

        await eventually(f"pod {name} to be gone", look, lambda pods: name not in pods)

    async def pod(self, name: str) -> Pod | None:
        """Return the pod as the kubelet sees it now."""
        return (await kubelet_http.pods(self.pid)).get(name)

    async def running_pod(self, name: str) -> Pod:
        """Wait until every container of the pod runs or has ended well."""
        pod = await self._pod_until(name, "to run", lambda pod: pod.settled)
        assert not pod.refused, f"the kubelet refused {name}: {pod.reason}: {pod.message}"
        return pod

    async def refused_pod(self, name: str) -> Pod:
        """Wait until the kubelet has refused the pod."""
        return await self._pod_until(name, "to be refused", lambda pod: pod.refused)

    async def pod_health(self, name: str, container: str, health: Mapping[str, str]) -> None:
        """Wait until the kubelet says this of the Devices that a container holds."""
        await self._pod_until(
            name, f"to have {health}", lambda pod: pod.containers[container].health == health
        )

    async def _pod_until(self, name: str, what: str, good: Any) -> Pod:
        def ended(pod: Pod | None) -> bool:
            return pod is not None and (pod.refused or bool(good(pod)))

        pod = await eventually(f"pod {name} {what}", lambda: self.pod(name), ended)
        assert pod is not None
        return pod

    async def ended_pod(self, name: str) -> Pod:
        """Wait until every container of the pod has ended, well or not."""
        pod = await self._pod_until(
            name,
            "to end",
            lambda pod: pod.containers and all(one.state == "terminated" for one in pod.containers.values()),
        )
        assert not pod.refused, f"the kubelet refused {name}: {pod.reason}: {pod.message}"
        return pod

    async def logged(self, name: str, container: str = "main") -> list[str]:
        """Return the lines that a container has printed, once there is one."""

        async def look() -> list[str]:
            logs = self.inside("/var/log/pods").glob(f"default_{name}-node_*/{container}/*.log")
            return [line.split(" ", 3)[3] for log in sorted(logs) for line in log.read_text().splitlines()]

        return await eventually(f"{name}/{container} to say something", look, bool)

    async def said(self, name: str, container: str = "main") -> dict[str, Any]:
        """Return what the probe in a container printed: its user, environment, and each open's outcome."""
        spoken: dict[str, Any] = json.loads((await self.logged(name, container))[-1])
        return spoken

    def tails(self) -> str:
        """Return the last lines of every program, for the message of a failed test."""
        seen = {program.name: program for program in self.programs}
        return "\n".join(program.tail() for program in seen.values())


@asynccontextmanager
async def bare(release: Release, binaries: Binaries) -> AsyncIterator[Node]:
    """Make a node with nothing started yet, and end it."""
    name = f"gpuplug-node-{secrets.token_hex(4)}"
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    scratch.chmod(0o755)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.node.harness.keeper", str(scratch), name],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt at the terminal is for the tests, not for who cleans up
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    node: Node | None = None
    try:
        first = await to_thread.run_sync(keeper.stdout.readline)
        assert first, "the keeper ended before there was a node"
        node = Node(release, binaries, scratch, int(first))
        (scratch / "containerd.toml").write_text(config.containerd(scratch))
        yield node
    except AssertionError as error:
        if node is not None:
            error.add_note(node.tails())
        raise
    finally:
        with anyio.CancelScope(shield=True):
            _, complaints = await to_thread.run_sync(lambda: keeper.communicate(timeout=_LEAVE_SECONDS))
            for program in node.programs if node is not None else ():
                program.abandon()
        assert not complaints, f"the node's keeper says: {complaints}"


@asynccontextmanager
async def booted(release: Release, binaries: Binaries) -> AsyncIterator[Node]:
    """Make a node with containerd, our image and a healthy kubelet, and end it."""
    async with bare(release, binaries) as node:
        await node.start_containerd()
        await node.import_image()
        await node.kubelet_healthy(await node.start_kubelet())
        yield node
