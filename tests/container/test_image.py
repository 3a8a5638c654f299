"""The image, as its Containerfile makes it."""

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.node.harness.node import REPOSITORY

from .conftest import VERSION, Images
from .harness.command import ran
from .harness.image import CONTAINERS

OURS = {
    "gpuplug",
    *(path.name for path in (REPOSITORY / "drivers").iterdir() if (path / "pyproject.toml").exists()),
}
LAYERS_MIB = 32
"""What the image may add to its base: gpuplug, its libraries and their byte code."""
NOT_THERE = {"pip", "pip3", "uv", "uvx", "gcc", "cc", "g++", "clang", "make", "ld", "as"}


@pytest.fixture(scope="session")
def files(images: Images) -> Iterator[Path]:
    with images.store.mounted(images.reference) as root:
        yield root


def site(root: Path) -> Path:
    (found,) = (root / "opt/gpuplug/lib").glob("python3.*/site-packages")
    return found


def installed(root: Path) -> dict[str, str]:
    found = (PathDistribution(path) for path in site(root).glob("*.dist-info"))
    return {each.metadata["Name"].lower().replace("_", "-"): each.version for each in found}


def test_the_lists_are_what_pyproject_asks_for_now(tmp_path: Path) -> None:
    for path in CONTAINERS.glob("*.txt"):
        shutil.copy(path, tmp_path)
    assert ran(CONTAINERS / "requirements", tmp_path) == (0, "")
    for path in CONTAINERS.glob("*.txt"):
        assert (tmp_path / path.name).read_text() == path.read_text(), (
            f"run containers/requirements: {path.name}"
        )


@pytest.mark.parametrize("name", ["requirements.txt", "sbom-requirements.txt"])
def test_the_lists_name_versions_and_hashes_and_no_index(name: str) -> None:
    for line in (CONTAINERS / name).read_text().splitlines():
        assert line.startswith("    --hash=sha256:") or ("==" in line and "://" not in line), line


@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_dependency_has_wheels_for_both_architectures(
    tmp_path: Path, machine: str, python: str
) -> None:
    command = ["uv", "pip", "install", "--dry-run", "--target", str(tmp_path), "--only-binary", ":all:"]
    chosen = ["--python-platform", f"{machine}-manylinux_2_28", "--python-version", python]
    code, told = ran(*command, *chosen, "--require-hashes", "-r", CONTAINERS / "requirements.txt")
    assert code == 0, told
    assert "Would install" in told


def test_its_configuration_is_that_of_a_program(images: Images) -> None:
    found = images.store.inspect(images.reference)["config"]
    assert isinstance(found, dict)
    assert found["Entrypoint"] == ["gpuplug"]
    assert found["User"] == "0:0"
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in found["Labels"].items()}
    assert labels["title"] == "gpuplug"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == VERSION
    assert {"description", "revision"} <= labels.keys()


def test_it_has_what_the_lists_say_and_all_driver_packages(files: Path) -> None:
    listed = {
        line.split("==")[0]
        for line in (CONTAINERS / "requirements.txt").read_text().splitlines()
        if "==" in line and "win32" not in line
    }
    assert installed(files).keys() == listed | OURS


def test_nothing_in_it_installs_or_compiles(files: Path) -> None:
    folders = [
        files / name for name in ("opt/gpuplug/bin", "usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin")
    ]
    programs = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    assert "gpuplug" in programs
    assert not programs & NOT_THERE
    assert not [
        path
        for name in ("pip", "ensurepip", "uv", "setuptools")
        for path in files.rglob(f"python3*/**/{name}")
    ]
    assert not list(files.rglob("pip-*.whl"))


def test_every_module_is_compiled_and_never_checked_again(files: Path) -> None:
    tag = f"cpython-{site(files).parent.name.removeprefix('python').replace('.', '')}"
    modules = [
        path
        for name in ("gpuplug", "gpuplug_intel", "grpclib", "anyio")
        for path in (site(files) / name).rglob("*.py")
    ]
    assert len(modules) > 100
    for path in modules:
        compiled = path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00", path  # by hash, unchecked (PEP 552)


def test_its_size_is_within_its_budget(images: Images, files: Path, measured: list[str]) -> None:
    def mib(path: Path) -> float:
        seen = (entry.lstat() for entry in path.rglob("*") if not entry.is_symlink())
        return sum(status.st_blocks for status in seen) * 512 / 2**20

    ours, whole = mib(files / "opt/gpuplug"), mib(files)
    packed = images.archive.stat().st_size / 2**20
    measured.append(
        f"image: {whole:.0f} MiB, of them ours {ours:.0f} (budget {LAYERS_MIB}); packed {packed:.0f} MiB"
    )
    assert ours <= LAYERS_MIB


def test_its_bill_of_materials_lists_exactly_what_is_in_it(files: Path) -> None:
    bill = json.loads((files / "opt/gpuplug/sbom/gpuplug.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    told = {each["name"].lower().replace("_", "-"): each["version"] for each in bill["components"]}
    assert told == installed(files)


def test_a_third_party_driver_is_three_lines_more(images: Images, tmp_path: Path) -> None:
    example = REPOSITORY / "examples/01-third-party-driver"
    shutil.copy(example / "Containerfile", tmp_path)
    command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--no-deps"]
    code, told = ran(*command, "--target", tmp_path / "site", example)
    assert code == 0, told
    lines = (tmp_path / "Containerfile").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith(("#", "ARG"))]) == 3
    check = tmp_path / "Check"
    check.write_text("FROM localhost/with-foogpu:1\nRUN gpuplug inspect > /said || test $? = 3\n")
    images.store.build(
        "localhost/with-foogpu:1", tmp_path, tmp_path / "Containerfile", {"GPUPLUG": images.reference}
    )
    images.store.build("localhost/checked:1", tmp_path, check, {})
    with images.store.mounted("localhost/checked:1") as root:
        assert "foogpu" in (root / "said").read_text()
