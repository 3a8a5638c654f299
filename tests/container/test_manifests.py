"""The manifests, by those who have a say in them: linters, Kustomize, a policy check, and the API server."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.node.harness import gobuild
from tests.node.harness.node import REPOSITORY

from .conftest import VERSION
from .harness.cluster import Cluster, ControlPlane
from .harness.command import ran
from .harness.rendered import KUSTOMIZE, OVERLAYS, Rendered, kustomize, rendered

CHECKOV = "checkov==3.3.30"
OPERATOR = "github.com/prometheus-operator/prometheus-operator", "v0.85.0"
POD_MONITOR = "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"
EXAMPLES = sorted(REPOSITORY.glob("examples/0*/*.yaml"))
KINDS = {"Namespace", "DaemonSet", "NetworkPolicy", "PodMonitor"}


@pytest.fixture(scope="session")
def kubectl(plane: ControlPlane) -> Path:
    return plane.programs["kubectl"]


@pytest.fixture(scope="session")
def base(kubectl: Path) -> Rendered:
    return rendered(kubectl, "base")


def test_yamllint_is_silent_with_its_default_rules() -> None:
    assert ran("yamllint", "--strict", "-d", "extends: default", KUSTOMIZE, *EXAMPLES) == (0, "")


@pytest.mark.parametrize("folder", OVERLAYS)
def test_kustomize_builds_it_and_it_asks_for_nothing_but_a_daemon(kubectl: Path, folder: str) -> None:
    found = rendered(kubectl, folder)
    kinds = [each["kind"] for each in found.documents]
    assert set(kinds) <= KINDS  # no role, no service account, no definition of a resource
    assert kinds.count("DaemonSet") == 1


def test_a_policy_check_has_nothing_to_say_but_what_is_explained(kubectl: Path, tmp_path: Path) -> None:
    """One run for all, as it takes long to start; the last file shows that the run can fail."""
    for folder in OVERLAYS:
        (tmp_path / f"{folder.replace('/', '-')}.yaml").write_text(kustomize(kubectl, folder))
    bad = re.sub(r" +capabilities:\n +drop:\n +- ALL\n", "", kustomize(kubectl, "base"))
    (tmp_path / "bad.yaml").write_text(bad)
    options = ["--framework", "kubernetes", "--output", "json", "--quiet", "--skip-download"]
    code, told = ran("uv", "tool", "run", "-q", "--from", CHECKOV, "checkov", "-d", tmp_path, *options)
    assert code == 1
    found = json.loads(told)
    assert {(each["file_path"], each["check_id"]) for each in found["results"]["failed_checks"]} == {
        ("/bad.yaml", "CKV_K8S_28"),
        ("/bad.yaml", "CKV_K8S_37"),
    }
    assert found["summary"]["passed"] > 80 * len(OVERLAYS)


def test_it_takes_nothing_that_it_does_not_need(base: Rendered) -> None:
    pod, container = base.pod, base.container
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "container_device_plugin_t"}
    writable = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
    assert writable == ["/var/lib/kubelet/device-plugins"]
    types = {volume["hostPath"].get("type", "") for volume in pod["volumes"]}
    assert types == {"", "DirectoryOrCreate"}  # neither fails where a path is absent


def test_its_limits_fit_their_budget(base: Rendered) -> None:
    resources = base.container["resources"]
    assert int(resources["limits"]["memory"].removesuffix("Mi")) <= 115
    assert int(resources["requests"]["cpu"].removesuffix("m")) <= 100


def test_the_image_is_pinned_in_one_place_and_to_the_release(base: Rendered) -> None:
    assert (
        yaml.safe_load((KUSTOMIZE / "base/kustomization.yaml").read_text())["images"][0]["newTag"] == VERSION
    )
    assert base.container["image"] == f"localhost/gpuplug:{VERSION}"
    named = [path for path in KUSTOMIZE.rglob("*.yaml") if VERSION in path.read_text()]
    assert named == [KUSTOMIZE / "base/kustomization.yaml"]


def test_the_examples_run_the_image_of_the_release() -> None:
    for path in EXAMPLES:
        images = re.findall(r"^ +image: (\S+)$", path.read_text(), re.MULTILINE)
        assert set(images) == {f"localhost/gpuplug:{VERSION}"}, path


@pytest.mark.parametrize("folder", OVERLAYS)
async def test_the_api_server_accepts_it(cluster: Cluster, folder: str) -> None:
    if folder.endswith("monitoring"):
        definition = gobuild.source(*OPERATOR) / POD_MONITOR
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
        await cluster.run("wait", "--for=condition=Established", "crd", "--all")
    cluster.kubectl("create", "namespace", "gpuplug")  # a dry run makes none for what is in it
    try:
        told = cluster.kubectl("apply", "--dry-run=server", "-k", str(KUSTOMIZE / folder))
    finally:
        await cluster.run("delete", "namespace", "gpuplug")
    lines = told.splitlines()
    assert len(lines) >= 3
    # The namespace was made without an annotation of kubectl's, and kubectl says so.
    assert all(line.endswith("(server dry run)") or "last-applied-configuration" in line for line in lines), (
        told
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_api_server_accepts_the_examples_at_the_strictest_level(cluster: Cluster, path: Path) -> None:
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    name = path.parent.name
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, *(f"{key}={value}" for key, value in labels.items()))
    told = cluster.kubectl("apply", "--dry-run=server", "-n", name, "-f", str(path))
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    assert told.endswith("created (server dry run)\n")
    assert "Warning" not in told
