"""Answer an Allocate from the machine as it is now, not as it was at the last list."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from gpuplug.core.allocation import answer, default_envs, resolve
from gpuplug.errors import DriverError, UnavailableDeviceError
from gpuplug.host.bypath import mounts as by_path
from gpuplug.host.sysfs import Roots, look

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpuplug.asking import Asking
    from gpuplug.core.inventory import Driver
    from gpuplug.model import Allocation, Device, DeviceId, Offer, Resource
    from gpuplug.settings import Settings


KEPT: Final = 256
"""Sets of Devices whose environment variables are kept."""


class FreshAllocator:
    """Look every asked GPU up again, so that a node that is gone or renumbered is never handed out."""

    def __init__(self, roots: Roots, drivers: Sequence[Driver], settings: Settings, ask: Asking) -> None:
        self._roots = roots
        self._drivers = {driver.name: driver for driver in drivers}
        self._settings = settings
        self._ask = ask
        self._decided: dict[str, Offer] = {}
        """What was decided anew for a GPU that had changed since the list, by address."""
        self._envs_of: dict[tuple[str, frozenset[str]], tuple[frozenset[Device], Mapping[str, str]]] = {}
        """The variables that a driver gives for Devices, by their ids, while these stay as they are."""

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
        every = self._all_there if resource.together else self._all
        renewed = await every(asked.values())
        gpus = {offer.gpu.address: offer.gpu for offer in renewed}
        devices = [
            replace(device, gpu=gpus[device.gpu.address]) for device, _ in found if device.gpu.address in gpus
        ]
        given = answer(renewed, await self._envs(devices, renewed))
        nodes = {spec.host_path.rpartition("/")[2] for spec in given.specs}
        taken = {mount.container_path for mount in given.mounts}
        links = by_path(self._roots, self._settings.bypath, nodes)
        return replace(given, mounts=(*given.mounts, *(m for m in links if m.container_path not in taken)))

    async def _all(self, asked: Collection[tuple[Device, Offer]]) -> list[Offer]:
        renewed = [await self._renewed(device.id, offer) for device, offer in asked]
        for (device, _), offer in zip(asked, renewed, strict=True):
            if not offer.verdict.healthy:
                raise UnavailableDeviceError(f"device {device.id} is unhealthy: {offer.verdict.reason}")
        return renewed

    async def _all_there(self, asked: Collection[tuple[Device, Offer]]) -> list[Offer]:
        """Leave out what is gone: whoever watches all GPUs gets those that are there, in whatever state."""
        renewed: list[Offer] = []
        reason = "there is no GPU"
        for device, offer in asked:
            try:
                renewed.append(await self._renewed(device.id, offer))
            except UnavailableDeviceError as error:
                reason = str(error)
        if not renewed:
            raise UnavailableDeviceError(reason)
        return renewed

    async def _renewed(self, id_: DeviceId, offer: Offer) -> Offer:
        """Decide again, if the GPU is not as it was; mostly it is, and no hook is called."""
        gpu = look(self._roots, offer.gpu)
        if gpu is None:
            raise UnavailableDeviceError(f"device {id_}: the GPU is gone")
        if gpu == offer.gpu:
            return offer
        known = self._decided.get(gpu.address)
        if known is None or known.gpu != gpu or known.driver != offer.driver:
            driver = self._drivers[offer.driver]

            def decide() -> Offer:
                verdict = driver.health(gpu, self._settings)
                specs, mounts = driver.device_specs(gpu, self._settings), driver.mounts(gpu, self._settings)
                return replace(offer, gpu=gpu, specs=specs, mounts=mounts, verdict=verdict)

            try:
                known = self._decided[gpu.address] = await self._ask(decide)
            except DriverError as error:
                raise UnavailableDeviceError(f"device {id_}: {error}") from error
        if not known.specs:
            raise UnavailableDeviceError(f"device {id_}: driver {offer.driver} gives it no device node")
        return known

    async def _envs(self, devices: Sequence[Device], offers: Sequence[Offer]) -> dict[str, str]:
        envs = default_envs(offers)
        for name in dict.fromkeys(offer.driver for offer in offers):
            driver = self._drivers[name]
            if driver.gives_envs:
                own = {offer.gpu.address for offer in offers if offer.driver == name}
                envs |= await self._own_envs(driver, [d for d in devices if d.gpu.address in own])
        return envs

    async def _own_envs(self, driver: Driver, devices: Sequence[Device]) -> Mapping[str, str]:
        """Ask for the variables of these Devices, unless they were asked for before."""
        key = driver.name, frozenset(device.id for device in devices)
        known = self._envs_of.pop(key, None)
        if known is None or known[0] != frozenset(devices):
            ordered = sorted(devices, key=lambda device: (device.gpu.address, len(device.id), device.id))
            try:
                given = await self._ask(partial(driver.envs, ordered, self._settings))
            except DriverError as error:
                raise UnavailableDeviceError(str(error)) from error
            known = frozenset(devices), given
        self._envs_of[key] = known  # the last one of all: what was not asked for longest goes first
        if len(self._envs_of) > KEPT:
            del self._envs_of[next(iter(self._envs_of))]
        return known[1]
