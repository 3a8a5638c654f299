"""The harness itself: what it fetches, what it boots, and what it says when something goes wrong."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .harness.initramfs import names_in
from .harness.kernels import Bootable
from .harness.kinds import KINDS
from .harness.machine import REPOSITORY, Plan, booted, command_line
from .harness.needs import MissingRequirementError
from .harness.packages import Source, machine_sources, stanzas


def test_suites_are_found_where_the_machine_gets_its_own_from(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb [signed-by=/k arch=amd64] file:/debian-security oldest-security main\n"
    )
    (tmp_path / "sources.list.d/a.sources").write_text(
        "# a comment\nTypes: deb\nURIs: file:/debian\nSuites: old old-updates\nSigned-By:\n /key.gpg\n\n"
        "Types: deb\nURIs: file:/debian-off\nSuites: x\nEnabled: no\n"
    )
    sources = machine_sources(tmp_path)
    assert sources == [
        Source("file:/debian", ("old", "old-updates"), "/key.gpg"),
        Source("file:/debian-security", ("oldest-security",), "/k"),
    ]
    text = stanzas(sources, ["new-backports", "new-security"])
    assert "URIs: file:/debian\nSuites: new-backports\n" in text
    assert "URIs: file:/debian-security\nSuites: new-security\n" in text


def test_a_machine_without_sources_of_the_distribution_is_told_so_in_one_line() -> None:
    with pytest.raises(
        MissingRequirementError, match=r"^tests/vm needs Debian apt sources on this machine, to get x from$"
    ):
        stanzas([], ["x"])


def test_a_missing_program_ends_the_run_with_one_line(tmp_path: Path) -> None:
    for program in ("apt-get", "busybox"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/vm/guest"],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in ran.stdout.splitlines() if "needs" in line]
    assert ran.returncode == 1
    assert [line.strip("! ") for line in said] == [
        "_pytest.outcomes.Exit: tests/vm needs qemu-system-x86_64 (package qemu-system-x86)"
    ]


@pytest.mark.one_kernel
def test_a_machine_is_always_emulated_and_cannot_write_to_the_host(
    machine_kernel: Bootable, tmp_path: Path
) -> None:
    line = command_line(Plan(machine_kernel, [], 1), tmp_path)
    assert line[line.index("-accel") + 1].startswith("tcg")
    exported = [word for word in line if word.startswith("local,")]
    assert [word for word in exported if "readonly=on" not in word] == [
        f"local,id=share,path={tmp_path}/share,security_model=none,multidevs=remap"
    ]


@pytest.mark.one_kernel
def test_only_a_machine_with_a_kubelet_has_cpusets(machine_kernel: Bootable, tmp_path: Path) -> None:
    words = {
        cpusets: command_line(Plan(machine_kernel, [], 1, cpusets=cpusets), tmp_path)
        for cpusets in (False, True)
    }
    assert [any("cgroup_disable=cpuset" in word for word in line) for line in words.values()] == [True, False]
    assert {folder.name for folder, kind in KINDS.items() if kind.cpusets} == {"whole"}


@pytest.mark.one_kernel
def test_a_kernel_that_panics_is_said_to_have(machine_kernel: Bootable) -> None:
    crash = "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; sleep 1000"
    with booted(Plan(machine_kernel, ["sh", "-c", crash], 60)) as machine:
        assert machine.wait() == "its kernel panicked"
        assert "sysrq triggered crash" in machine.story()


def test_what_a_kernel_boots_from_has_every_module_that_it_lacks(machine_kernel: Bootable) -> None:
    names = set(names_in(machine_kernel.initramfs.read_bytes()))
    assert {"init", "busybox", "modules/9p.ko", "modules/9pnet_virtio.ko", "modules/overlay.ko"} <= names
    if machine_kernel.kernel.name == "6.1":
        assert {"modules/virtio_pci.ko", "modules/virtio_console.ko"} <= names


@pytest.mark.one_kernel
def test_a_machine_that_hangs_is_ended_at_its_deadline_and_its_console_shown(
    machine_kernel: Bootable,
) -> None:
    hang = "echo hangs > /dev/console; echo here > $GPUPLUG_VM_SHARE/gpuplug-x.log; touch /x; sleep 1000"
    with booted(Plan(machine_kernel, ["sh", "-c", hang], 60)) as machine:
        log = machine.share / "gpuplug-x.log"
        while not log.exists() or "here" not in log.read_text():
            assert not machine.over(), machine.story()
            time.sleep(0.1)
        machine.plan = Plan(machine_kernel, [], 0)  # its deadline is now
        assert machine.wait() == "it was ended, as it was not done within 0 s"
        story = machine.story()
        folder = machine.share.parent
    assert "hangs" in story
    assert "--- the last of gpuplug-x.log" in story
    assert "here" in story
    assert not folder.exists()
    assert not Path("/x").exists()  # what it wrote to its root was in memory
