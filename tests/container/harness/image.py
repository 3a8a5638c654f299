"""Builds the image as its Containerfile says, with nothing from a registry.

The base is made by mmdebstrap from the machine's own package sources, and the wheels of third parties lie
beside our own, so the build itself needs no network. Storage is a folder of this run: the images of the
machine's user are neither seen nor touched.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.node.harness.cache import cached
from tests.node.harness.needs import MissingRequirementError
from tests.node.harness.node import REPOSITORY
from tests.vm.harness.packages import machine_sources

CONTAINERS = REPOSITORY / "containers"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BASE = "localhost/base:1"
_BASE_PYTHON = "3.11"
"""The Python of the distribution below; wheels with compiled parts are fetched for it."""
_SUITE = "bookworm"


class Store:
    """Images of this run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Take an empty folder."""
        self._folder = folder
        self._buildah = [
            *("nice", "buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run")),
            *("--storage-driver", "overlay"),
        ]

    def build(self, reference: str, context: Path, file: Path, arguments: Mapping[str, str]) -> None:
        """Build an image.

        :param reference: the image's name and tag
        """
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        self._run("bud", "--isolation", "chroot", "-t", reference, "-f", str(file), *given, str(context))

    def archive(self, reference: str, *, packed: bool = True) -> Path:
        """Write an image as an OCI archive, which containerd imports.

        :param packed: as a registry would have it, which takes a while
        """
        archive = self._folder / f"{reference.replace('/', '_').replace(':', '_')}.tar"
        how = [] if packed else ["--disable-compression"]
        self._run("push", "-q", *how, reference, f"oci-archive:{archive}:{reference}")
        return archive

    def mounted(self, reference: str) -> "Mounted":
        """Mount an image, to look at its files."""
        return Mounted(self, reference)

    def inspect(self, reference: str) -> dict[str, object]:
        """Return the image's configuration, as the OCI writes it."""
        told = json.loads(self._run("inspect", "--type", "image", reference))
        found: dict[str, object] = told["OCIv1"]
        return found

    def close(self) -> None:
        """Unmount and remove everything."""
        self._run("umount", "--all")
        for mount in ("root/overlay", "run"):
            subprocess.run(["umount", str(self._folder / mount)], capture_output=True, check=False)
        shutil.rmtree(self._folder)

    def _run(self, *arguments: str) -> str:
        ran = subprocess.run([*self._buildah, *arguments], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"buildah {arguments[0]}:\n{ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
        return ran.stdout.strip()


class Mounted:
    """A mounted image, for a ``with`` block."""

    def __init__(self, store: Store, reference: str) -> None:
        """Remember what to mount."""
        self._store = store
        self._reference = reference
        self._container = ""

    def __enter__(self) -> Path:
        """Mount it and return where."""
        self._container = self._store._run("from", "--pull-never", self._reference)
        return Path(self._store._run("mount", self._container))

    def __exit__(self, *_: object) -> None:
        """Unmount it."""
        self._store._run("umount", self._container)
        self._store._run("rm", self._container)


def base() -> Path:
    """Make the base image's root file system: a small Debian with Python, like the slim images."""
    sources = [
        source.stanza(suite)
        for source in machine_sources()
        for suite in source.suites
        if suite in {_SUITE, f"{_SUITE}-updates", f"{_SUITE}-security"}
    ]
    if not sources:
        raise MissingRequirementError(f"package sources of Debian {_SUITE} (/etc/apt)")
    options = [
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude={p}" for p in _LEFT_OUT),
    ]
    command = ["nice", "mmdebstrap", "--variant=apt", "--include=python3-venv", *options, _SUITE]

    def make(out: Path) -> None:
        (out / "debian.sources").write_text("\n".join(sources))
        ran = subprocess.run(
            [*command, str(out / "base.tar"), str(out / "debian.sources")],
            capture_output=True,
            text=True,
            check=False,
        )
        (out / "debian.sources").unlink()
        (out / "Containerfile").write_text(f"FROM scratch\nADD base.tar /\nENV PATH={_PATH}\n")
        if ran.returncode:
            raise MissingRequirementError(f"mmdebstrap to work: {ran.stderr.strip()[-300:]}")

    return cached("base", " ".join(command) + _PATH, make)


def wheelhouse(lists: Path = CONTAINERS) -> Path:
    """Fetch the wheels that the lists name, for the base's Python and this machine's processor."""
    names = ("requirements.txt", "sbom-requirements.txt")
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in (28, 26, 17)] + [f"manylinux2014_{machine}"]
    options = [
        *("-q", "--only-binary", ":all:", "--no-deps", "--require-hashes", "--python-version", _BASE_PYTHON),
        *(word for tag in tags for word in ("--platform", tag)),
    ]

    def make(out: Path) -> None:
        for name in names:
            command = ["uv", "tool", "run", "-q", "pip", "download", *options]
            ran = subprocess.run(
                [*command, "-r", str(lists / name), "-d", str(out)],
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode:
                raise MissingRequirementError(f"pip to fetch {name}: {ran.stderr.strip()[-300:]}")

    inputs = "".join((lists / name).read_text() for name in names) + " ".join(options)
    return cached("wheels", inputs, make)


def context(folder: Path) -> Path:
    """Fill a folder with what the Containerfile copies: the lists, our wheels, and those of others."""
    folder.mkdir()
    for path in CONTAINERS.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    dist = folder / "dist"
    dist.mkdir()
    for wheel in wheelhouse().glob("*.whl"):
        shutil.copy(wheel, dist)
    command = ["uv", "build", "-q", "--all-packages", "--wheel", "--out-dir", str(dist)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return folder


def import_base(store: Store) -> str:
    """Make an image of the base's root file system; the answer is its name."""
    folder = base()
    store.build(_BASE, folder, folder / "Containerfile", {})
    return _BASE
