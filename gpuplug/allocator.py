"""Answer an Allocate from the machine as it is now, not as it was at the last list."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio.lowlevel

from gpuplug.core.allocation import answer, default_envs, resolve
from gpuplug.errors import DriverError, UnavailableDeviceError
from gpuplug.host.bypath import mounts as by_path
from gpuplug.host.sysfs import Roots, look

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpuplug.core.inventory import Driver
    from gpuplug.model import Allocation, Device, DeviceId, Offer, Resource
    from gpuplug.settings import Settings


class FreshAllocator:
    """Look every asked GPU up again, so that a node that is gone or renumbered is never handed out."""

    def __init__(self, roots: Roots, drivers: Sequence[Driver], settings: Settings) -> None:
        self._roots = roots
        self._drivers = {driver.name: driver for driver in drivers}
        self._settings = settings

    async def __call__(self, resource: Resource, ids: Sequence[str]) -> Allocation:
        """Say what a container with these Devices gets.

        :raises UnknownDeviceError: for an id that the Resource does not have.
        :raises UnavailableDeviceError: for a Device that is unhealthy or whose GPU is gone.
        """
        found = resolve(resource, ids)
        asked: dict[str, tuple[Device, Offer]] = {}
        for device, offer in found:
            asked.setdefault(offer.gpu.address, (device, offer))
        await anyio.lowlevel.checkpoint()  # whoever asks in a loop lets others run
        # Looked up on the event loop, unlike a scan: a handful of calls on file systems in memory, 30 µs
        # for a GPU, where handing them to a thread and waking up again costs several times as much.
        renewed = self._all_there(asked.values()) if resource.together else self._all(asked.values())
        gpus = {offer.gpu.address: offer.gpu for offer in renewed}
        devices = [
            replace(device, gpu=gpus[device.gpu.address]) for device, _ in found if device.gpu.address in gpus
        ]
        given = answer(renewed, self._envs(devices, renewed))
        nodes = {spec.host_path.rpartition("/")[2] for spec in given.specs}
        taken = {mount.container_path for mount in given.mounts}
        links = by_path(self._roots, self._settings.bypath, nodes)
        return replace(given, mounts=(*given.mounts, *(m for m in links if m.container_path not in taken)))

    def _all(self, asked: Collection[tuple[Device, Offer]]) -> list[Offer]:
        renewed = [self._renewed(device.id, offer) for device, offer in asked]
        for (device, _), offer in zip(asked, renewed, strict=True):
            if not offer.verdict.healthy:
                raise UnavailableDeviceError(f"device {device.id} is unhealthy: {offer.verdict.reason}")
        return renewed

    def _all_there(self, asked: Collection[tuple[Device, Offer]]) -> list[Offer]:
        """Leave out what is gone: whoever watches all GPUs gets those that are there, in whatever state."""
        renewed: list[Offer] = []
        reason = "there is no GPU"
        for device, offer in asked:
            try:
                renewed.append(self._renewed(device.id, offer))
            except UnavailableDeviceError as error:
                reason = str(error)
        if not renewed:
            raise UnavailableDeviceError(reason)
        return renewed

    def _renewed(self, id_: DeviceId, offer: Offer) -> Offer:
        """Decide again, if the GPU is not as it was; mostly it is, and no hook is called."""
        gpu = look(self._roots, offer.gpu)
        if gpu is None:
            raise UnavailableDeviceError(f"device {id_}: the GPU is gone")
        if gpu == offer.gpu:
            return offer
        driver = self._drivers[offer.driver]
        try:
            verdict = driver.health(gpu, self._settings)
            specs = driver.device_specs(gpu, self._settings)
            mounts = driver.mounts(gpu, self._settings)
        except DriverError as error:
            raise UnavailableDeviceError(f"device {id_}: {error}") from error
        if not specs:
            raise UnavailableDeviceError(f"device {id_}: driver {driver.name} gives it no device node")
        return replace(offer, gpu=gpu, specs=specs, mounts=mounts, verdict=verdict)

    def _envs(self, devices: Sequence[Device], offers: Sequence[Offer]) -> dict[str, str]:
        envs = default_envs(offers)
        for name in dict.fromkeys(offer.driver for offer in offers):
            own = {offer.gpu.address for offer in offers if offer.driver == name}
            try:
                envs |= self._drivers[name].envs([d for d in devices if d.gpu.address in own], self._settings)
            except DriverError as error:
                raise UnavailableDeviceError(str(error)) from error
        return envs
