"""The manifests as Kustomize renders them: read, and changed where a test needs it, never retold."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.node.harness.node import REPOSITORY

from .command import ran

KUSTOMIZE = REPOSITORY / "containers" / "kustomize"
OVERLAYS = ("base", *sorted(f"overlays/{path.name}" for path in (KUSTOMIZE / "overlays").iterdir()))

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one folder of manifests comes to."""

    documents: tuple[Document, ...]

    @property
    def daemon_set(self) -> Document:
        """The DaemonSet among them."""
        (found,) = (each for each in self.documents if each["kind"] == "DaemonSet")
        return found

    @property
    def pod(self) -> Document:
        """The pod that the DaemonSet makes, as it stands in its template."""
        found: Document = self.daemon_set["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> Document:
        """Its one container."""
        (found,) = self.pod["containers"]
        return dict(found)

    def text(self) -> str:
        """Write them as kubectl takes them."""
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": self.documents})

    def changed(self, *, image: str = "", env: Mapping[str, str] | None = None) -> "Rendered":
        """Return the same with another image or with more environment variables."""
        documents = copy.deepcopy(self.documents)
        again = Rendered(documents)
        (container,) = again.pod["containers"]
        if image:
            container["image"] = image
        container["env"] += [{"name": name, "value": value} for name, value in (env or {}).items()]
        return again

    def as_pod(
        self, name: str, *, without: str = "", host_paths: Mapping[str, str] | None = None
    ) -> Document:
        """Return a pod made of the template, which ends when its container does.

        :param without: the volume mount to leave out
        :param host_paths: volume → another path on the node
        """
        spec = copy.deepcopy(self.pod)
        (container,) = spec["containers"]
        kept = [each for each in container["volumeMounts"] if each["name"] != without]
        assert bool(without) == (len(kept) < len(container["volumeMounts"]))
        container["volumeMounts"] = kept
        for volume in spec["volumes"]:
            if volume["name"] in (host_paths or {}):
                volume["hostPath"]["path"] = (host_paths or {})[volume["name"]]
        spec["restartPolicy"] = "Never"
        namespace = self.daemon_set["metadata"]["namespace"]
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def kustomize(kubectl: Path, folder: str) -> str:
    """Build a folder of manifests, as YAML."""
    code, text = ran(kubectl, "kustomize", KUSTOMIZE / folder)
    assert code == 0, text
    return text


def rendered(kubectl: Path, folder: str) -> Rendered:
    """Build a folder of manifests, as objects."""
    return Rendered(tuple(yaml.safe_load_all(kustomize(kubectl, folder))))
