"""Tell the kubelet about an endpoint: one Register call on ``kubelet.sock``."""

from __future__ import annotations

import errno
from typing import Final

from gpuplug.errors import KubeletError, RegistrationError
from gpuplug.kubelet.calls import call
from gpuplug.kubelet.v1beta1 import DevicePluginOptions, RegisterRequest, RegistrationStub
from gpuplug.kubelet.wire import VERSION

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
    request = RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource_name, options=OPTIONS
    )
    try:
        await call(kubelet_socket, lambda channel: RegistrationStub(channel).register(request), within=within)
    except KubeletError as error:
        raise RegistrationError(str(error), error.status) from error
    except OSError as error:
        raise RegistrationError(f"{kubelet_socket}: {unreachable(error)}") from error


def unreachable(error: OSError) -> str:
    """Say why a socket could not be used, with a hint where the cause is a known one."""
    text = error.strerror or str(error)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"{text} (on SELinux hosts the pod needs the type container_device_plugin_t)"
    return text
