"""Run parts of gpuplug beside a made-up kubelet, and wait for what becomes of it."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from loguru import logger

from gpuplug.core.identity import SOCKET_PREFIX
from gpuplug.host.watch import Place, watch
from gpuplug.kubelet.endpoint import Endpoint, KubeletDirectory, Patience
from gpuplug.latest import Latest
from gpuplug.model import Allocation, DeviceSpec, DrmNode, Gpu, Offer, Resource, ResourceName
from gpuplug.testing import FakeKubelet
from gpuplug.witness import NOBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from gpuplug.kubelet.service import Allocator
    from gpuplug.witness import Witness

T = TypeVar("T")

I915 = "gpu.intel.com/i915"
XE = "gpu.intel.com/xe"
A, B, C = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"


def gpu(address: str, number: int = 0) -> Gpu:
    """Describe a GPU with one render node."""
    name = f"renderD{128 + number}"
    node = DrmNode(name, f"/dev/dri/{name}", f"/dev/dri/{name}", 226, 128 + number)
    return Gpu(address, "pci", "i915", (node,), vendor=0x8086, device=0x56A0)


def resource(*addresses: str, name: str = I915, shares: int = 1) -> Resource:
    """Describe a Resource with these GPUs."""
    offers = []
    for number, address in enumerate(addresses):
        known = gpu(address, number)
        specs = tuple(DeviceSpec(node.path, node.host_path) for node in known.nodes)
        offers.append(Offer(known, "i915", shares, specs))
    return Resource(ResourceName(name), tuple(offers))


async def allocate_from_the_list(resource: Resource, ids: Sequence[str]) -> Allocation:
    """Answer an Allocate without a look at any machine."""
    del ids
    return Allocation(tuple(spec for offer in resource.offers for spec in offer.specs))


async def until(latest: Latest[T], done: Callable[[T], bool], what: str = "", within: float = 5.0) -> T:
    """Wait until the newest value is as wanted; return it."""
    version = -1
    with anyio.move_on_after(within):
        while True:
            version, value = await latest.newer(version)
            if done(value):
                return value
    raise TimeoutError(f"not within {within} s: {what or done}; it is {latest.value}")


@asynccontextmanager
async def running_kubelet(
    directory: Path,
    *,
    dial_back: Literal["before", "after"] = "before",
    started: bool = True,
) -> AsyncIterator[FakeKubelet]:
    """Run a made-up kubelet, and see that no failure of a test gets lost in its end."""
    failure: BaseException | None = None
    async with FakeKubelet(directory, dial_back=dial_back, started=started) as kubelet:
        try:
            yield kubelet
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        raise failure


@asynccontextmanager
async def running_endpoint(
    directory: Path,
    served: Resource,
    *,
    process: str = "000001",
    allocate: Allocator = allocate_from_the_list,
    patience: Patience | None = None,
    witness: Witness = NOBODY,
) -> AsyncIterator[Endpoint]:
    """Run an Endpoint, with real inotify on the kubelet's folder."""
    kubelet = KubeletDirectory(str(directory), process, Latest(None))
    endpoint = Endpoint(served, kubelet, allocate, patience or Patience(), witness=witness)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, (Place(str(directory)),), lambda _: kubelet.ticks.set(None))
        tasks.start_soon(endpoint.run)
        yield endpoint
        tasks.cancel_scope.cancel()


def own_sockets(directory: Path) -> list[str]:
    """Name the sockets of gpuplug in the kubelet's folder."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith(SOCKET_PREFIX))


def open_files() -> list[str]:
    """Say what every open file descriptor of this process is."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:  # the listing's own
            continue
    return sorted(found)


@contextmanager
def heard(level: str = "INFO") -> Iterator[list[str]]:
    """Collect the lines of the log."""
    lines: list[str] = []
    sink = logger.add(
        lambda message: lines.append(str(message).strip()), level=level, format="{level} {message}"
    )
    try:
        yield lines
    finally:
        logger.remove(sink)


async def eventually(there: Callable[[], bool], what: Callable[[], str], within: float = 5.0) -> None:
    """Wait for what nobody tells of: the file system, the log."""
    with anyio.move_on_after(within):
        while not there():  # noqa: ASYNC110 - see above
            await anyio.sleep(0.002)
        return
    raise TimeoutError(f"not within {within} s: {what()}")


async def settled(kubelet: FakeKubelet, name: str, devices: set[str], *, sockets: int = 1) -> None:
    """Wait until the kubelet has these Devices and no other, over one stream and so many sockets of ours."""
    state = kubelet.resource(name)
    await eventually(
        lambda: (
            state.connected
            and state.streams == 1
            and state.latest is not None
            and state.healthy == devices
            and len(own_sockets(kubelet.directory)) == sockets
        ),
        lambda: f"{name} settled with {sorted(devices)}; the kubelet has: {kubelet}",
    )
