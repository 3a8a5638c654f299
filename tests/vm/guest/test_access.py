"""What a container may open, by the kernel's own word: a real runtime, a real device cgroup and node."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpuplug.kubelet.v1beta1 import DeviceSpec

from .gpus import DRI, Gpus
from .serving import I915, Witnesses
from .waiting import SECONDS

USER: Final = 1000
NODE: Final = "/dev/dri/renderD128"
OK, EACCES, EPERM = "OK", "Permission denied", "Operation not permitted"


def device(spec: DeviceSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make of a DeviceSpec what containerd makes of it: the node, with the host's mode, and a rule."""
    found = Path(spec.host_path).stat()
    number = {"type": "c", "major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    owner = {"fileMode": found.st_mode & 0o777, "uid": found.st_uid, "gid": found.st_gid}
    return {"path": spec.container_path, **number, **owner}, {
        "allow": True,
        **number,
        "access": spec.permissions,
    }


def outcome(specs: Iterable[DeviceSpec] = (), *, host_path: bool = False) -> str:
    """Open the render node for reading and writing as an ordinary user in a container."""
    with tempfile.TemporaryDirectory(prefix="bundle-", dir="/run") as folder:
        root = Path(folder, "rootfs")
        for name in ("dev", "proc"):
            (root / name).mkdir(parents=True)
        (root / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
        (root / "busybox").chmod(0o755)
        Path(folder).chmod(0o755)
        devices = [device(spec) for spec in specs]
        mounts = [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}]
        if host_path:
            bind = {"destination": "/dev/dri", "type": "bind", "source": str(DRI), "options": ["rbind", "rw"]}
            mounts.append(bind)
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": USER, "gid": USER},
                "args": ["/busybox", "sh", "-c", f"exec 3<>{NODE} && echo {OK}"],
                "cwd": "/",
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "devices": [node for node, _ in devices],
                "resources": {"devices": [{"allow": False, "access": "rwm"}, *(rule for _, rule in devices)]},
            },
        }
        Path(folder, "config.json").write_text(json.dumps(config))
        ran = subprocess.run(
            ["crun", "--cgroup-manager=cgroupfs", "run", "--bundle", folder, "opener"],
            capture_output=True,
            text=True,
            check=False,
        )
        said = (ran.stdout + ran.stderr).strip()
        return next((word for word in (OK, EACCES, EPERM) if said.endswith(word)), said)


async def test_a_user_opens_the_gpu_with_the_device_spec_and_not_with_a_host_path_alone(
    gpus: Gpus, watched: Witnesses
) -> None:
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    for witness in watched.each:
        answer = await witness.kubelet.allocate(I915, [[address]], within=SECONDS)
        specs = answer.container_responses[0].devices
        for path in DRI.iterdir():
            path.chmod(0o600)
        assert (
            outcome(specs) == EACCES
        )  # as the kernel makes nodes, until udev or an administrator opens them
        for path in DRI.iterdir():
            path.chmod(0o666)
        assert outcome(specs) == OK
        assert outcome(host_path=True) == EPERM
