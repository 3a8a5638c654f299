"""Every exception that gpuplug raises on purpose.

::

    GpuplugError
    ├── SettingError          an option or its environment variable: the operator must act
    ├── DriverError           a driver package answered wrongly: its author must act
    ├── WireError             bytes from the kubelet that are not the message they should be
    ├── AllocationError       an Allocate that cannot be answered: the kubelet shows the text on the pod
    │   ├── UnknownDeviceError    no such Device on this resource
    │   └── UnavailableDeviceError    the Device is there and cannot be used now
    └── KubeletError          a call to the kubelet that came to nothing
        └── RegistrationError     it did not take our registration: tried again with back-off
"""

from __future__ import annotations


class GpuplugError(Exception):
    """The root: whoever catches this catches all of ours and nobody else's."""


class SettingError(GpuplugError):
    """A bad option or environment variable; the text names it and the value."""


class DriverError(GpuplugError):
    """A driver package failed; it costs the GPUs of that driver alone.

    Raised by the façade in ``plugins.loader`` for an exception in a hook and for
    an answer of the wrong type, and kept as a named problem of the inventory.
    """


class WireError(GpuplugError):
    """A message from the kubelet does not parse."""


class AllocationError(GpuplugError):
    """Allocate cannot be answered; the text ends up in the pod's events."""


class UnknownDeviceError(AllocationError):
    """The kubelet asked for a Device id that this resource does not have."""


class UnavailableDeviceError(AllocationError):
    """The Device is unhealthy, or its nodes are gone since the kubelet's last list."""


class KubeletError(GpuplugError):
    """A call to the kubelet came to nothing; the text says why."""

    def __init__(self, text: str, status: str = "") -> None:
        super().__init__(text)
        self.status = status
        """The name of the gRPC status that it answered with, if it did."""


class RegistrationError(KubeletError):
    """The kubelet refused, or did not answer, or never opened a stream."""
