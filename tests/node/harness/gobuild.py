"""Builds the node's programs from Go modules.

Kubernetes is not meant to be required as a module: its own go.mod asks for version v0.0.0 of every library
that lives in its staging folder. Those are read from that very file and pointed at the matching release, so
a release that adds or drops one needs no change here.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .cache import cached
from .needs import MissingRequirementError
from .releases import CONTAINERD, Release

_STAGING = re.compile(r"^\s*(k8s\.io/[\w.-]+) v0\.0\.0$", re.MULTILINE)
_GO_LINE = re.compile(r"^go (\S+)$", re.MULTILINE)
_PROBE = Path(__file__).parent / "probe"


def kubelet(release: Release) -> Path:
    """Build the kubelet of one release; the answer is its folder in the cache."""
    return kubernetes(release, "kubelet")


def kubernetes(release: Release, program: str) -> Path:
    """Build one of the programs of a Kubernetes release; the answer is its folder in the cache.

    :param program: the name of its folder below ``cmd`` in the sources: kubelet, kube-apiserver, …
    """
    ldflags = f"-s -w -X k8s.io/component-base/version.gitVersion={release.version}"

    def make(out: Path) -> None:
        _build_module(out, _kubernetes_gomod(release), [f"k8s.io/kubernetes/cmd/{program}"], ldflags)

    return cached(f"{program}-{release}", ldflags, make)


def etcd(release: Release) -> Path:
    """Build the etcd server that this Kubernetes release requires; the answer is its folder in the cache."""
    ldflags = "-s -w"
    package = "go.etcd.io/etcd/server/v3"

    def make(out: Path) -> None:
        _build_module(out, _kubernetes_gomod(release), [package], ldflags, program="etcd")

    return cached(f"etcd-for-{release}", package + ldflags, make)


def _kubernetes_gomod(release: Release) -> str:
    """Write a go.mod that requires one Kubernetes release, with its staging modules pointed at it."""
    required = Path(_download("k8s.io/kubernetes", release.version)["GoMod"]).read_text()
    staging = "v0." + release.version.split(".", 1)[1]
    replaced = "".join(f"\t{name} => {name} {staging}\n" for name in _STAGING.findall(required))
    return (
        f"module gpuplug.test/kubernetes\n\ngo {_go_line(required)}\n\n"
        f"require k8s.io/kubernetes {release.version}\n\nreplace (\n{replaced})\n"
    )


def containerd() -> Path:
    """Build containerd, its runc shim and its command line; the answer is their folder in the cache."""
    module = "github.com/containerd/containerd/v2"
    ldflags = f"-s -w -X {module}/version.Version={CONTAINERD}"
    packages = [f"{module}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")]

    def make(out: Path) -> None:
        required = Path(_download(module, CONTAINERD)["GoMod"]).read_text()
        gomod = (
            f"module gpuplug.test/containerd\n\ngo {_go_line(required)}\n\nrequire {module} {CONTAINERD}\n"
        )
        _build_module(out, gomod, packages, ldflags)

    return cached(f"containerd-{CONTAINERD}", ldflags, make)


def source(module: str, version: str) -> Path:
    """Fetch a module and return the folder of its sources, for the files that are no Go."""
    return Path(_download(module, version)["Dir"])


def probe() -> Path:
    """Build our own program for the test images; the answer is its folder in the cache."""
    inputs = "".join(path.read_text() for path in sorted(_PROBE.iterdir()))

    def make(out: Path) -> None:
        env = {"CGO_ENABLED": "0"}
        _go(["build", "-ldflags", "-s -w", "-o", str(out / "probe"), "."], _PROBE, env)

    return cached("probe", inputs, make)


def _build_module(out: Path, gomod: str, packages: Sequence[str], ldflags: str, *, program: str = "") -> None:
    """Build packages of the modules that `gomod` requires; go fills in what it leaves out.

    :param program: the name of the one program, where it is not the package's own
    """
    module = out / "module"
    module.mkdir()
    (module / "go.mod").write_text(gomod)
    _go(["build", "-mod=mod", "-trimpath", "-ldflags", ldflags, "-o", f"{out}/{program}", *packages], module)


def _download(module: str, version: str) -> dict[str, str]:
    text = _go(["mod", "download", "-json", f"{module}@{version}"], Path("/"))
    answer: dict[str, str] = json.loads(text)
    return answer


def _go_line(gomod: str) -> str:
    found = _GO_LINE.search(gomod)
    if found is None:
        raise MissingRequirementError("a go.mod that names its Go version")
    return found[1]


def _go(arguments: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> str:
    """Run one go command, politely: other work shares the machine's cores."""
    full = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"} | (env or {})
    ran = subprocess.run(
        ["nice", "go", *arguments], cwd=folder, env=full, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        last = "; ".join(ran.stderr.strip().splitlines()[-3:])
        raise MissingRequirementError(f"go {arguments[0]} to work in {folder.name or '/'}: {last}")
    return ran.stdout
