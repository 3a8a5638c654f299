"""The other device plugin, which gpuplug is tested beside."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from gpuplug.testing import small_plugin
from tests.running import running_kubelet

if TYPE_CHECKING:
    from pathlib import Path

WIDGET = "example.com/widget"
IDS = {"widget-0", "widget-1"}


def sockets(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("small-*.sock")}


async def test_it_waits_for_a_kubelet_and_serves_every_new_one_on_a_new_socket(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir, started=False) as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(small_plugin.run, kubelet_dir, WIDGET, 2)
        await kubelet.start()
        await kubelet.wait_for_devices(WIDGET, IDS)
        first = sockets(kubelet_dir)
        await kubelet.restart()
        await kubelet.wait_for_devices(WIDGET, IDS)
        second = sockets(kubelet_dir)
        tasks.cancel_scope.cancel()
    assert len(first) == len(second) == 1
    assert first != second
    assert not sockets(kubelet_dir), "it takes its socket along"


async def test_a_container_is_told_its_devices_by_name(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        small_plugin.serving(kubelet_dir / "w.sock", sorted(IDS)),
    ):
        await small_plugin.register(kubelet_dir / "kubelet.sock", "w.sock", WIDGET)
        await kubelet.wait_for_devices(WIDGET, IDS)
        answer = await kubelet.allocate(WIDGET, [["widget-1", "widget-0"], ["widget-1"]])
    told = [container.envs for container in answer.container_responses]
    assert told == [{small_plugin.ENVIRONMENT: "widget-0,widget-1"}, {small_plugin.ENVIRONMENT: "widget-1"}]


async def test_the_command_line_serves_until_it_is_told_to_leave(
    kubelet_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, as nothing else would show what the command line does with its options."""
    async with running_kubelet(kubelet_dir) as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(small_plugin.until_terminated, kubelet_dir, WIDGET, 3)
        await kubelet.wait_for_devices(WIDGET, IDS | {"widget-2"})
        os.kill(os.getpid(), signal.SIGTERM)
    assert not sockets(kubelet_dir)
    assert capfd.readouterr().out == "registered\n"


async def test_an_unknown_option_is_an_error_of_usage() -> None:
    with pytest.raises(SystemExit, match="2"):
        await to_thread.run_sync(small_plugin.main, ["--colour", "red"])
