"""Hooks are asked once for each GPU and change: not for each share, at each look, or in an Allocate."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpuplug import Device, DeviceSpec, Gpu, Verdict, hookimpl
from gpuplug.kubelet.endpoint import Phase
from gpuplug.plugins.loader import from_modules
from tests.running import A, B, eventually, running_kubelet, settled
from tests.test_app import serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuplug.settings import Settings
    from gpuplug.testing import Machine

RESOURCE = "example.com/counted"
C = "0000:05:00.0"


class Counted:
    """A driver that counts what it is asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def spent(self) -> dict[str, int]:
        calls, self.calls = self.calls, Counter()
        return dict(calls)

    @hookimpl
    def gpuplug_sysfs_attributes(self) -> list[str]:
        self.calls["sysfs_attributes"] += 1
        return ["wedged"]

    @hookimpl
    def gpuplug_resource_name(self, gpu: Gpu, settings: Settings) -> str:
        del settings
        self.calls[f"resource_name {gpu.address}"] += 1
        return RESOURCE

    @hookimpl
    def gpuplug_device_specs(self, gpu: Gpu) -> list[DeviceSpec]:
        self.calls[f"device_specs {gpu.address}"] += 1
        return [DeviceSpec(node.path, node.host_path) for node in gpu.nodes]

    @hookimpl
    def gpuplug_mounts(self, gpu: Gpu) -> list[object]:
        self.calls[f"mounts {gpu.address}"] += 1
        return []

    @hookimpl
    def gpuplug_envs(self, devices: Sequence[Device]) -> dict[str, str]:
        ids = [device.id for device in devices]
        self.calls[f"envs {' '.join(ids)}"] += 1
        return {"IDS": " ".join(ids)}

    @hookimpl
    def gpuplug_health(self, gpu: Gpu) -> Verdict:
        self.calls[f"health {gpu.address}"] += 1
        return Verdict(gpu.attributes.get("wedged") != "1", "it is wedged")


def once(address: str) -> dict[str, int]:
    return {f"{hook} {address}": 1 for hook in ("resource_name", "device_specs", "mounts", "health")}


async def test_each_hook_is_asked_once_for_each_gpu_and_change(machine: Machine, kubelet_dir: Path) -> None:
    driver = Counted()
    loaded = from_modules({"counted": driver})
    assert driver.spent() == {"sysfs_attributes": 1}
    shares = {f"{a}{n}" for a in (A, B) for n in ("", "::1", "::2", "::3")}
    for address in (A, B):
        machine.add_gpu(address)
        machine.write_attribute(address, "wedged", "0\n")
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        serving(machine, kubelet_dir, loaded=loaded, shares=4, resync=0.02) as endpoints,
    ):
        await settled(kubelet, RESOURCE, shares)
        await eventually(lambda: endpoints.states[RESOURCE].phase is Phase.STREAMING, str)  # type: ignore[index]
        assert driver.spent() == once(A) | once(B), "once, though each stands for four devices"

        for number in range(20):  # looks that find nothing new, and as many more of the resync
            (machine.dri / f"other{number}").touch()
        kubelet_asks = [[A], [f"{A}::1"], [B, A], [A, B], [A], [A, B], [A], [f"{A}::1"]]
        for ids in kubelet_asks:
            answer = (await kubelet.allocate(RESOURCE, [ids])).container_responses[0]
            assert answer.envs["IDS"] == " ".join(sorted(ids))
        assert driver.spent() == {f"envs {A}": 1, f"envs {A}::1": 1, f"envs {A} {B}": 1}

        machine.write_attribute(B, "wedged", "1\n")
        await settled(kubelet, RESOURCE, {id_ for id_ in shares if not id_.startswith(B)})
        assert driver.spent() == once(B), "what has changed is decided anew, and nothing else"

        machine.add_gpu(C)
        await kubelet.wait_for(lambda k: C in k.resource(RESOURCE).healthy, "the new GPU")
        assert driver.spent() == once(C)

        await kubelet.allocate(RESOURCE, [[A]])
        await kubelet.restart()
        await kubelet.wait_for(lambda k: C in k.resource(RESOURCE).healthy, "the list, again")
        assert driver.spent() == {}, "the kubelet's restart is nothing to a GPU"
