"""Writes OCI images: one layer, no registry, no image tool.

A node in these tests cannot pull anything, so its images are made of the few files that they need.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_OCI = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(
    archive: Path, reference: str, files: Mapping[str, bytes], entrypoint: Sequence[str], machine: str
) -> None:
    """Write an OCI archive that `ctr image import` takes under the name `reference`.

    :param files: path inside the image → content; every file is executable, as all of ours are programs
    :param machine: the processor, in the words of uname
    """
    platform = {"os": "linux", "architecture": _ARCHITECTURES.get(machine, machine)}
    layer = _layer(files)
    blobs: dict[str, bytes] = {}

    def keep(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer_entry = keep("layer.v1.tar", layer)
    config = platform | {
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
    }
    config_entry = keep("config.v1+json", json.dumps(config).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": config_entry,
        "layers": [layer_entry],
    }
    manifest_entry = keep("manifest.v1+json", json.dumps(manifest).encode())
    manifest_entry |= {"platform": platform, "annotations": {"io.containerd.image.name": reference}}
    index = {"schemaVersion": 2, "manifests": [manifest_entry]}
    with tarfile.open(archive, "w") as out:
        _add(out, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(out, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(out, f"blobs/sha256/{digest}", content)


def _layer(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    return whole.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file owned by root and dated at the epoch, so that equal content makes equal archives."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o755
    tar.addfile(entry, io.BytesIO(content))
