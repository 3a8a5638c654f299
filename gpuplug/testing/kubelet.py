"""A made-up kubelet on a real unix socket, for tests of what talks to one.

::

    async with FakeKubelet(directory) as kubelet:
        ...  # start a plugin that registers with directory / "kubelet.sock"
        await kubelet.wait_for_devices("gpu.intel.com/i915", {"0000:03:00.0"})
        answer = await kubelet.allocate("gpu.intel.com/i915", [["0000:03:00.0"]])
        await kubelet.restart()

It behaves as pkg/kubelet/cm/devicemanager of Kubernetes 1.36 does (file names in
comments are relative to that), or as it did up to 1.24 with ``dial_back="after"``.
Pods, admission and checkpoints are left out.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio
from grpclib.exceptions import GRPCError, StreamTerminatedError

from gpuplug.errors import GpuplugError
from gpuplug.kubelet.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    DevicePluginStub,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
)
from gpuplug.testing.records import Ledger
from gpuplug.testing.registry import Faults, Manners, Registry, clean
from gpuplug.testing.transport import KubeletServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskGroup

    from gpuplug.testing.records import KubeletResource, Registration
    from gpuplug.testing.registry import Client

T = TypeVar("T")


class FakeKubeletError(GpuplugError):
    """A call of the kubelet to a plugin failed; the text says which call and why."""


class FakeKubelet:
    """The device manager of a kubelet, as a plugin sees it.

    An async context manager. All that it keeps may be read at any time; every change wakes
    ``wait_for``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        dial_back: Literal["before", "after"] = "before",
        dial_timeout: float = 10.0,
        cleans: Literal["sockets", "files"] = "sockets",
        history: int | None = None,
        started: bool = True,
    ) -> None:
        """Describe a kubelet; entering it starts it, unless ``started=False`` leaves that to you.

        ``directory`` is where kubelet.sock goes; a socket's path has 107 bytes at most.
        ``dial_back``: newer kubelets dial the plugin and ask for its options before they
        answer Register; older ones answer first, take the options that came with Register,
        and disconnect only the client whose own stream ended.
        ``dial_timeout``: seconds for which a plugin's socket is tried.
        ``cleans``: what a start deletes in the directory: sockets, or (older) all files.
        ``history``: how many lists to keep per resource, all by default.
        """
        self.directory: Final = directory
        self.socket_path: Final = directory / "kubelet.sock"
        self.faults: Final = Faults()
        self._manners: Final = Manners(dial_back, dial_timeout)
        self._cleans: Final = cleans
        self._start_at_once: Final = started
        self._ledger: Final = Ledger(history)
        self._tasks: TaskGroup | None = None
        self._registry: Registry | None = None
        self._server: KubeletServer | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            if self._start_at_once:
                await self.start()
        except BaseException:
            await self._tasks.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._tasks is None:
            return None
        with anyio.CancelScope(shield=True):
            await self.stop()
        self._tasks.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._tasks.__aexit__(kind, error, trace)
        await self._tasks.__aexit__(None, None, None)  # the error leaves as it is: not in a group, nor lost
        return None

    async def start(self) -> None:
        """Delete what earlier lives left in the directory, then listen on a new kubelet.sock.

        Raises ``RuntimeError`` if it runs already or was not entered, ``OSError`` where it
        cannot listen.
        """
        if self._server is not None:
            raise RuntimeError("this kubelet runs already")
        if self._tasks is None:
            raise RuntimeError("enter this kubelet (async with) before you start it")
        self.directory.mkdir(parents=True, exist_ok=True)
        clean(self.directory, self._cleans)
        self._ledger.note_start()
        self._registry = Registry(self.directory, self._manners, self.faults, self._ledger, self._tasks)
        self._server = await self._listen(self._registry)
        (self.directory / "DEPRECATION").touch()  # plugin/v1beta1/handler.go

    async def stop(self, *, remove_socket: bool = True) -> None:
        """End the server and all connections; a kubelet that is stopped already stays so.

        A kubelet that ends in order removes its socket, one that is killed leaves it behind.
        """
        server, self._server = self._server, None
        if self._registry is not None:
            self._registry.end()
        if server is not None:
            if remove_socket:
                self.socket_path.unlink(missing_ok=True)
            await server.end()

    async def restart(self, *, remove_socket: bool = True) -> None:
        """Stop and start."""
        await self.stop(remove_socket=remove_socket)
        await self.start()

    async def recreate_socket(self) -> None:
        """Make kubelet.sock anew (another inode) while the connections to plugins go on.

        Raises ``RuntimeError`` if this kubelet is stopped.
        """
        old = self._server
        if old is None or self._registry is None:
            raise RuntimeError("this kubelet is stopped")
        self.socket_path.rename(self.socket_path.with_suffix(".old"))  # keeps its inode number taken
        self._server = await self._listen(self._registry)
        self.socket_path.with_suffix(".old").unlink()
        await old.end()

    async def _listen(self, registry: Registry) -> KubeletServer:
        server = KubeletServer([registry])
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self.socket_path))
            await server.start(sock=listener)
        except BaseException:
            listener.close()
            raise
        return server

    # what it has seen

    @property
    def registrations(self) -> Sequence[Registration]:
        """All Register calls, in the order of arrival, across restarts."""
        return self._ledger.registrations

    def registered(self, name: str) -> list[Registration]:
        """Return the Register calls for one resource, in the order of arrival."""
        return [registration for registration in self.registrations if registration.resource == name]

    def resource(self, name: str) -> KubeletResource:
        """Return what there is of a resource; one that was never heard of is empty."""
        return self._ledger.resource(name)

    async def wait_for(
        self, predicate: Callable[[FakeKubelet], T], what: str = "", *, within: float = 5.0
    ) -> T:
        """Wait until ``predicate`` of this kubelet is true; return its value.

        Raises ``TimeoutError`` after ``within`` seconds; the text says ``what`` was awaited and
        what there is instead.
        """
        with anyio.move_on_after(within):
            while not (value := predicate(self)):
                await self._ledger.changed()
            return value
        raise TimeoutError(f"not within {within} s: {what or predicate}; the kubelet has: {self}")

    async def wait_for_devices(self, resource: str, healthy: Collection[str], *, within: float = 5.0) -> None:
        """Wait until exactly these Devices of a connected resource are healthy.

        Raises ``TimeoutError`` as ``wait_for`` does.
        """
        wanted = frozenset(healthy)

        def there(kubelet: FakeKubelet) -> bool:
            state = kubelet.resource(resource)
            return state.connected and state.latest is not None and state.healthy == wanted

        await self.wait_for(there, f"{resource} with healthy {sorted(wanted)}", within=within)

    def __str__(self) -> str:
        """Say in one line what there is."""
        return f"{'stopped' if self._server is None else 'running'}; {self._ledger}"

    # what it does to plugins

    async def allocate(
        self, resource: str, containers: Sequence[Collection[str]], *, within: float = 5.0
    ) -> AllocateResponse:
        """Call Allocate for the Device ids of each container.

        Raises ``FakeKubeletError`` for an error answer, a lost connection, no answer ``within``
        seconds, or a resource that is not connected.
        """
        message = AllocateRequest([ContainerAllocateRequest(list(ids)) for ids in containers])
        return await self._call(resource, "Allocate", lambda stub: stub.allocate(message), within)

    async def preferred(
        self,
        resource: str,
        available: Collection[str],
        size: int,
        must_include: Collection[str] = (),
        *,
        within: float = 5.0,
    ) -> PreferredAllocationResponse:
        """Call GetPreferredAllocation for one container, which is all that kubelets ask for.

        Raises as ``allocate`` does.
        """
        name = "GetPreferredAllocation"
        question = ContainerPreferredAllocationRequest(list(available), list(must_include), size)
        message = PreferredAllocationRequest([question])
        return await self._call(resource, name, lambda stub: stub.get_preferred_allocation(message), within)

    def stub(self, resource: str) -> DevicePluginStub:
        """Return the client of a connected resource for calls that have no method here.

        Raises ``FakeKubeletError`` where the resource is not connected.
        """
        return DevicePluginStub(self._client(resource).channel)

    def drop_stream(self, resource: str) -> None:
        """Reset the current ListAndWatch stream; the kubelet then disconnects, as after any loss.

        Raises ``FakeKubeletError`` where the resource is not connected.
        """
        self._client(resource).scope.cancel()

    def break_connection(self, resource: str) -> None:
        """Break the current connection off, as when the kubelet is killed; raises as above."""
        self._client(resource).channel.abort()

    def pause_lists(self) -> None:
        """Stop reading lists: what plugins send fills the flow-control window. Until a restart."""
        if self._registry:
            self._registry.lists_allowed = anyio.Event()

    def resume_lists(self) -> None:
        """Read lists again."""
        if self._registry:
            self._registry.lists_allowed.set()

    def _client(self, resource: str) -> Client:
        client = self._registry.clients.get(resource) if self._registry else None
        if client is None:
            raise FakeKubeletError(f"{resource}: no endpoint, or it has been stopped ({self})")
        return client

    async def _call(
        self, resource: str, name: str, call: Callable[[DevicePluginStub], Awaitable[T]], within: float
    ) -> T:
        stub = self.stub(resource)
        try:
            with anyio.fail_after(within):
                return await call(stub)
        except GRPCError as error:
            raise FakeKubeletError(f"{name} of {resource}: {error.status.name}: {error.message}") from error
        except TimeoutError as error:
            raise FakeKubeletError(f"{name} of {resource}: no answer within {within} s") from error
        except (StreamTerminatedError, OSError) as error:
            raise FakeKubeletError(f"{name} of {resource}: connection lost: {error}") from error
