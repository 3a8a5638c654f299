"""The generated classes are what the .proto file gives, and speak under the API's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuplug.kubelet import podresources, v1beta1
from tests.strategies import MESSAGES, SOURCES, google_pool

ROOT = Path(__file__).resolve().parent.parent
GENERATE = ROOT / "protos" / "generate.py"


def test_generating_anew_gives_the_committed_files() -> None:
    check = subprocess.run(
        [sys.executable, GENERATE, "--check"], check=False, capture_output=True, text=True, cwd=ROOT.parent
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_a_file_that_was_edited_by_hand_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "protos"
    copy.mkdir()
    (copy / "generate.py").write_bytes(GENERATE.read_bytes())
    for api in ("deviceplugin", "podresources"):
        (copy / api).symlink_to(GENERATE.parent / api)
    target = tmp_path / "gpuplug" / "kubelet" / "v1beta1"
    target.parent.mkdir(parents=True)
    command = [sys.executable, str(copy / "generate.py")]
    subprocess.run(command, check=True)
    assert {path.name for path in target.iterdir()} == {"__init__.py", "message_pool.py"}

    (target / "message_pool.py").write_text("# mine now\n")
    check = subprocess.run([*command, "--check"], check=False, capture_output=True, text=True)

    assert check.returncode == 1
    assert "message_pool.py is not what deviceplugin/v1beta1.proto gives" in check.stderr
    assert "__init__.py" not in check.stderr
    assert "podresources" not in check.stderr


def test_the_services_have_the_paths_that_a_kubelet_calls() -> None:
    paths = {*v1beta1.DevicePluginBase().__mapping__(), *v1beta1.RegistrationBase().__mapping__()}
    assert paths == {
        "/v1beta1.Registration/Register",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        "/v1beta1.DevicePlugin/ListAndWatch",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/PreStartContainer",
    }


def test_the_pod_resources_have_the_paths_that_a_kubelet_serves() -> None:
    paths = set(podresources.PodResourcesListerBase().__mapping__())
    assert paths == {"/v1.PodResourcesLister/List", "/v1.PodResourcesLister/GetAllocatableResources"}


def test_every_message_of_the_proto_files_has_a_class() -> None:
    files = [google_pool().FindFileByName(source) for source in SOURCES]
    declared = {message.full_name for file in files for message in file.message_types_by_name.values()}
    assert {name if "." in name else f"v1beta1.{name}" for name in MESSAGES} == declared


def test_the_messages_import_without_the_compilers_and_without_googles_protobuf() -> None:
    code = "import sys, gpuplug.kubelet.wire; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    loaded = {name.partition(".")[0] for name in modules.stdout.split()}
    assert "betterproto2" in loaded
    assert loaded.isdisjoint({"google", "grpc", "grpc_tools", "betterproto2_compiler", "pydantic"})
