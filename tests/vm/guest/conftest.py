"""Fixtures inside the virtual machine: its GPUs, and a gpuplug at work through each mount."""

import os
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from .gpus import Gpus
from .serving import Witnesses, early_witnesses

_COMPLAINTS = re.compile(r"BUG:|WARNING:|Oops|general protection|Call Trace")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def gpus() -> Gpus:
    return Gpus()


@pytest.fixture(scope="session")
async def watched(gpus: Gpus) -> AsyncIterator[Witnesses]:
    """Give the gpuplugs that run all the time; every test starts and ends with a machine without a GPU."""
    del gpus
    async with early_witnesses() as found:
        yield found


@pytest.fixture(autouse=True)
async def _tidy(gpus: Gpus) -> AsyncIterator[None]:
    yield
    await gpus.remove_all()


@pytest.fixture(scope="session")
def _kernel_log() -> Iterator[int]:
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(descriptor, 0, os.SEEK_END)  # what it said while it booted was not our doing
    yield descriptor
    os.close(descriptor)


@pytest.fixture(autouse=True)
def _quiet_kernel(_kernel_log: int, request: pytest.FixtureRequest) -> Iterator[None]:
    """See that the kernel had nothing to complain of: what follows would prove little."""
    yield
    said = []
    while True:
        try:
            said.append(os.read(_kernel_log, 8192).decode(errors="replace"))
        except BlockingIOError:
            break
    known = [function for mark in request.node.iter_markers("kernel_warns") for function in mark.args]
    assert not _complaints(said, known), "".join(said)


def _complaints(said: list[str], known: list[str]) -> list[str]:
    """Pick the lines that are complaints, without those of a warning that comes from a known function."""
    found = []
    excused = False
    for line in said:
        if "WARNING:" in line:
            excused = any(f" {function}+" in line for function in known)
        if _COMPLAINTS.search(line) and not excused:
            found.append(line)
        if "end trace" in line:
            excused = False
    return found
