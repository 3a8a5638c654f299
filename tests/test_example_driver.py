"""examples/01-third-party-driver: a copy of it is built, installed, tested and served, as people would."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.distributions import Site
from tests.running import A, running_kubelet
from tests.serving import serving

if TYPE_CHECKING:
    from gpuplug.testing import Machine

EXAMPLE = Path(__file__).parents[1] / "examples/01-third-party-driver"
FOO = "gpu.example.com/foo"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the example, outside the repository."""
    folder = tmp_path_factory.mktemp("example") / "gpuplug-foogpu"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    return folder


@pytest.fixture(scope="module")
def site(copy: Path) -> Site:
    """Build the wheel with its own build backend, and install it into a folder of its own."""
    build = "import hatchling.build; print(hatchling.build.build_wheel('dist'))"
    (copy / "dist").mkdir()
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, text=True)
    site = Site(copy.parent / "site")
    with zipfile.ZipFile(copy / "dist" / done.stdout.strip()) as wheel:
        wheel.extractall(site.folder)
    return site


def test_its_own_tests_pass_where_it_is_installed(copy: Path, site: Site) -> None:
    environ = site.environ(PYTEST_ADDOPTS="")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=copy, env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"^([0-9]+) passed", done.stdout, re.MULTILINE)
    assert int(passed) > 20
    assert "skipped" not in done.stdout


async def test_its_gpus_are_served_as_those_of_any_other_package(
    site: Site, machine: Machine, kubelet_dir: Path
) -> None:
    machine.add_gpu(A, driver="foogpu", attributes={"foo_state": "running\n"})
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        serving(machine, kubelet_dir, packages=site.folder) as serve,
    ):
        await kubelet.wait_for_devices(FOO, {A}, within=20)
        answer = (await kubelet.allocate(FOO, [[A]])).container_responses[0]
        assert answer.envs["FOO_VISIBLE_GPUS"] == A
        assert [spec.container_path for spec in answer.devices] == ["/dev/dri/card0", "/dev/dri/renderD128"]
        assert f"advertised as {FOO}" in serve.log


def test_it_is_as_short_as_the_readme_says() -> None:
    def lines(path: str) -> int:
        text = (EXAMPLE / path).read_text()
        return len([line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")])

    assert lines("gpuplug_foogpu.py") <= 35
    assert lines("test_foogpu.py") <= 15
    instructions = [line.split()[0] for line in (EXAMPLE / "Containerfile").read_text().splitlines()]
    assert instructions == ["#", "ARG", "FROM", "COPY", "ENV"]
