"""One call to a server on a unix socket; whatever becomes of it is an answer or a named error."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from grpclib.client import Channel
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from gpuplug.errors import KubeletError, WireError
from gpuplug.kubelet.wire import Codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def call(socket_path: str, question: Callable[[Channel], Awaitable[T]], *, within: float) -> T:
    """Connect to the kubelet, ask, and close the connection again.

    :param question: makes the call, or several, over the channel that it is given.
    :raises KubeletError: if the kubelet refuses, cannot be understood, or does not answer in time.
    :raises OSError: if the socket cannot be used.
    """
    channel = Channel(path=socket_path, codec=Codec())
    # grpclib derives the authority from a host and port, which a unix socket does not have.
    channel._authority = "localhost"  # noqa: SLF001
    try:
        with anyio.fail_after(within):
            return await question(channel)
    except TimeoutError:
        raise KubeletError(f"the kubelet did not answer within {within:g} s") from None
    except GRPCError as error:
        text = f"the kubelet refused: {error.message or error.status.name}"
        raise KubeletError(text, error.status.name) from error
    except (StreamTerminatedError, ProtocolError, WireError) as error:
        raise KubeletError(f"the kubelet ended the call: {error}") from error
    except (NotImplementedError, AssertionError) as error:
        # What grpclib raises for a compressed message, and for one that ends too soon.
        raise KubeletError("the kubelet's answer cannot be read") from error
    except AttributeError as error:
        # grpclib forgets the transport of a connection that was closed as soon as it was made.
        if error.name != "_transport":
            raise
        raise KubeletError("the kubelet ended the connection at once") from error
    finally:
        channel.close()
