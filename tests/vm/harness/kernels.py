"""The kernels that this suite boots, in one place: a new one is one more line in KERNELS."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cache import cached
from .initramfs import write_initramfs
from .needs import MissingRequirementError, path_of
from .packages import Apt

MODULE: str = "gpustub"
_SOURCES = Path(__file__).parents[1] / "module"
_IMAGE = r"linux-image-(\d\S*-amd64)"
# All that is needed to boot a kernel and to build a module for it; the parts differ from one to the next.
_PARTS = r"linux-(base|binary|modules|headers|kbuild)-\d\S*"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the distribution: the metapackage that stands for its newest build, and where that is."""

    name: str
    """What tests are marked with."""
    metapackage: str
    suites: tuple[str, ...]
    libc: str = ""
    """A C library for the programs that come with the headers, if they were built for a newer release."""

    def __str__(self) -> str:
        return self.name


KERNELS = (
    Kernel("6.1", "linux-image-amd64", ("bookworm", "bookworm-security")),
    Kernel("6.12", "linux-image-6.12-amd64", ("bookworm", "bookworm-security")),
    Kernel("backport", "linux-image-amd64", ("trixie", "trixie-backports"), libc="libc6"),
)


@dataclass(frozen=True, slots=True)
class Bootable:
    """A kernel that is ready: all of it is in the cache."""

    kernel: Kernel
    release: str
    """What `uname -r` says."""
    image: Path
    modules: Path
    """The folder of its modules; inside the machine it is /lib/modules/RELEASE."""
    stub: Path
    """Our module, built for it."""
    initramfs: Path


def bootable(kernel: Kernel, tell: Callable[[str], object]) -> Bootable:
    """Get a kernel ready, or find it in the cache; `tell` hears of what takes long.

    The build that was the newest when it was fetched is kept: remove its folder to get a newer one.
    """

    def fetch(out: Path) -> None:
        tell(f"fetching kernel {kernel} into the cache: once, about 150 MB")
        _fetch(kernel, out)

    home = cached(f"kernel-{kernel}", repr(kernel), fetch)
    release = (home / "release").read_text().strip()
    modules = home / "root/lib/modules" / release
    image = next(
        path for path in (home / f"root/boot/vmlinuz-{release}", modules / "vmlinuz") if path.exists()
    )
    sources = sorted(_SOURCES.glob("*"))
    texts = "\n".join(path.read_text() for path in sources)
    stub = cached(f"{MODULE}-{kernel}", release + texts, lambda out: _build(home, release, sources, out))
    busybox = Path(path_of("busybox"))
    inputs = f"{release} {busybox.stat().st_size} {Path(write_initramfs.__code__.co_filename).read_text()}"
    start = cached(
        f"initramfs-{kernel}", inputs, lambda out: write_initramfs(out / "image", modules, busybox)
    )
    return Bootable(kernel, release, image, modules, stub / f"{MODULE}.ko", start / "image")


def _fetch(kernel: Kernel, out: Path) -> None:
    """Lay out a kernel, its modules and its headers below `out/root`."""
    root = out / "root"
    root.mkdir()
    with tempfile.TemporaryDirectory(prefix="apt-", dir=out) as folder:
        apt = Apt(Path(folder), kernel.suites)
        image = apt.newest(kernel.metapackage, _IMAGE)
        release = image.removeprefix("linux-image-")
        headers = f"linux-headers-{release}"
        parts = {image, headers, *apt.dependencies(image, _PARTS), *apt.dependencies(headers, _PARTS)}
        apt.unpack(sorted(parts), root)
        if kernel.libc:
            apt.unpack([kernel.libc], out / "libc")
    if not (root / "lib").exists():  # newer packages know /usr/lib only
        (root / "lib").symlink_to("usr/lib")
    (out / "release").write_text(f"{release}\n")
    subprocess.run([path_of("depmod"), "-b", str(root), release], check=True)
    if kernel.libc:
        _give_libc(root, next((out / "libc").glob("usr/lib/*/ld-linux-x86-64.so.2")))


def _give_libc(root: Path, loader: Path) -> None:
    """Make the programs that build modules run with the C library that they were built for.

    Each becomes a script that starts it by that library's loader. Some of them find others by the name
    that they were called with, so they keep it; and the cache may be moved, so all is found from there.
    """
    for folder in root.glob("usr/lib/linux-kbuild-*"):
        for program in [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]:
            with program.open("rb") as file:
                if file.read(4) != b"\x7fELF" or not program.stat().st_mode & 0o100:
                    continue
            real = program.rename(program.with_name(f"{program.name}.elf"))
            up = "/".join(".." for _ in program.relative_to(root.parent).parents[:-1])
            libc = f'"$here/{up}/{loader.relative_to(root.parent)}"'
            program.write_text(
                f'#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nlibc={libc}\n'
                f'exec "$libc" --library-path "$(dirname "$libc")" --argv0 "$0" "$here/{real.name}" "$@"\n'
            )
            program.chmod(0o755)


def _build(home: Path, release: str, sources: list[Path], out: Path) -> None:
    """Build our module. The headers say where they want to be installed, so make is told where they are."""
    for path in sources:
        shutil.copy(path, out)
    headers = home / f"root/usr/src/linux-headers-{release}"
    common = next((home / "root/usr/src").glob("linux-headers-*-common"))
    settings = {
        "KBUILD_OUTPUT": headers,
        "M": out,
        "CC": "gcc",
        "CONFIG_DEBUG_INFO_BTF_MODULES": "",  # it needs the vmlinux and pahole
        "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT": "",  # an option of compilers newer than some releases have
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    ran = subprocess.run(
        ["nice", "-n", "10", "make", "-C", headers, "-f", common / "Makefile", *words, "modules"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        said = [line.strip() for line in ran.stdout.splitlines() if re.search(r"(?i)error|not found", line)]
        raise MissingRequirementError(f"to build its module for {release}: {' | '.join(said[:3])}")
