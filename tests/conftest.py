"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

from gpuplug.testing import Machine
from tests.folders import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator


# How long an example takes says something of the machine that it runs on, not of gpuplug.
# A run by hand draws fewer examples, so that it stays under two minutes.
settings.register_profile("gpuplug", deadline=None, max_examples=100 if os.environ.get("CI") else 40)
settings.load_profile("gpuplug")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Let what tests start be interrupted.

    The job that a script runs in the background ignores SIGINT, and so does all that it starts.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _no_blocking() -> Iterator[None]:
    """Fail what blocks the event loop in gpuplug; the fakes do their file work there on purpose."""
    shows = [f"gpuplug.commands.{name}" for name in ("demo", "demo_gpu", "say")]
    fakes = ["gpuplug.testing", *shows]
    with blockbuster_ctx(scanned_modules=["gpuplug"], excluded_modules=fakes) as guard:
        for function in guard.functions.values():  # what Allocate looks up is in memory: see there
            function.can_block_in("gpuplug/host/sysfs.py", "look")
            function.can_block_in("gpuplug/host/bypath.py", "mounts")
        yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Give a folder with a short path: a unix socket's may have 107 bytes, pytest's tmp_path is long."""
    with tempfile.TemporaryDirectory(prefix="gp-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def machine(short_path: Path) -> Machine:
    """Give a made-up machine without a GPU."""
    root = short_path / "machine"
    root.mkdir()
    return Machine(root)


@pytest.fixture
def kubelet_dir(short_path: Path) -> Path:
    """Give an empty folder for kubelet.sock and the sockets of plugins."""
    folder = short_path / "kubelet"
    folder.mkdir()
    return folder
