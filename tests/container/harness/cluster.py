"""A whole cluster of one node: etcd, API server, controllers, scheduler, and the node of tests/node.

All of it runs in the node's namespaces, and ends with them. The node has a machine of its own: what it calls
/sys and /dev are a made-up machine's, with what the programs need of the real ones bound into it. So the
manifests run as they are.
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from gpuplug.testing import Machine
from tests.node.harness import config, gobuild
from tests.node.harness.node import Binaries, Node, bare, build
from tests.node.harness.program import Program
from tests.node.harness.releases import Release
from tests.node.harness.waiting import eventually

from .needs import CNI

NODE = "node"
ADDRESS = "10.77.0.1"
_TOKEN = "for-this-run-only"
_API = "https://127.0.0.1:6443"
_ETCD = "http://127.0.0.1:2379"
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_CHARACTER = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),
}
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]},
        }
    ],
}
# A network with nobody else in it: the kubelet wants an address, and a default route.
_LINK = f"""
ip link add node0 type bridge
ip address add {ADDRESS}/24 dev node0
ip link set node0 up
ip route add default via 10.77.0.2 dev node0
"""
_REAL_SYSFS = ("fs", "kernel", "devices/system")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Where the programs of a cluster are, once built: name → file."""

    node: Binaries
    programs: Mapping[str, Path]


def build_all(release: Release) -> ControlPlane:
    """Build what a cluster of this release needs, or find it in the cache."""
    programs = {name: gobuild.kubernetes(release, name) / name for name in _PROGRAMS}
    return ControlPlane(build(release), programs | {"etcd": gobuild.etcd(release) / "etcd"})


class Cluster:
    """A running cluster. Made by `running`, which also ends it."""

    def __init__(self, node: Node, plane: ControlPlane) -> None:
        """Take charge of a node on which nothing runs yet."""
        self.node = node
        self.machine = Machine(node.machine_root, nodes="mknod")
        self.folder = node.scratch / "cluster"
        self.folder.mkdir()
        self.kubeconfig = self.folder / "kubeconfig"
        self._plane = plane

    # asking and ordering

    def kubectl(self, *arguments: str, given: str = "", check: bool = True) -> str:
        """Run kubectl and return what it printed.

        :param given: its standard input
        """
        command = [
            "nsenter",
            "--target",
            str(self.node.pid),
            "--net",
            "--",
            str(self._plane.programs["kubectl"]),
        ]
        ran = subprocess.run(
            [*command, *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)},
        )
        if check and ran.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout + ran.stderr

    async def run(self, *arguments: str, given: str = "") -> str:
        """Run kubectl in a thread of its own, for what takes a while."""
        return await to_thread.run_sync(lambda: self.kubectl(*arguments, given=given))

    def follow(self, name: str, *arguments: str) -> Program:
        """Let kubectl run on, inside the node, and keep what it prints."""
        kubectl = [str(self._plane.programs["kubectl"]), "--kubeconfig", str(self.kubeconfig)]
        return self.node.start(name, [*kubectl, *arguments])

    def get(self, *arguments: str) -> Any:
        """Return objects as the API server has them."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def pods(self, label: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the pods with a label."""
        found: list[dict[str, Any]] = self.get("pods", "-n", namespace, "-l", label)["items"]
        return found

    async def until(
        self, what: str, look: Callable[[], Any], good: Callable[[Any], bool], *, seconds: float = 60
    ) -> Any:
        """Look until it is good; a kubectl that fails counts as "not yet"."""

        def asked() -> Any:
            try:
                return look()
            except AssertionError as error:
                raise OSError(str(error)) from error

        return await eventually(what, lambda: to_thread.run_sync(asked), good, seconds=seconds)

    async def allocatable(self, resource: str, count: int) -> None:
        """Wait until the node's status says that it can give out so many."""

        def look() -> int:
            return int(self.get("node", NODE)["status"]["allocatable"].get(resource, "0"))

        await self.until(f"{count} of {resource} allocatable", look, lambda found: found == count)

    async def rolled_out(self, name: str = "daemonset/gpuplug", namespace: str = "gpuplug") -> str:
        """Wait for a rollout as an operator does."""
        return await self.run("rollout", "status", name, "-n", namespace, "--timeout=90s")

    # starting

    async def start(self) -> None:
        """Start everything, and wait until the node is ready."""
        await self._prepare()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._start_node)
            tasks.start_soon(self._start_control_plane)
        await self.start_kubelet()
        await self.run("wait", "--for=create", f"node/{NODE}", "--timeout=60s")
        await self.run("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=60s")
        await self.run("wait", "--for=create", "serviceaccount/default", "--timeout=60s")

    async def start_kubelet(self) -> None:
        """Start the kubelet, for the first time or again, and wait until it is healthy."""
        kubelet = await self.node.start_kubelet(kubeconfig=self.kubeconfig, address=ADDRESS)
        await self.node.kubelet_healthy(kubelet)

    async def _prepare(self) -> None:
        """Make the machine's /sys and /dev those of the node, and give it a network."""
        machine = self.machine
        for name in (*_REAL_SYSFS, "block", "class/net"):
            (machine.sys / name).mkdir(parents=True, exist_ok=True)
        for name, (major, minor) in _CHARACTER.items():
            os.mknod(machine.dev / name, 0o20666, os.makedev(major, minor))
            (machine.dev / name).chmod(0o666)
        binds = [f"mount --rbind /sys/{name} {machine.sys / name}" for name in _REAL_SYSFS]
        binds += [f"mount --rbind {machine.sys} /sys", f"mount --bind {machine.dev} /dev"]
        script = "\n".join(["set -e", *binds, _LINK])
        prepared = self.node.start("prepare", ["sh", "-c", script])
        assert await prepared.ended() == 0, prepared.tail()
        (self.node.scratch / "cni").mkdir()
        (self.node.scratch / "cni" / "pods.conflist").write_text(json.dumps(_NETWORK))
        (self.node.scratch / "containerd.toml").write_text(config.containerd(self.node.scratch, plugins=CNI))

    async def _start_node(self) -> None:
        await self.node.start_containerd()
        await self.node.import_image()

    async def _start_control_plane(self) -> None:
        folder = self.folder
        for command in (
            ["genrsa", "-out", "sa.key", "2048"],
            ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            await anyio.run_process(["openssl", *command], cwd=folder)
        (folder / "tokens.csv").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
        self.kubeconfig.write_text(json.dumps(_kubeconfig()))
        self._start(
            "etcd",
            {
                "data-dir": f"{folder}/etcd",
                "listen-client-urls": _ETCD,
                "advertise-client-urls": _ETCD,
                "listen-peer-urls": "http://127.0.0.1:2380",
                "unsafe-no-fsync": "true",
            },
        )
        self._start(
            "kube-apiserver",
            {
                "etcd-servers": _ETCD,
                "bind-address": "127.0.0.1",
                "secure-port": "6443",
                "cert-dir": f"{folder}/pki",
                "token-auth-file": f"{folder}/tokens.csv",
                "authorization-mode": "RBAC",
                "service-account-key-file": f"{folder}/sa.pub",
                "service-account-signing-key-file": f"{folder}/sa.key",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-cluster-ip-range": "10.0.0.0/24",
                "endpoint-reconciler-type": "none",
                "allow-privileged": "true",
                "kubelet-preferred-address-types": "InternalIP",  # there is no DNS
            },
        )
        await self.until(
            "the API server to be ready",
            lambda: self.kubectl("get", "--raw", "/readyz"),
            lambda told: told == "ok",
        )
        self._start(
            "kube-controller-manager",
            {
                "kubeconfig": str(self.kubeconfig),
                "service-account-private-key-file": f"{folder}/sa.key",
                "root-ca-file": f"{folder}/pki/apiserver.crt",
                "leader-elect": "false",
                "controllers": "*,-node-ipam-controller",
            },
        )
        self._start("kube-scheduler", {"kubeconfig": str(self.kubeconfig), "leader-elect": "false"})

    def _start(self, name: str, flags: Mapping[str, str]) -> None:
        words = [f"--{flag}={value}" for flag, value in flags.items()]
        self.node.start(name, [str(self._plane.programs[name]), *words], cwd=self.folder)


def _kubeconfig() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": _API, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@asynccontextmanager
async def running(release: Release, plane: ControlPlane, archives: Sequence[Path]) -> AsyncIterator[Cluster]:
    """Make a cluster whose node has the images of these archives, and end it."""
    async with bare(release, plane.node) as node:
        cluster = Cluster(node, plane)
        await cluster.start()
        for archive in archives:
            await node.import_archive(archive)
        yield cluster
