"""An Allocate is answered from the machine as it is at that moment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from gpuplug import DeviceSpec, Gpu, Mount, Verdict, hookimpl
from gpuplug.allocator import FreshAllocator
from gpuplug.asking import Asking
from gpuplug.core.inventory import build
from gpuplug.errors import UnavailableDeviceError, UnknownDeviceError
from gpuplug.host.sysfs import Roots, scan
from gpuplug.model import Inventory, Resource, ResourceName
from gpuplug.plugins.loader import Loaded, from_modules
from gpuplug.settings import Settings
from tests.running import I915, XE, A, B

if TYPE_CHECKING:
    from gpuplug.testing import Machine

ONE, OTHER = f"{A}::1", f"{A}::2"


class Driver:
    """A driver package whose answers come from the test."""

    def __init__(self) -> None:
        self.healthy = True
        self.fails_at = ""
        self.gives_nodes = True
        self.mounted = ""
        self.asked: list[str] = []

    def _called(self, hook: str) -> None:
        self.asked.append(hook)
        if self.fails_at == hook:
            raise ValueError("out of order")

    @hookimpl
    def gpuplug_resource_name(self, gpu: Gpu) -> str | None:
        return f"gpu.intel.com/{gpu.kernel_driver}"

    @hookimpl
    def gpuplug_device_specs(self, gpu: Gpu) -> list[DeviceSpec]:
        self._called("device_specs")
        return [DeviceSpec(node.path, node.host_path) for node in gpu.nodes if self.gives_nodes]

    @hookimpl
    def gpuplug_mounts(self, gpu: Gpu) -> list[Mount]:
        self._called("mounts")
        if self.mounted:
            return [Mount(self.mounted, self.mounted)]
        return [Mount(f"/run/{node.name}", f"/run/{node.name}") for node in gpu.nodes if node.is_render]

    @hookimpl
    def gpuplug_envs(self, devices: tuple[object, ...]) -> dict[str, str]:
        self._called("envs")
        return {"HOW_MANY": str(len(devices))}

    @hookimpl
    def gpuplug_health(self) -> Verdict:
        self._called("health")
        return Verdict(self.healthy, "" if self.healthy else "too hot")


class Node:
    """A made-up machine, what is advertised of it, and who answers an Allocate there."""

    def __init__(self, machine: Machine, loaded: Loaded) -> None:
        self.roots = Roots(str(machine.root))
        self.loaded = loaded
        self.settings = Settings(shared_dev_num=3)
        self.allocate = FreshAllocator(self.roots, loaded.drivers, self.settings, Asking())

    def settle(self, **changed: Any) -> None:
        """Go on with other settings."""
        self.settings = replace(self.settings, **changed)
        self.allocate = FreshAllocator(self.roots, self.loaded.drivers, self.settings, Asking())

    async def inventory(self) -> Inventory:
        snapshot = await anyio.to_thread.run_sync(scan, self.roots)
        return build(snapshot, self.loaded.drivers, self.settings, Inventory())

    async def resource(self, name: str = I915) -> Resource:
        return (await self.inventory()).resources[ResourceName(name)]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def node(machine: Machine, driver: Driver) -> Node:
    machine.add_gpu(A, driver="i915")
    machine.add_gpu(B, driver="i915")
    return Node(machine, from_modules({"tests": driver}))


def spent(driver: Driver) -> list[str]:
    asked, driver.asked = driver.asked, []
    return asked


@pytest.fixture
async def listed(node: Node, driver: Driver) -> Resource:
    """Give what the kubelet knows."""
    listed = await node.resource()
    spent(driver)
    return listed


async def test_a_container_gets_the_nodes_mounts_and_variables_of_its_gpu(
    node: Node, listed: Resource, driver: Driver, machine: Machine
) -> None:
    given = await node.allocate(listed, [A])
    assert [(spec.container_path, spec.host_path, spec.permissions) for spec in given.specs] == [
        ("/dev/dri/card0", f"{machine.root}/dev/dri/card0", "rw"),
        ("/dev/dri/renderD128", f"{machine.root}/dev/dri/renderD128", "rw"),
    ]
    assert given.mounts == (Mount("/run/renderD128", "/run/renderD128"),)
    assert given.envs == {
        "GPUPLUG_GPUS": A,
        "GPUPLUG_RENDER_NODES": "/dev/dri/renderD128",
        "HOW_MANY": "1",
    }
    assert spent(driver) == ["envs"], "nothing was decided again, since nothing has changed"


def link(machine: Machine, name: str, target: str) -> str:
    """Make a link as udev does; return its path in a container."""
    folder = machine.dri / "by-path"
    folder.mkdir(exist_ok=True)
    (folder / name).symlink_to(target)
    return f"/dev/dri/by-path/{name}"


@pytest.fixture
def links(machine: Machine) -> list[str]:
    """Make the links of both GPUs, and some that are none; return those of the first one."""
    for name, target in (
        (f"pci-{B}-card", "../card1"),
        (f"pci-{B}-render", "../renderD129"),
        ("pci-lost", "../renderD7"),
        ("pci-out", "/etc/passwd"),
        ("pci-\udcff", "../card0"),
    ):
        link(machine, name, target)
    (machine.dri / "by-path/file").touch()
    return [
        link(machine, f"pci-{A}-{kind}", f"../{name}")
        for kind, name in (("card", "card0"), ("render", "renderD128"))
    ]


async def test_by_default_a_container_gets_the_by_path_links_of_its_own_gpu(
    node: Node, listed: Resource, links: list[str], machine: Machine
) -> None:
    given = await node.allocate(listed, [A])
    assert given.mounts[1:] == tuple(Mount(path, f"{machine.root}{path}") for path in links)


@pytest.mark.parametrize("mode", ["single", "all"])
async def test_links_are_told_by_the_paths_that_the_kubelet_knows(
    node: Node, listed: Resource, links: list[str], mode: str
) -> None:
    node.roots = Roots.of(replace(node.settings, prefix=node.roots.prefix, node_root="/"))
    node.settle(bypath=mode)
    told = [mount.host_path for mount in (await node.allocate(listed, [A])).mounts[1:]]
    assert told == (links if mode == "single" else ["/dev/dri/by-path"])


async def test_all_of_by_path_is_the_folder_and_none_is_nothing(
    node: Node, listed: Resource, links: list[str], machine: Machine
) -> None:
    del links
    folder = Mount("/dev/dri/by-path", f"{machine.root}/dev/dri/by-path")
    for mode, mounts in (("all", (folder,)), ("none", ())):
        node.settle(bypath=mode)
        assert (await node.allocate(listed, [A])).mounts[1:] == mounts


@pytest.mark.parametrize("mode", ["all", "single"])
async def test_without_the_folder_there_is_nothing_of_by_path(
    node: Node, listed: Resource, mode: str
) -> None:
    node.settle(bypath=mode)
    assert len((await node.allocate(listed, [A])).mounts) == 1


async def test_a_link_that_the_driver_mounts_itself_is_mounted_once(
    node: Node, driver: Driver, links: list[str]
) -> None:
    driver.mounted = links[0]
    given = await node.allocate(await node.resource(), [A])
    assert [mount.container_path for mount in given.mounts] == links


async def test_whoever_watches_all_gpus_gets_those_that_are_there_in_whatever_state(
    node: Node, driver: Driver, machine: Machine
) -> None:
    node.settle(enable_monitoring=True)
    driver.healthy = False
    watched = (await node.inventory()).monitoring[ResourceName(f"{I915}_monitoring")]
    assert (await node.allocate(watched, ["all"])).envs["GPUPLUG_GPUS"] == f"{A},{B}"
    machine.remove_gpu(A)
    given = await node.allocate(watched, ["all"])
    assert [spec.container_path for spec in given.specs] == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert given.envs["GPUPLUG_GPUS"] == B
    machine.remove_gpu(B)
    with pytest.raises(UnavailableDeviceError, match="device all: the GPU is gone"):
        await node.allocate(watched, ["all"])


async def test_two_gpus_and_two_shares_of_one_are_one_union_in_the_order_asked(
    node: Node, listed: Resource
) -> None:
    given = await node.allocate(listed, [B, OTHER, A])
    assert [spec.container_path for spec in given.specs] == [
        "/dev/dri/card1",
        "/dev/dri/renderD129",
        "/dev/dri/card0",
        "/dev/dri/renderD128",
    ]
    assert given.envs["GPUPLUG_GPUS"] == f"{B},{A}"
    assert given.envs["HOW_MANY"] == "3"


async def test_the_same_question_gets_the_same_answer_however_often(node: Node, listed: Resource) -> None:
    assert await node.allocate(listed, [ONE]) == await node.allocate(listed, [ONE])


async def test_no_device_at_all_is_no_node_at_all(node: Node, listed: Resource) -> None:
    assert (await node.allocate(listed, [])).specs == ()


@pytest.mark.parametrize("id_", ["0000:09:00.0", f"{A}::3", f"{A}::0", "", "card0", "\N{SNOWMAN}"])
async def test_an_unknown_id_is_an_error_that_names_it(node: Node, listed: Resource, id_: str) -> None:
    with pytest.raises(UnknownDeviceError) as error:
        await node.allocate(listed, [A, id_])
    assert str(error.value) == f"{I915} has no device {id_}"


async def test_an_unhealthy_device_is_an_error_that_names_it(node: Node, driver: Driver) -> None:
    driver.healthy = False
    with pytest.raises(UnavailableDeviceError) as error:
        await node.allocate(await node.resource(), [ONE])
    assert str(error.value) == f"device {ONE} is unhealthy: too hot"


async def test_a_gpu_that_has_just_been_unplugged_is_not_given(
    node: Node, listed: Resource, machine: Machine
) -> None:
    machine.remove_gpu(A)
    with pytest.raises(UnavailableDeviceError) as error:
        await node.allocate(listed, [B, ONE, OTHER])
    assert str(error.value) == f"device {ONE}: the GPU is gone"
    assert (await node.allocate(listed, [B])).envs["GPUPLUG_GPUS"] == B


async def test_a_gpu_that_another_kernel_driver_has_now_is_not_given_as_the_old_one(
    node: Node, listed: Resource, machine: Machine
) -> None:
    machine.rebind(A, "xe")
    with pytest.raises(UnavailableDeviceError, match="the GPU is gone"):
        await node.allocate(listed, [A])
    assert (await node.allocate(await node.resource(XE), [A])).envs["GPUPLUG_GPUS"] == A


async def test_after_a_renumbering_each_gpu_is_given_under_its_new_numbers(
    node: Node, listed: Resource, driver: Driver, machine: Machine
) -> None:
    machine.unbind(A)
    machine.unbind(B)
    machine.bind(B, "i915")
    machine.bind(A, "i915")
    given = await node.allocate(listed, [A])
    assert [spec.container_path for spec in given.specs] == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert given.mounts == (Mount("/run/renderD129", "/run/renderD129"),)
    assert given.envs["GPUPLUG_RENDER_NODES"] == "/dev/dri/renderD129"
    assert set(spent(driver)) == {"health", "device_specs", "mounts", "envs"}


@pytest.mark.parametrize("hook", ["health", "device_specs", "mounts"])
async def test_a_driver_that_fails_about_a_renumbered_gpu_is_named_with_the_device(
    node: Node, listed: Resource, driver: Driver, machine: Machine, hook: str
) -> None:
    machine.rebind(A, "i915", card=7, render=135)
    driver.fails_at = hook
    with pytest.raises(UnavailableDeviceError) as error:
        await node.allocate(listed, [ONE])
    assert str(error.value) == f"device {ONE}: driver tests: gpuplug_{hook} raised ValueError: out of order"


async def test_a_renumbered_gpu_that_is_unhealthy_now_is_not_given(
    node: Node, listed: Resource, driver: Driver, machine: Machine
) -> None:
    machine.rebind(A, "i915", card=7, render=135)
    driver.healthy = False
    with pytest.raises(UnavailableDeviceError) as error:
        await node.allocate(listed, [ONE])
    assert str(error.value) == f"device {ONE} is unhealthy: too hot"


async def test_a_renumbered_gpu_without_a_node_for_the_container_is_not_given(
    node: Node, listed: Resource, driver: Driver, machine: Machine
) -> None:
    machine.rebind(A, "i915", card=7, render=135)
    driver.gives_nodes = False
    with pytest.raises(UnavailableDeviceError) as error:
        await node.allocate(listed, [ONE])
    assert str(error.value) == f"device {ONE}: driver tests gives it no device node"


async def test_a_driver_that_fails_about_variables_fails_the_call(
    node: Node, listed: Resource, driver: Driver
) -> None:
    driver.fails_at = "envs"
    with pytest.raises(UnavailableDeviceError, match="gpuplug_envs raised ValueError"):
        await node.allocate(listed, [A])


async def test_each_driver_is_asked_about_its_own_devices_alone(machine: Machine) -> None:
    class Named(Driver):
        def __init__(self, kernel_driver: str) -> None:
            super().__init__()
            self.kernel_driver = kernel_driver

        @hookimpl
        def gpuplug_resource_name(self, gpu: Gpu) -> str | None:
            return "example.com/gpu" if gpu.kernel_driver == self.kernel_driver else None

        @hookimpl
        def gpuplug_envs(self, devices: tuple[object, ...]) -> dict[str, str]:
            return {self.kernel_driver.upper(): str(len(devices))}

    machine.add_gpu(A, driver="i915")
    machine.add_gpu(B, driver="xe")
    node = Node(machine, from_modules({"one": Named("i915"), "two": Named("xe")}))
    given = await node.allocate(await node.resource("example.com/gpu"), [A, B, OTHER])
    assert (given.envs["I915"], given.envs["XE"]) == ("2", "1")


async def test_while_gpus_come_and_go_every_answer_is_whole_or_a_named_error(
    node: Node, listed: Resource, machine: Machine
) -> None:
    stop = False

    def come_and_go() -> None:
        while not stop:
            machine.remove_gpu(A)
            machine.add_gpu(A, driver="i915")

    answers = 0
    texts: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, come_and_go)
        while answers < 20 or len(texts) < 20:
            try:
                given = await node.allocate(listed, [A, B])
            except UnavailableDeviceError as error:
                texts.append(str(error))
            else:
                assert given.envs["GPUPLUG_GPUS"] == f"{A},{B}"
                assert {f"/dev/dri/{name}" for name in machine.nodes_of(B)} <= {
                    spec.container_path for spec in given.specs
                }
                answers += 1
        stop = True
    assert all(text.startswith(f"device {A}") for text in texts)


async def test_what_has_changed_is_decided_once_and_not_for_each_call(
    node: Node, listed: Resource, driver: Driver, machine: Machine
) -> None:
    machine.devfs.remove("card0")
    for _ in range(3):
        await node.allocate(listed, [A])
    assert spent(driver) == ["health", "device_specs", "mounts", "envs"]
    machine.devfs.add("card0")
    await node.allocate(listed, [A])
    assert spent(driver) == ["envs"], "it is as it was when the list was made"


async def test_of_many_sets_of_devices_the_last_ones_are_remembered(
    node: Node, listed: Resource, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuplug.allocator.KEPT", 2)
    for ids in ([A], [B], [A], [ONE], [A], [B]):
        await node.allocate(listed, ids)
    assert len(spent(driver)) == 4, "the set that was not asked for longest is asked about anew"


async def test_a_driver_without_variables_is_not_asked_for_any(machine: Machine) -> None:
    class Plain:
        @hookimpl
        def gpuplug_resource_name(self, gpu: Gpu) -> str:
            return f"gpu.intel.com/{gpu.kernel_driver}"

    machine.add_gpu(A, driver="i915")
    loaded = from_modules({"plain": Plain()})
    assert not loaded.drivers[0].gives_envs
    node = Node(machine, loaded)
    given = await node.allocate(await node.resource(), [A])
    assert given.envs.keys() == {"GPUPLUG_GPUS", "GPUPLUG_RENDER_NODES"}
