"""Writes what a kernel boots from: busybox, the modules to reach the host's files, and a script.

The script lays a folder in memory over the host's root, which stays read-only, and goes on from there.
"""

import gzip
import lzma
import stat
from collections.abc import Iterator
from pathlib import Path

# What one kernel has as a module another has built in; the latter are passed over.
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")

INIT = """#!/busybox sh
/busybox mkdir -p /proc /sys /dev /host /memory /root
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sysfs /sys
/busybox mount -t devtmpfs devtmpfs /dev
for module in $(/busybox cat /order); do /busybox insmod /modules/$module || echo "cannot load $module"; done
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
/busybox mount -t tmpfs memory /memory
/busybox mkdir /memory/upper /memory/work
/busybox mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root
share=$(/busybox sed -n 's/.*gpuplug\\.share=\\([^ ]*\\).*/\\1/p' /proc/cmdline)
/busybox mount -t 9p -o trans=virtio,version=9p2000.L,rw,msize=512000,cache=none share /root$share
for folder in proc sys dev; do /busybox mount --move /$folder /root/$folder; done
exec /busybox switch_root /root /bin/sh $share/init
"""


def write_initramfs(out: Path, modules: Path, busybox: Path) -> None:
    """Write the archive, with the modules that this kernel has as such, in the order to load them in."""
    archive = _Archive()
    archive.file("busybox", busybox.read_bytes(), 0o755)
    archive.file("init", INIT.encode(), 0o755)
    archive.folder("dev")
    archive.console()
    archive.folder("modules")
    names = []
    for path in load_order(modules):
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        names.append(path.name.removesuffix(".xz"))
        archive.file(f"modules/{names[-1]}", content, 0o644)
    archive.file("order", "\n".join(names).encode(), 0o644)
    out.write_bytes(archive.packed())


def load_order(modules: Path, wanted: tuple[str, ...] = MODULES) -> list[Path]:
    """Return the files of modules and of all that they depend on, each after what it needs."""
    needs: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    named = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order: dict[str, None] = {}
    for path in (named[name] for name in wanted if name in named):
        order.update(dict.fromkeys([*reversed(needs[path]), path]))
    return [modules / path for path in order]


class _Archive:
    """A cpio archive of the format that kernels read (`newc`)."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._count = 0

    def file(self, name: str, content: bytes, mode: int) -> None:
        self._add(name, stat.S_IFREG | mode, content)

    def folder(self, name: str) -> None:
        self._add(name, stat.S_IFDIR | 0o755)

    def console(self) -> None:
        self._add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def packed(self) -> bytes:
        self._add("TRAILER!!!", 0)
        return gzip.compress(bytes(self._data), compresslevel=1, mtime=0)

    def _add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        path = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        self._data += b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (path, content):
            self._data += part
            self._data += bytes(_padding(len(self._data)))


def _padding(length: int) -> int:
    return -length % 4


def names_in(archive: bytes) -> Iterator[str]:
    """Read the names back, for a look at what was written."""
    data, at = gzip.decompress(archive), 0
    while at < len(data):
        size, length = int(data[at + 54 : at + 62], 16), int(data[at + 94 : at + 102], 16)
        name = data[at + 110 : at + 109 + length].decode()
        if name == "TRAILER!!!":
            return
        yield name
        at += 110 + length
        at += _padding(at) + size
        at += _padding(at)
