"""The DevicePlugin service of one Resource: what the kubelet calls on our socket.

No call keeps anything for the next one, and all of them read the same ``Latest``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import grpclib.const
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from loguru import logger

from gpuplug.core.allocation import preferred
from gpuplug.core.repeats import Repeats
from gpuplug.errors import AllocationError, UnknownDeviceError
from gpuplug.kubelet.registration import OPTIONS
from gpuplug.kubelet.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerPreferredAllocationResponse,
    DevicePluginBase,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
    PreStartContainerResponse,
)
from gpuplug.kubelet.wire import encode_allocations, encode_list
from gpuplug.latest import Latest
from gpuplug.witness import NOBODY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from grpclib.server import Stream

    from gpuplug.model import Allocation, Resource
    from gpuplug.witness import Witness

LIST_AND_WATCH: Final = "/v1beta1.DevicePlugin/ListAndWatch"


class Allocator(Protocol):
    """Whoever finds out what a container gets for the Devices that it was given."""

    async def __call__(self, resource: Resource, ids: Sequence[str]) -> Allocation:
        """Answer for one container.

        :raises AllocationError: if one of the Devices is unknown or cannot be used.
        """
        ...


@dataclass(frozen=True, slots=True)
class Streams:
    """The ListAndWatch streams of one Service."""

    opened: int = 0
    """How many there have been."""
    open: int = 0
    """How many there are."""


class Service(DevicePluginBase):
    """Serve one Resource; one Service belongs to one Listener."""

    def __init__(
        self,
        resource: Latest[Resource],
        allocate: Allocator,
        policy: str = "none",
        witness: Witness = NOBODY,
        refusals: Repeats | None = None,
    ) -> None:
        """Serve what ``resource`` has.

        :param refusals: what was said of Allocate calls by those who served it before.
        """
        self._resource = resource
        self._allocate = allocate
        self._policy = policy
        self._witness = witness
        self._refusals = refusals or Repeats()
        self._log = logger.bind(resource=resource.value.name)
        self.streams: Final = Latest(Streams())

    def __mapping__(self) -> dict[str, grpclib.const.Handler]:
        """Wrap the generated handlers, and take ListAndWatch from here.

        The generated one iterates over an async generator; a call that is cancelled while it
        sends would leave that generator, and our count of streams, to the garbage collector.
        """
        mapping = super().__mapping__()
        mapping[LIST_AND_WATCH] = grpclib.const.Handler(
            self._list_and_watch, grpclib.const.Cardinality.UNARY_STREAM, Empty, ListAndWatchResponse
        )
        return {path: handler._replace(func=_with_status(handler.func)) for path, handler in mapping.items()}

    async def _list_and_watch(self, stream: Stream[Empty, Any]) -> None:
        """Send the whole list at once, and again whenever it is another."""
        await stream.recv_message()
        self._count(opened=1, open_=1)
        try:
            version = -1
            while True:
                version, resource = await self._resource.newer(version)
                await stream.send_message(encode_list(resource))
                self._witness.sent(resource)
                self._log.debug("{}: sent a list of {} devices", resource.name, len(resource))
        finally:
            self._count(opened=0, open_=-1)

    def _count(self, opened: int, open_: int) -> None:
        now = self.streams.value
        self.streams.set(Streams(now.opened + opened, now.open + open_))

    async def get_device_plugin_options(self, message: Empty) -> DevicePluginOptions:
        """Say the same as the registration did."""
        del message
        return OPTIONS

    async def get_preferred_allocation(
        self, message: PreferredAllocationRequest
    ) -> PreferredAllocationResponse:
        """Advise, from memory alone: the admission of a pod waits for this."""
        resource = self._resource.value
        return PreferredAllocationResponse(
            container_responses=[
                ContainerPreferredAllocationResponse(
                    device_ids=list(
                        preferred(
                            resource,
                            asked.available_device_ids,
                            asked.must_include_device_ids,
                            asked.allocation_size,
                            self._policy,
                        )
                    )
                )
                for asked in message.container_requests
            ]
        )

    async def allocate(self, message: AllocateRequest) -> AllocateResponse:
        """Answer for each container; one that cannot be answered fails the whole call."""
        resource, began, failed = self._resource.value, time.perf_counter(), True
        try:
            given = [
                await self._allocate(resource, asked.devices_ids) for asked in message.container_requests
            ]
            failed = False
        except AllocationError as error:
            if news := self._refusals.news(resource.name, str(error)):
                self._log.warning("{}: an Allocate is refused: {}", resource.name, news)
            raise
        finally:
            seconds = time.perf_counter() - began
            self._witness.allocated(resource.name, seconds, failed=failed)
        if news := self._refusals.news(resource.name, ""):
            self._log.info("{}: an Allocate is answered: {}", resource.name, news)
        count = sum(len(asked.devices_ids) for asked in message.container_requests)
        self._log.debug("{}: gave {} devices, in {:.2f} ms", resource.name, count, 1000 * seconds)
        return cast("AllocateResponse", encode_allocations(given))  # as good as one: our Codec sends it

    async def pre_start_container(self, message: PreStartContainerRequest) -> PreStartContainerResponse:
        """Do nothing: our options do not ask for this call."""
        del message
        return PreStartContainerResponse()


def _with_status(call: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Turn expected errors into the gRPC status whose text the kubelet shows on the pod."""

    async def guarded(stream: Any) -> None:  # noqa: ANN401 - grpclib's own signature
        stream.recv_message = partial(_receive, stream.recv_message)
        try:
            await call(stream)
        except UnknownDeviceError as error:
            raise GRPCError(Status.NOT_FOUND, str(error)) from error
        except AllocationError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error

    return guarded


async def _receive(receive: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - of any type of message
    """Receive the one message of a request; what is none gets a status, and no traceback in the log."""
    try:
        message = await receive()
    except NotImplementedError:
        raise GRPCError(Status.UNIMPLEMENTED, "the request is compressed") from None
    except AssertionError:  # what grpclib raises where the data end too soon
        raise GRPCError(Status.INTERNAL, "the request breaks off") from None
    if message is None:
        raise GRPCError(Status.INTERNAL, "the request has no message")
    return message
