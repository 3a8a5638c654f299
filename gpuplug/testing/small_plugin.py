# ruff: noqa: ASYNC110, ASYNC240 - it looks at one file every so often, and that is all it does
"""A tiny device plugin for another resource: the neighbour that gpuplug must get on with.

::

    python -m gpuplug.testing.small_plugin --kubelet-dir DIR --resource example.com/widget --count 2

It shares the generated messages with gpuplug and nothing else, so a fault in how gpuplug registers or serves
cannot hide in both. Its Devices are made up: a container that asks for some is told their ids in the
environment variable ``WIDGETS``. When the kubelet's socket is made anew it serves on a new socket of its own
and registers again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Server

from gpuplug.kubelet import v1beta1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

ENVIRONMENT: Final = "WIDGETS"
"""The variable that names a container's Devices, comma-separated."""
KUBELET_DIR: Final = Path("/var/lib/kubelet/device-plugins")

_LOOK_SECONDS: Final = 0.1
_REGISTER_SECONDS: Final = 15


@dataclass(frozen=True, slots=True)
class SmallPlugin(v1beta1.DevicePluginBase):
    """Serves one fixed list of healthy Devices."""

    ids: Sequence[str]

    async def get_device_plugin_options(self, message: v1beta1.Empty) -> v1beta1.DevicePluginOptions:  # noqa: ARG002
        """Ask for no optional call."""
        return v1beta1.DevicePluginOptions()

    async def list_and_watch(self, message: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:  # noqa: ARG002
        """Send the list once, then keep the stream open: the kubelet counts on that."""
        devices = [v1beta1.Device(id=identity, health="Healthy") for identity in self.ids]
        yield v1beta1.ListAndWatchResponse(devices=devices)
        await asyncio.Event().wait()

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """Tell each container which Devices are its own."""
        answers = [
            v1beta1.ContainerAllocateResponse(envs={ENVIRONMENT: ",".join(sorted(request.devices_ids))})
            for request in message.container_requests
        ]
        return v1beta1.AllocateResponse(container_responses=answers)


@contextlib.asynccontextmanager
async def serving(socket: Path, ids: Sequence[str]) -> AsyncIterator[None]:
    """Serve the Devices on a socket, until the block ends."""
    socket.unlink(missing_ok=True)
    server = Server([SmallPlugin(ids)])
    await server.start(path=str(socket))
    try:
        yield
    finally:
        server.close()
        socket.unlink(missing_ok=True)


async def register(kubelet: Path, endpoint: str, resource: str) -> None:
    """Tell the kubelet of a socket beside its own; raises what the kubelet answers as ``GRPCError``."""
    channel = Channel(path=str(kubelet))
    try:
        request = v1beta1.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
        await v1beta1.RegistrationStub(channel).register(request, timeout=_REGISTER_SECONDS)
    finally:
        channel.close()


async def run(kubelet_dir: Path, resource: str, count: int) -> None:
    """Serve and register, again for every new kubelet, until cancelled."""
    kubelet = kubelet_dir / "kubelet.sock"
    ids = [f"widget-{number}" for number in range(count)]
    for generation in itertools.count():
        while (identity := _identity(kubelet)) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        socket = kubelet_dir / f"small-{os.getpid()}-{generation}.sock"
        async with serving(socket, ids):
            with contextlib.suppress(OSError, GRPCError, StreamTerminatedError, TimeoutError):
                await register(kubelet, socket.name, resource)
                print("registered", flush=True)  # noqa: T201 - whoever started this process waits for it
            while _identity(kubelet) == identity:
                await asyncio.sleep(_LOOK_SECONDS)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


async def until_terminated(kubelet_dir: Path, resource: str, count: int) -> None:
    """Do as ``run``, until SIGTERM or SIGINT."""
    task = asyncio.ensure_future(run(kubelet_dir, resource, count))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="small_plugin", description="A tiny device plugin, for tests.")
    parser.add_argument("--kubelet-dir", type=Path, default=KUBELET_DIR)
    parser.add_argument("--resource", default="example.com/widget")
    parser.add_argument("--count", type=int, default=2)
    options = parser.parse_args(arguments)
    asyncio.run(until_terminated(options.kubelet_dir, options.resource, options.count))


if __name__ == "__main__":
    main()
