"""The rules of the conformance kit on what a container gets, one function each."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from gpuplug.model import Device, DeviceId
from gpuplug.settings import Settings
from gpuplug.testing.conformance.asking import fail
from gpuplug.testing.gpus import make_node

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpuplug.model import Gpu
    from gpuplug.plugins.driver import LoadedDriver
    from gpuplug.testing.conformance.asking import Answers

MAX_PATH: Final = 4095
"""Bytes of a path, without the final NUL (``PATH_MAX`` of limits.h)."""
MAX_NAME: Final = 255
"""Bytes of a file's name (``NAME_MAX``)."""
MAX_VARIABLE: Final = 131_071
"""Bytes of ``NAME=value``, without the final NUL (``MAX_ARG_STRLEN``, 32 pages, of execve(2))."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS: Final = "GPUPLUG_"
_DRI: Final = "/dev/dri"
_OF_THE_NODE: Final = ("/etc/", "/home/", "/root/", "/run/", "/var/", "/var/lib/", "/var/run/")
"""Folders of which a part may be for a GPU, but not the whole."""
_NEVER: Final = tuple(
    f"{prefix}{name}"
    for name in ("dev/", "proc/", "run/containerd/", "run/crio/", "run/docker.sock/", "var/lib/containerd/",
                 "var/lib/kubelet/", "var/run/containerd/", "var/run/crio/", "var/run/docker.sock/")
    for prefix in ("/", "/host/")
)  # fmt: skip
"""Folders and sockets of which no part may be given; the kit asks with the prefixes '' and /host."""

__tracebackhide__ = True  # a failure shows the check, and not how it was made


def _given(answers: Answers) -> list[tuple[str, str, str]]:
    specs = [("gpuplug_device_specs", spec.container_path, spec.host_path) for spec in answers.specs]
    return specs + [("gpuplug_mounts", m.container_path, m.host_path) for m in answers.mounts]


def own_nodes_only(gpu: Gpu, answers: Answers) -> None:
    """See that of /dev/dri there are the GPU's own nodes alone."""
    own = {node.path for node in gpu.nodes} | {node.host_path for node in gpu.nodes}
    own |= {f"{_DRI}/{name}" for name in gpu.missing}  # told of elsewhere
    for hook, container_path, host_path in _given(answers):
        for path in (container_path, host_path):
            normal = str(PurePosixPath(path))
            if (normal.endswith(_DRI) or f"{_DRI}/" in f"{normal}/") and normal not in own:
                if "/by-path/" in normal and gpu.address in normal:
                    continue  # a link to one of its own nodes
                fail(
                    f"{gpu.address}: {hook} gives {path}, and the GPU's own nodes are"
                    f" {', '.join(node.path for node in gpu.nodes)}",
                    "the container could use a GPU that it was not given, and that another one has",
                    "give what is in gpu.nodes: never compute a number, since card and render nodes are not"
                    " counted in step, and never give /dev/dri as a whole",
                )


def nothing_else(gpu: Gpu, answers: Answers, companions: Collection[str]) -> None:
    """See that nodes are ones that gpuplug looks at, and that no mount opens the node to a container."""
    known = {node.path for node in gpu.nodes} | set(companions) | {f"{_DRI}/{name}" for name in gpu.missing}
    for spec in answers.specs:
        if spec.container_path not in known and not spec.container_path.startswith(f"{_DRI}/"):
            fail(
                f"{gpu.address}: gpuplug_device_specs gives {spec.container_path}, which is"
                " neither in gpu.nodes nor in gpu.companions",
                "gpuplug does not see whether it is there: where it is not, no container with the GPU starts",
                "name it in gpuplug_companion_nodes, and give it where gpu.companions has it",
            )
        if "m" in spec.permissions:
            fail(
                f"{gpu.address}: gpuplug_device_specs gives {spec.container_path} with {spec.permissions!r}",
                "with m a container may make the node anew, and no GPU needs that",
                "leave the permissions out: they are 'rw'",
            )
    for mount in answers.mounts:
        inside = f"{PurePosixPath(mount.host_path)}/"
        if inside in _OF_THE_NODE or inside.startswith(_NEVER):
            fail(
                f"{gpu.address}: gpuplug_mounts mounts {mount.host_path}, which is the node's own",
                "with it a container can take over the node, or see every other container's files; a device"
                " node that is mounted cannot be opened",
                "mount the folder of your GPU alone; nodes belong into gpuplug_device_specs",
            )


def present_nodes_only(gpu: Gpu, answers: Answers, companions: Collection[str]) -> None:
    """See that each node that is given is there."""
    absent = {f"{_DRI}/{name}" for name in gpu.missing} | {p for p in companions if p not in gpu.companions}
    if not answers.specs:
        fail(
            f"{gpu.address}: gpuplug_device_specs gives no node",
            "gpuplug does not advertise a GPU of which a container would get nothing",
            "give at least one of gpu.nodes, whichever there are: a GPU may have a card node or a render node"
            " only; leave the hook out to give them all",
        )
    for hook, container_path, _ in _given(answers):
        if container_path in absent:
            fail(
                f"{gpu.address}: {hook} gives {container_path}, which this machine does not have",
                "the container runtime cannot make it, and the container does not start",
                "give what is in gpu.nodes and gpu.companions, which have only what is there",
            )


def host_paths(gpu: Gpu, answers: Answers) -> None:
    """See that nodes are taken from where they are on the host."""
    hosts = {node.path: node.host_path for node in gpu.nodes}
    hosts |= {path: node.host_path for path, node in gpu.companions.items()}
    for hook, container_path, host_path in _given(answers):
        real = hosts.get(container_path, host_path)
        if real != host_path:
            fail(
                f"{gpu.address}: {hook} gives {container_path} from {host_path}, and the node is at {real}",
                "with --prefix the machine's files are below another folder, and the path on the host is not"
                " the one in the container",
                "DeviceSpec(node.path, node.host_path)",
            )


def no_path_twice(gpu: Gpu, answers: Answers) -> None:
    """See that no container path is given twice."""
    seen: dict[str, str] = {}
    for hook, container_path, _ in _given(answers):
        normal = str(PurePosixPath(container_path))
        if normal in seen:
            fail(
                f"{gpu.address}: {container_path} is given twice, by {seen[normal]} and by {hook}",
                "gpuplug gives the first one and drops the second",
                "give each path once; a node belongs into gpuplug_device_specs, which also lets the container"
                " open it, and not into gpuplug_mounts",
            )
        seen[normal] = hook


def fit_together(given: Sequence[tuple[Gpu, Answers]]) -> None:
    """See that what is given for several GPUs does not clash."""
    for (one, first), (other, second) in combinations(given, 2):
        before = {path: host for _, path, host in _given(first)}
        for hook, path, host in _given(second):
            if before.get(path, host) != host:
                fail(
                    f"{hook} gives {path} from {before[path]} for {one.address},"
                    f" and from {host} for {other.address}",
                    "a container that gets both GPUs gets only the first of the two files",
                    "put what belongs to one GPU into a path with its own name; what all GPUs share"
                    " comes from one place",
                )


def another(gpu: Gpu, number: int) -> Gpu:
    """Make a GPU like this one at another address, with other nodes."""
    prefix = next((node.host_path.removesuffix(node.path) for node in gpu.nodes), "")
    names = [f"renderD{150 + number}" if node.is_render else f"card{20 + number}" for node in gpu.nodes]
    return replace(
        gpu, address=f"0000:{0x40 + number:02x}:00.0", nodes=tuple(make_node(n, prefix) for n in names)
    )


def paths(gpu: Gpu, answers: Answers) -> None:
    """See that paths are ones that the kernel and a container runtime take."""
    for hook, *pair in _given(answers):
        for path in pair:
            parts = path.split("/")[1:]
            wrong = (
                "is not in its simplest form"
                if {"", ".", ".."} & set(parts)
                else f"is longer than {MAX_PATH} bytes"
                if len(path.encode()) > MAX_PATH
                else f"has a part of more than {MAX_NAME} bytes"
                if max(len(part.encode()) for part in parts) > MAX_NAME
                else "has a character that cannot be printed"
                if not path.isprintable()
                else ""
            )
            if wrong:
                fail(
                    f"{gpu.address}: {hook} gives {path[:100]!r}, which {wrong}",
                    "the container does not start, or two spellings of one path are taken for two",
                    "give absolute paths without '.', '..', '//' and a final '/'",
                )


def variables(gpu: Gpu, answers: Answers) -> None:
    """See that environment variables can be set."""
    for name, value in (answers.envs or {}).items():
        if not _VARIABLE.fullmatch(name):
            fail(
                f"{gpu.address}: gpuplug_envs gives {name!r}, which is no name that a shell takes",
                "a program that is started by a script does not get it",
                "make names of letters, digits and '_'",
            )
        if name.startswith(_OURS):
            fail(
                f"{gpu.address}: gpuplug_envs gives {name!r}: names that begin with {_OURS} are gpuplug's",
                "it takes the place of what containers are promised to find there",
                "begin the name with that of your GPU: FOOGPU_…",
            )
        if len(f"{name}={value}".encode()) > MAX_VARIABLE:
            fail(
                f"{gpu.address}: {name} has {len(value.encode())} bytes",
                "the kernel starts no program with a variable of more than 32 pages",
                "give less, or a mount with a file",
            )


def any_order(driver: LoadedDriver, gpus: Sequence[Gpu]) -> None:
    """See that the order of Devices, and shares of one GPU, do not matter."""
    settings = Settings(shared_dev_num=2)
    devices = [Device(DeviceId(f"{gpu.address}{share}"), gpu) for gpu in gpus for share in ("", "::1")]
    given = driver.envs(devices, settings)
    turned = driver.envs(devices[::-1], settings)
    if given != turned:
        fail(
            f"gpuplug_envs gives {dict(given)} for some devices, and {dict(turned)} for the same ones in"
            " another order",
            "the kubelet gives them in any order, and gpuplug asks once for the same devices",
            "sort by device.gpu.address",
        )
