"""The made-up kubelet behaves as it claims, towards a small hand-made plugin."""

from __future__ import annotations

import itertools
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from blockbuster import BlockingError
from grpclib.client import Channel
from grpclib.exceptions import GRPCError

from gpuplug.host.sysfs import Roots, scan
from gpuplug.kubelet.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
    ContainerPreferredAllocationResponse,
    Device,
    DevicePluginBase,
    DevicePluginOptions,
    DeviceSpec,
    Empty,
    ListAndWatchResponse,
    NumaNode,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    RegisterRequest,
    RegistrationStub,
    TopologyInfo,
)
from gpuplug.testing import FakeKubelet, FakeKubeletError
from gpuplug.testing.transport import KubeletServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpuplug.testing import Machine

GPU = "gpu.example.com/tiny"
A = Device("a", "Healthy", TopologyInfo([NumaNode(0)]))
B = Device("b", "Unhealthy", TopologyInfo())
C = Device("c", "Healthy")


class Tiny(DevicePluginBase):
    """A plugin whose lists come from the test."""

    names = (f"tiny-{number}.sock" for number in itertools.count())

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoint = next(self.names)
        self.calls: list[str] = []
        self._send, self._lists = anyio.create_memory_object_stream[list[Device]](10)
        self._server = KubeletServer([self])

    async def serve(self) -> None:
        await self._server.start(path=str(self.directory / self.endpoint))

    async def close(self) -> None:
        await self._server.end()
        self._send.close()
        self._lists.close()

    def publish(self, *devices: Device) -> None:
        self._send.send_nowait(list(devices))

    async def register(self, *, version: str = "v1beta1", resource: str = GPU) -> None:
        options = DevicePluginOptions(get_preferred_allocation_available=True)
        channel = Channel(path=str(self.directory / "kubelet.sock"))
        try:
            await RegistrationStub(channel).register(
                RegisterRequest(version, self.endpoint, resource, options)
            )
        finally:
            channel.close()
            self.calls.append("registered")

    async def get_device_plugin_options(self, message: Empty) -> DevicePluginOptions:  # noqa: ARG002
        self.calls.append("options")
        return DevicePluginOptions(get_preferred_allocation_available=True)

    async def list_and_watch(self, message: Empty) -> AsyncIterator[ListAndWatchResponse]:  # noqa: ARG002
        self.calls.append("list")
        async for devices in self._lists:
            yield ListAndWatchResponse(devices)

    async def allocate(self, message: AllocateRequest) -> AllocateResponse:
        answers = []
        for request in message.container_requests:
            specs = [DeviceSpec(f"/dev/{id_}", f"/dev/{id_}", "rw") for id_ in request.devices_ids]
            if "nothing" in request.devices_ids:
                raise ValueError("no such Device")
            answers.append(ContainerAllocateResponse(devices=specs))
        return AllocateResponse(answers)

    async def get_preferred_allocation(
        self, message: PreferredAllocationRequest
    ) -> PreferredAllocationResponse:
        if message.container_requests[0].allocation_size == 0:
            await anyio.sleep_forever()
        chosen = [
            (request.must_include_device_ids + request.available_device_ids)[: request.allocation_size]
            for request in message.container_requests
        ]
        return PreferredAllocationResponse([ContainerPreferredAllocationResponse(ids) for ids in chosen])


@asynccontextmanager
async def tiny(directory: Path) -> AsyncIterator[Tiny]:
    plugin = Tiny(directory)
    await plugin.serve()
    try:
        yield plugin
    finally:
        await plugin.close()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_list_is_kept_with_health_and_numa_nodes_as_sent(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        before = time.monotonic()
        plugin.publish(A, B, C)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a", "c"})
        state = kubelet.resource(GPU)
        assert {id_: device.numa for id_, device in state.devices.items()} == {"a": (0,), "b": (), "c": None}
        assert state.latest is state.lists[-1]
        assert before < state.lists[0].at < time.monotonic()
        assert state.lists[0].raw == bytes(ListAndWatchResponse([A, B, C]))
        assert state.connected
        assert state.options.get_preferred_allocation_available
        plugin.publish(C)
        await kubelet.wait_for_devices(GPU, {"c"})
        assert len(state.lists) == 2


async def test_a_registration_is_kept_as_sent(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        await plugin.register()
        (registration,) = kubelet.registered(GPU)
        assert registration.endpoint == plugin.endpoint
        assert registration.version == "v1beta1"
        assert registration.options.get_preferred_allocation_available
        assert registration.authority == "127.0.0.1:50051"  # what grpclib sends unless told otherwise
        assert registration.error == ""
        assert kubelet.registered("gpu.example.com/other") == []


async def test_a_newer_kubelet_asks_for_options_before_it_answers_register(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        assert plugin.calls == ["options", "registered", "list"]


async def test_an_older_kubelet_answers_register_first_and_asks_for_no_options(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir, dial_back="after") as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        assert plugin.calls == ["registered", "list"]
        assert kubelet.resource(GPU).options.get_preferred_allocation_available


async def test_a_start_deletes_the_sockets_in_the_directory_and_leaves_the_rest(kubelet_dir: Path) -> None:
    (kubelet_dir / "kubelet_internal_checkpoint").write_text("{}")
    (kubelet_dir / "a-file").touch()
    (kubelet_dir / "a-folder").mkdir()
    (kubelet_dir / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(kubelet_dir / "old.sock"))
    async with FakeKubelet(kubelet_dir):
        names = names_in(kubelet_dir)
    left = {"a-file", "a-folder", "dangling", "kubelet_internal_checkpoint"}
    assert names == left | {"kubelet.sock", "DEPRECATION"}


async def test_an_old_kubelets_start_deletes_files_too(kubelet_dir: Path) -> None:
    (kubelet_dir / "kubelet_internal_checkpoint").write_text("{}")
    (kubelet_dir / "a-file").touch()
    async with FakeKubelet(kubelet_dir, cleans="files"):
        names = names_in(kubelet_dir)
    assert names == {"kubelet_internal_checkpoint", "kubelet.sock", "DEPRECATION"}


@pytest.mark.parametrize("removes", [True, False])
async def test_a_stop_ends_connections_and_may_leave_its_socket(kubelet_dir: Path, removes: bool) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        await kubelet.stop(remove_socket=removes)
        assert kubelet.socket_path.exists() is not removes
        assert kubelet.resource(GPU).healthy == frozenset()
        await kubelet.wait_for(lambda k: not k.resource(GPU).streams)
        with pytest.raises(OSError, match="Errno"):
            await plugin.register()


async def test_a_restart_deletes_the_plugins_socket_and_forgets_its_devices(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        await kubelet.restart()
        assert not (kubelet_dir / plugin.endpoint).exists()
        assert kubelet.resource(GPU).devices == {}
        async with tiny(kubelet_dir) as again:
            again.publish(A)
            await again.register()
            await kubelet.wait_for_devices(GPU, {"a"})
        assert len(kubelet.registrations) == 2


async def test_the_end_of_an_old_stream_costs_whoever_bears_the_name_now(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as new:
        async with tiny(kubelet_dir) as old:
            old.publish(A)
            await old.register()
            await kubelet.wait_for_devices(GPU, {"a"})
            new.publish(C)
            await new.register()
            await kubelet.wait_for_devices(GPU, {"c"})
            assert kubelet.resource(GPU).streams == 2
        await kubelet.wait_for(lambda k: not k.resource(GPU).connected)
        assert kubelet.resource(GPU).healthy == frozenset()
        await kubelet.wait_for(lambda k: not k.resource(GPU).streams)
        assert len(kubelet.resource(GPU).ends) == 2


async def test_a_stop_ends_the_streams_of_replaced_plugins_too(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as old, tiny(kubelet_dir) as new:
        for plugin in (old, new):
            plugin.publish(A)
            await plugin.register()
        await kubelet.wait_for(lambda k: k.resource(GPU).streams == 2)
        await kubelet.stop()
        await kubelet.wait_for(lambda k: len(k.resource(GPU).ends) == 2)
        assert kubelet.resource(GPU).streams == 0


async def test_to_an_older_kubelet_the_end_of_an_old_stream_is_nothing(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir, dial_back="after") as kubelet, tiny(kubelet_dir) as new:
        async with tiny(kubelet_dir) as old:
            old.publish(A)
            await old.register()
            await kubelet.wait_for_devices(GPU, {"a"})
            new.publish(C)
            await new.register()
            await kubelet.wait_for_devices(GPU, {"c"})
        await kubelet.wait_for(lambda k: k.resource(GPU).ends)
        assert kubelet.resource(GPU).healthy == {"c"}


@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        ("v1alpha", GPU, 'requested API version "v1alpha" is not supported'),
        ("v1beta1", "no-domain", '"no-domain" is invalid'),
        ("v1beta1", "gpu.kubernetes.io/x", "is invalid"),
        ("v1beta1", f"example.com/{64 * 'x'}", "is invalid"),
    ],
)
async def test_what_the_kubelet_would_not_have_is_refused(
    kubelet_dir: Path, version: str, resource: str, text: str
) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        with pytest.raises(GRPCError, match=text):
            await plugin.register(version=version, resource=resource)
        assert text in str(kubelet.registrations[0].error)
        assert plugin.calls == ["registered"]


async def test_registrations_can_be_refused_for_any_reason(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        kubelet.faults.refuse = "not today"
        with pytest.raises(GRPCError, match="not today"):
            await plugin.register()
        kubelet.faults.refuse = ""
        await plugin.register()
        assert [registration.error for registration in kubelet.registrations] == ["not today", ""]


async def test_a_slow_register_is_noted_when_it_comes_and_when_it_is_given_up(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        kubelet.faults.delay = float("inf")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(plugin.register)
            await kubelet.wait_for(lambda k: k.registrations)
            assert kubelet.registrations[0].error is None
            tasks.cancel_scope.cancel()
        await kubelet.wait_for(lambda k: k.registrations[0].error == "the call was cancelled")


async def test_a_socket_that_is_not_there_fails_after_the_dial_timeout(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir, dial_timeout=0.01) as kubelet, tiny(kubelet_dir) as plugin:
        (kubelet_dir / plugin.endpoint).unlink()
        with pytest.raises(GRPCError, match="failed to dial device plugin: context deadline exceeded"):
            await plugin.register()
        with pytest.raises(FakeKubeletError, match="no endpoint"):
            await kubelet.allocate(GPU, [["a"]])


async def test_an_older_kubelet_answers_register_even_if_it_cannot_dial(kubelet_dir: Path) -> None:
    async with (
        FakeKubelet(kubelet_dir, dial_back="after", dial_timeout=0.01) as kubelet,
        tiny(kubelet_dir) as plugin,
    ):
        (kubelet_dir / plugin.endpoint).unlink()
        await plugin.register()
        await kubelet.wait_for(lambda k: k.resource(GPU).ends)
        assert "failed to dial" in kubelet.resource(GPU).ends[0].reason
        assert not kubelet.resource(GPU).connected


async def test_a_plugin_without_options_is_refused(kubelet_dir: Path) -> None:
    class Mute(Tiny):
        get_device_plugin_options = DevicePluginBase.get_device_plugin_options

    plugin = Mute(kubelet_dir)
    async with FakeKubelet(kubelet_dir) as kubelet:
        await plugin.serve()
        with pytest.raises(GRPCError, match="failed to get device plugin options"):
            await plugin.register()
        assert not kubelet.resource(GPU).connected
        await plugin.close()


async def test_a_kubelet_can_answer_register_and_never_open_a_stream(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        kubelet.faults.opens_streams = False
        await plugin.register()
        assert kubelet.resource(GPU).connected
        assert kubelet.resource(GPU).streams == 0
        await kubelet.stop()
        assert not kubelet.resource(GPU).connected


async def test_a_list_over_the_limit_ends_the_stream(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        kubelet.faults.list_limit = 100
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        plugin.publish(*[Device(f"{number}", "Healthy") for number in range(20)])
        await kubelet.wait_for(lambda k: not k.resource(GPU).connected)
        state = kubelet.resource(GPU)
        assert "received message larger than max" in state.ends[0].reason
        assert len(state.lists) == 1


async def test_lists_of_megabytes_come_whole(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        many = [Device(f"{number:063}", "Healthy") for number in range(20_000)]
        plugin.publish(*many)
        await plugin.register()
        latest = await kubelet.wait_for(lambda k: k.resource(GPU).latest, within=20)
        assert latest is not None
        assert len(latest.raw) == 20_000 * 76


@pytest.mark.parametrize("how", ["drop_stream", "break_connection"])
async def test_a_connection_can_be_lost(kubelet_dir: Path, how: str) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        getattr(kubelet, how)(GPU)
        await kubelet.wait_for(lambda k: not k.resource(GPU).connected)
        assert kubelet.resource(GPU).healthy == frozenset()
        assert set(kubelet.resource(GPU).devices) == {"a"}
        with pytest.raises(FakeKubeletError, match="no endpoint"):
            getattr(kubelet, how)(GPU)


async def test_the_end_of_a_plugin_makes_its_devices_unhealthy(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet:
        async with tiny(kubelet_dir) as plugin:
            plugin.publish(A)
            await plugin.register()
            await kubelet.wait_for_devices(GPU, {"a"})
        await kubelet.wait_for(lambda k: not k.resource(GPU).connected)
        assert kubelet.resource(GPU).healthy == frozenset()


async def test_kubelet_sock_can_be_made_anew_while_streams_go_on(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for_devices(GPU, {"a"})
        before = kubelet.socket_path.stat().st_ino
        await kubelet.recreate_socket()
        assert kubelet.socket_path.stat().st_ino != before
        assert names_in(kubelet_dir) == {"kubelet.sock", "DEPRECATION", plugin.endpoint}
        plugin.publish(C)
        await kubelet.wait_for_devices(GPU, {"c"})
        async with tiny(kubelet_dir) as other:
            await other.register(resource="gpu.example.com/other")
        await kubelet.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            await kubelet.recreate_socket()


async def test_lists_can_be_left_unread(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        kubelet.pause_lists()
        plugin.publish(A)
        await plugin.register()
        await kubelet.wait_for(lambda k: k.resource(GPU).streams)
        assert not kubelet.resource(GPU).lists
        kubelet.resume_lists()
        await kubelet.wait_for_devices(GPU, {"a"})


async def test_allocate_and_preferred_bring_the_plugins_answers(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        await plugin.register()
        answer = await kubelet.allocate(GPU, [["a", "b"], ["c"]])
        paths = [[spec.host_path for spec in one.devices] for one in answer.container_responses]
        assert paths == [["/dev/a", "/dev/b"], ["/dev/c"]]
        advice = await kubelet.preferred(GPU, ["a", "b", "c"], 2, ["c"])
        assert advice.container_responses[0].device_ids == ["c", "a"]
        with pytest.raises(FakeKubeletError, match=f"Allocate of {GPU}: UNKNOWN"):
            await kubelet.allocate(GPU, [["nothing"]])
        with pytest.raises(FakeKubeletError, match=r"no answer within 0\.01 s"):
            await kubelet.preferred(GPU, ["a"], 0, within=0.01)


async def test_a_call_that_loses_its_connection_says_so(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        await plugin.register()

        async def ask() -> None:
            with pytest.raises(FakeKubeletError, match="connection lost"):
                await kubelet.preferred(GPU, ["a"], 0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            kubelet.break_connection(GPU)


async def test_waiting_in_vain_says_what_was_awaited_and_what_there_is(kubelet_dir: Path) -> None:
    async with FakeKubelet(kubelet_dir) as kubelet, tiny(kubelet_dir) as plugin:
        await plugin.register(resource="gpu.example.com/other")
        with pytest.raises(
            TimeoutError, match=r"not within 0.01 s: .*tiny with healthy \['a'\].*other: connected"
        ):
            await kubelet.wait_for_devices(GPU, {"a"}, within=0.01)


async def test_a_kubelet_can_come_late_and_is_started_once_only(kubelet_dir: Path) -> None:
    kubelet = FakeKubelet(kubelet_dir / "made-by-it", started=False)
    with pytest.raises(RuntimeError, match="enter this kubelet"):
        await kubelet.start()
    async with kubelet:
        assert not kubelet.socket_path.exists()
        await kubelet.start()
        assert kubelet.socket_path.is_socket()
        with pytest.raises(RuntimeError, match="runs already"):
            await kubelet.start()


async def test_a_path_that_no_socket_can_have_is_an_error_at_once(kubelet_dir: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        async with FakeKubelet(kubelet_dir / (100 * "x")):
            pass


async def test_what_fails_in_its_body_comes_out_as_it_is(kubelet_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with FakeKubelet(kubelet_dir):
            raise ZeroDivisionError


async def test_gpuplug_may_not_block_the_event_loop_in_tests_and_the_fakes_may(machine: Machine) -> None:
    machine.add_gpu()
    with pytest.raises(BlockingError, match=r"os\.listdir"):
        scan(Roots(str(machine.root)))
