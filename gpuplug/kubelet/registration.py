"""Tell the kubelet about an endpoint: one Register call on ``kubelet.sock``."""

from __future__ import annotations

import errno
from typing import Final

import anyio
from grpclib.client import Channel
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from gpuplug.errors import RegistrationError, WireError
from gpuplug.kubelet.v1beta1 import DevicePluginOptions, RegisterRequest, RegistrationStub
from gpuplug.kubelet.wire import VERSION, Codec

KUBELET_SOCKET: Final = "kubelet.sock"
DEADLINE: Final = 15.0
"""Seconds for one Register: newer kubelets dial back first, and allow 10 s for that."""

OPTIONS: Final = DevicePluginOptions(get_preferred_allocation_available=True)


async def register(
    kubelet_socket: str, endpoint: str, resource_name: str, *, within: float = DEADLINE
) -> None:
    """Register an endpoint, the *base name* of a socket beside ``kubelet_socket``.

    The endpoint must be serving: newer kubelets dial it before they answer.

    :raises RegistrationError: if the kubelet is not there, refuses, or does not answer in time.
    """
    channel = Channel(path=kubelet_socket, codec=Codec())
    # grpclib derives the authority from a host and port, which a unix socket does not have.
    channel._authority = "localhost"  # noqa: SLF001
    request = RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource_name, options=OPTIONS
    )
    try:
        with anyio.fail_after(within):
            await RegistrationStub(channel).register(request)
    except TimeoutError:
        raise RegistrationError(f"the kubelet did not answer within {within:g} s") from None
    except GRPCError as error:
        raise RegistrationError(f"the kubelet refused: {error.message or error.status.name}") from error
    except OSError as error:
        raise RegistrationError(f"{kubelet_socket}: {unreachable(error)}") from error
    except (StreamTerminatedError, ProtocolError, WireError) as error:
        raise RegistrationError(f"the kubelet ended the call: {error}") from error
    except (NotImplementedError, AssertionError) as error:
        # What grpclib raises for a compressed message, and for one that ends too soon.
        raise RegistrationError("the kubelet's answer cannot be read") from error
    except AttributeError as error:
        # grpclib forgets the transport of a connection that was closed as soon as it was made.
        if error.name != "_transport":
            raise
        raise RegistrationError("the kubelet ended the connection at once") from error
    finally:
        channel.close()


def unreachable(error: OSError) -> str:
    """Say why a socket could not be used, with a hint where the cause is a known one."""
    text = error.strerror or str(error)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"{text} (on SELinux hosts the pod needs the type container_device_plugin_t)"
    return text
