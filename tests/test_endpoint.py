"""An Endpoint keeps its Resource registered, whatever the kubelet and people do to it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import re
import resource as limits
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal, get_args

import anyio
import anyio.lowlevel
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpuplug.core.backoff import FLOOR
from gpuplug.core.inventory import InventoryDiff
from gpuplug.kubelet.endpoint import AWAY, Endpoints, EndpointState, KubeletDirectory, Patience, Phase
from gpuplug.kubelet.v1beta1 import Empty, RegisterRequest, RegistrationBase
from gpuplug.latest import Latest
from gpuplug.model import ResourceName
from gpuplug.testing.transport import KubeletServer
from gpuplug.witness import Witness
from tests.peer import connected, framed
from tests.running import (
    I915,
    XE,
    A,
    B,
    C,
    allocate_from_the_list,
    eventually,
    heard,
    open_files,
    own_sockets,
    resource,
    running_endpoint,
    running_kubelet,
    settled,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpuplug.kubelet.endpoint import Endpoint
    from gpuplug.model import Resource
    from gpuplug.witness import Registration

Kind = Literal["before", "after"]
"""When a kubelet dials back: before or after it answers Register."""
both_kinds = pytest.mark.parametrize("kind", get_args(Kind))

IN_TIME = 2.0
"""Seconds that an Endpoint may take to leave; on a quiet machine it takes a hundredth of that."""


def is_streaming(state: EndpointState) -> bool:
    return state.phase is Phase.STREAMING


async def lost(endpoint: Endpoint, words: str) -> EndpointState:
    """Wait until the Endpoint says why it is not registered."""
    return await until(endpoint.state, lambda s: s.phase is Phase.LOST and words in s.reason, words)


# --- one registration -----------------------------------------------------------------


@both_kinds
async def test_a_resource_is_registered_with_all_that_the_kubelet_wants_to_know(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        await settled(kubelet, I915, {A})
        await until(endpoint.state, is_streaming)
        (told,) = kubelet.registrations
        assert (told.version, told.resource, told.error) == ("v1beta1", I915, "")
        assert told.endpoint in own_sockets(kubelet_dir)
        assert told.authority == "localhost"
        assert told.options == kubelet.resource(I915).options
        assert told.options.get_preferred_allocation_available
        assert not told.options.pre_start_required
    assert own_sockets(kubelet_dir) == []


@both_kinds
async def test_every_change_of_the_resource_reaches_the_kubelet_over_the_same_stream(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        await settled(kubelet, I915, {A})
        for addresses in ({A, B}, {B}, set(), {A, B, C}):
            endpoint.resource.set(resource(*sorted(addresses)))
            await settled(kubelet, I915, addresses)
        assert len(kubelet.registrations) == 1
        assert [set(listed.devices) for listed in kubelet.resource(I915).lists] == [
            {A},
            {A, B},
            {B},
            set(),
            {A, B, C},
        ]


async def test_a_missing_kubelet_is_waited_for_and_that_is_said_once(kubelet_dir: Path) -> None:
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir, started=False) as kubelet,
            running_endpoint(kubelet_dir, resource(A)) as endpoint,
        ):
            await until(endpoint.state, lambda s: "kubelet.sock is not there" in s.reason)
            for number in range(5):  # ticks that bring nothing
                (kubelet_dir / f"other-{number}").touch()
                (kubelet_dir / f"other-{number}").unlink()
            assert own_sockets(kubelet_dir) == []  # the kubelet would delete it when it starts
            await kubelet.start()
            await settled(kubelet, I915, {A})
            await until(endpoint.state, is_streaming)
    assert lines == [
        f"WARNING {I915}: waiting for the kubelet: {kubelet_dir}/kubelet.sock is not there",
        f"INFO {I915}: registered and streaming, 1 device",
    ]


async def test_a_regular_file_in_the_place_of_the_kubelets_socket_is_no_kubelet(kubelet_dir: Path) -> None:
    (kubelet_dir / "kubelet.sock").touch()
    async with (
        running_kubelet(kubelet_dir, started=False) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        state = await until(endpoint.state, lambda s: bool(s.reason))
        assert state.phase is Phase.WAITING
        (kubelet_dir / "kubelet.sock").unlink()
        await kubelet.start()
        await settled(kubelet, I915, {A})


# --- the kubelet restarts, at every step ----------------------------------------------


@both_kinds
@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("step", ["before bind", "during Register", "before the stream", "just after"])
async def test_a_kubelet_that_restarts_gets_the_whole_resource_again(
    kubelet_dir: Path, kind: Kind, step: str, orderly: bool
) -> None:
    async with running_kubelet(kubelet_dir, dial_back=kind) as kubelet:
        kubelet.faults.delay = math.inf if step == "during Register" else 0
        kubelet.faults.opens_streams = step != "before the stream"
        async with running_endpoint(kubelet_dir, resource(A)):
            if step == "during Register":
                await kubelet.wait_for(lambda k: k.registrations)
            elif step == "before the stream":
                await kubelet.wait_for(lambda k: k.registrations and k.registrations[0].error == "")
            elif step == "just after":
                await kubelet.wait_for(lambda k: k.resource(I915).lists)
            kubelet.faults.delay, kubelet.faults.opens_streams = 0, True
            await kubelet.restart(remove_socket=orderly)
            await settled(kubelet, I915, {A})
            endpoints = [told.endpoint for told in kubelet.registrations]
            assert len(set(endpoints)) == len(endpoints), "a socket name was used twice"
            assert own_sockets(kubelet_dir) == endpoints[-1:]


async def test_a_socket_left_by_a_killed_kubelet_is_knocked_at_quietly_until_the_next_one_comes(
    kubelet_dir: Path,
) -> None:
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            running_endpoint(kubelet_dir, resource(A)) as endpoint,
        ):
            await until(endpoint.state, is_streaming)
            await kubelet.stop(remove_socket=False)
            await lost(endpoint, "Connection refused")
            version = endpoint.state.version
            # It goes on trying, each time on a new socket of its own:
            tried = set(own_sockets(kubelet_dir))
            with anyio.fail_after(5):
                while len(tried) < 4:
                    tried.update(own_sockets(kubelet_dir))
                    await anyio.sleep(FLOOR / 10)
            assert endpoint.state.version == version
            endpoint.resource.set(resource(A, B))
            await kubelet.start()
            await settled(kubelet, I915, {A, B})
            await until(endpoint.state, is_streaming)
    first, *more = [line for line in lines if "refused" in line]
    assert first == f"WARNING {I915}: not registered: {kubelet_dir}/kubelet.sock: Connection refused"
    assert re.search("; before that, [0-9]+ times: .*: Connection refused$", more[0])
    assert len(more) == 1
    # Streaming, stream ended, refused, perhaps another one as a session was under way, streaming.
    assert len(lines) in {4, 5}


@both_kinds
async def test_what_changed_while_unregistered_is_in_the_first_list_of_the_new_stream(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        await settled(kubelet, I915, {A})
        await kubelet.stop()
        for addresses in ({A, B}, {B}, {B, C}):
            endpoint.resource.set(resource(*sorted(addresses)))
        await kubelet.start()
        await settled(kubelet, I915, {B, C})
        assert [set(listed.devices) for listed in kubelet.resource(I915).lists] == [{A}, {B, C}]


@both_kinds
async def test_fifty_restarts_leave_no_file_no_task_and_no_socket_behind(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A)),
    ):
        counts: list[tuple[int, int]] = []
        for number in range(50):
            await settled(kubelet, I915, {A})
            if number in {4, 49}:
                gc.collect()
                await anyio.wait_all_tasks_blocked()
                counts.append((len(open_files()), len(asyncio.all_tasks())))
            await kubelet.restart(remove_socket=bool(number % 2))
        await settled(kubelet, I915, {A})
        assert counts[0] == counts[1], "files and tasks after 5 restarts, and after 50"


# --- the kubelet goes on, and something else happens ----------------------------------


async def test_a_new_kubelet_socket_is_registered_to_once_the_old_stream_is_closed(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        await settled(kubelet, I915, {A})
        await kubelet.recreate_socket()
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert len(kubelet.resource(I915).ends) == 1, "the old stream was closed before"
        await settled(kubelet, I915, {A})
        await until(endpoint.state, is_streaming)
        assert len(kubelet.registrations) == 2


async def test_ticks_without_a_change_do_not_disturb_a_healthy_stream(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(A)) as endpoint,
    ):
        await settled(kubelet, I915, {A})
        for number in range(200):
            (kubelet_dir / f"other-{number}").touch()
            await anyio.lowlevel.checkpoint()
        ticks = endpoint._directory.ticks
        (kubelet_dir / "kubelet.sock").unlink()  # a person did that; the connection goes on
        for number in range(5):  # by the last of these ticks the first one has been dealt with
            version = ticks.version
            (kubelet_dir / f"more-{number}").touch()
            await ticks.newer(version)
        endpoint.resource.set(resource(A, B))
        await settled(kubelet, I915, {A, B})
        assert len(kubelet.registrations) == 1
        assert kubelet.resource(I915).ends == []


async def test_our_socket_deleted_by_a_person_is_replaced_by_a_new_one(kubelet_dir: Path) -> None:
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            running_endpoint(kubelet_dir, resource(A)) as endpoint,
        ):
            await until(endpoint.state, is_streaming)
            (first,) = own_sockets(kubelet_dir)
            (kubelet_dir / first).unlink()
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            await settled(kubelet, I915, {A})
            assert own_sockets(kubelet_dir) != [first]
    assert any(f"{first} was removed" in line for line in lines)


@both_kinds
async def test_a_lost_stream_alone_is_a_reason_to_register_again(kubelet_dir: Path, kind: Kind) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A)),
    ):
        for number, drop in enumerate([kubelet.drop_stream, kubelet.break_connection] * 3, start=1):
            await settled(kubelet, I915, {A})
            drop(I915)
            await kubelet.wait_for(lambda k, number=number: len(k.registrations) == number + 1)  # type: ignore[misc]
        await settled(kubelet, I915, {A})
        assert len({told.endpoint for told in kubelet.registrations}) == 7


async def test_a_registration_that_is_refused_is_tried_ever_more_slowly_and_said_once_per_reason(
    kubelet_dir: Path,
) -> None:
    with heard() as lines:
        async with running_kubelet(kubelet_dir) as kubelet:
            kubelet.faults.refuse = "no room"
            async with running_endpoint(kubelet_dir, resource(A)) as endpoint:
                await kubelet.wait_for(lambda k: len(k.registrations) == 7)
                gaps = [b.at - a.at for a, b in itertools.pairwise(kubelet.registrations)]
                assert all(gap >= FLOOR for gap in gaps)
                assert sum(gaps) >= sum(FLOOR / 2 * 2**failures for failures in range(6))
                assert own_sockets(kubelet_dir) in ([], [kubelet.registrations[-1].endpoint])
                kubelet.faults.refuse = "no such version"
                await lost(endpoint, "no such version")
                kubelet.faults.refuse = ""
                await settled(kubelet, I915, {A})
                await until(endpoint.state, is_streaming)
    refused, other, well = lines
    assert refused == f"WARNING {I915}: not registered: the kubelet refused: no room"
    assert re.fullmatch(
        f"WARNING {I915}: not registered: the kubelet refused: no such version"
        r"; before that, [678] times: the kubelet refused: no room",
        other,
    )
    assert well.startswith(f"INFO {I915}: registered and streaming, 1 device")


async def test_a_new_kubelet_is_tried_at_once_however_long_the_old_one_refused(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse = "no"
        async with running_endpoint(kubelet_dir, resource(A)):
            await kubelet.wait_for(lambda k: len(k.registrations) == 8, within=15)
            kubelet.faults.refuse = ""
            began = time.monotonic()
            await kubelet.restart()
            await settled(kubelet, I915, {A})
            assert time.monotonic() - began < FLOOR / 2 * 2**7, "the next pause is at least so long"


async def test_streams_that_never_last_are_begun_ever_more_slowly(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(A), patience=Patience(steady=60)),
    ):
        for _ in range(7):
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 1)
            kubelet.drop_stream(I915)
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 0)
        await settled(kubelet, I915, {A})
        gap = kubelet.registrations[-1].at - kubelet.resource(I915).ends[-1].at
        assert gap >= FLOOR / 2 * 2**6


async def test_after_a_stream_that_lasted_the_next_loss_counts_as_the_first(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(A), patience=Patience(steady=0.1)),
    ):
        for _ in range(6):
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 1)
            kubelet.drop_stream(I915)
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 0)
        await settled(kubelet, I915, {A})
        await anyio.sleep(1.4)  # more than four times the longest pause that there can have been, 0.32 s
        pauses = 0.0
        for _ in range(3):
            kubelet.drop_stream(I915)
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 0)
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 1)
            pauses += kubelet.registrations[-1].at - kubelet.resource(I915).ends[-1].at
        assert pauses < FLOOR / 2 * (2**6 + 2**7 + 2**8), "the next three would have been at least so long"


async def test_a_kubelet_that_never_opens_a_stream_is_registered_to_again(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.opens_streams = False
        async with running_endpoint(kubelet_dir, resource(A), patience=Patience(stream=0.1)) as endpoint:
            state = await lost(endpoint, "opened no stream")
            assert state.reason == "the kubelet answered and opened no stream within 0.1 s"
            kubelet.faults.opens_streams = True
            await settled(kubelet, I915, {A})


async def test_a_kubelet_that_never_answers_is_registered_to_again(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.delay = math.inf
        async with running_endpoint(kubelet_dir, resource(A), patience=Patience(register=0.1)) as endpoint:
            state = await lost(endpoint, "did not answer")
            assert state.reason == "the kubelet did not answer within 0.1 s"
            kubelet.faults.delay = 0
            await settled(kubelet, I915, {A})


class HastyKubelet(RegistrationBase):
    """Opens the stream before it answers Register, and may answer with an error all the same."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.error = ""
        self.streams = AsyncExitStack()

    async def register(self, message: RegisterRequest) -> Empty:
        peer = await self.streams.enter_async_context(connected(self.directory / message.endpoint))
        await peer.answer(await peer.call("ListAndWatch", framed(b"")), of_bytes=5)
        if self.error:
            raise GRPCError(Status.UNKNOWN, self.error)
        await self.streams.aclose()
        return Empty()


@asynccontextmanager
async def running_hasty_kubelet(directory: Path) -> AsyncIterator[HastyKubelet]:
    kubelet = HastyKubelet(directory)
    server = KubeletServer([kubelet])
    await server.start(path=str(directory / "kubelet.sock"))
    async with kubelet.streams:
        yield kubelet
    await server.end()


async def test_a_stream_is_a_success_whatever_register_is_answered_with(kubelet_dir: Path) -> None:
    async with running_hasty_kubelet(kubelet_dir) as kubelet:
        kubelet.error = "something"
        async with running_endpoint(kubelet_dir, resource(A)) as endpoint:
            await until(endpoint.state, is_streaming)


async def test_a_stream_that_ended_before_register_was_answered_is_no_success(kubelet_dir: Path) -> None:
    with heard() as lines:
        async with running_hasty_kubelet(kubelet_dir), running_endpoint(kubelet_dir, resource(A)) as endpoint:
            await lost(endpoint, "stream ended")
    assert not any("registered and streaming" in line for line in lines)


async def test_a_list_that_the_kubelet_does_not_take_is_no_tight_loop(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.list_limit = 10
        async with running_endpoint(kubelet_dir, resource(A)):
            await kubelet.wait_for(lambda k: len(k.resource(I915).ends) == 5)
            ends = kubelet.resource(I915).ends
            assert ends[-1].at - ends[0].at >= sum(FLOOR / 2 * 2**failures for failures in range(1, 4))
            kubelet.faults.list_limit = 1000
            await settled(kubelet, I915, {A})


async def test_a_kubelet_that_stops_reading_holds_up_nothing_and_then_gets_the_newest_list(
    kubelet_dir: Path,
) -> None:
    many = [f"0000:{bus:02x}:00.0" for bus in range(120)]
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(*many, shares=30)) as endpoint,
        running_endpoint(kubelet_dir, resource(A, name=XE), process="000002") as other,
    ):
        await kubelet.wait_for(lambda k: len(k.resource(I915).devices) == 3_600)
        await settled(kubelet, XE, {A}, sockets=2)
        kubelet.pause_lists()
        versions = 20
        for number in range(versions):
            # Each list is larger than the window that the kubelet grants, so the first one fills it.
            endpoint.resource.set(resource(*many[number + 1 :], shares=30))
            other.resource.set(resource(*([A, B, C] * versions)[: number + 1], name=XE))
            await anyio.sleep(0.001)
        before = len(kubelet.resource(I915).lists)
        kubelet.resume_lists()
        await kubelet.wait_for(lambda k: len(k.resource(I915).devices) == (120 - versions) * 30)
        # What was under way when it stopped reading, perhaps one more, and the newest.
        assert len(kubelet.resource(I915).lists) - before <= 3
        assert len(kubelet.registrations) == 2


@both_kinds
async def test_two_processes_with_one_resource_both_stay_and_the_rest_is_served_when_one_leaves(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        running_endpoint(kubelet_dir, resource(A), process="00000a") as stays,
    ):
        await settled(kubelet, I915, {A})
        with heard() as lines:
            async with running_endpoint(kubelet_dir, resource(A), process="00000b"):
                await kubelet.wait_for(lambda k: k.resource(I915).streams == 2)
                (other,) = set(own_sockets(kubelet_dir)) - {kubelet.registrations[0].endpoint}
                await eventually(lambda: f"has it: {other}" in "".join(lines), lambda: f"said of {other}")
            await settled(kubelet, I915, {A})
        assert sum("another process" in line and other in line for line in lines) == 1
        stays.resource.set(resource(A, B))
        await settled(kubelet, I915, {A, B})


async def test_a_process_that_only_registers_anew_has_not_left(kubelet_dir: Path) -> None:
    async with (
        running_kubelet(kubelet_dir) as kubelet,
        running_endpoint(kubelet_dir, resource(A), process="00000a") as older,
    ):
        await settled(kubelet, I915, {A})
        with heard() as lines:
            async with running_endpoint(kubelet_dir, resource(A), process="00000b"):
                await kubelet.wait_for(lambda k: k.resource(I915).streams == 2)
                await eventually(lambda: "another process" in "".join(lines), lambda: "a word")
                kubelet.faults.refuse = "not now"
                kubelet.drop_stream(I915)
                await kubelet.wait_for(lambda k: len(k.registrations) == 6)
                kubelet.faults.refuse = ""
                await kubelet.wait_for(lambda k: k.resource(I915).streams == 2)
                await anyio.sleep(AWAY + 0.2)
                older.resource.set(resource(A, B))
                await kubelet.wait_for(lambda k: k.resource(I915).healthy == {A, B})
                assert sum("00000a" in told.endpoint for told in kubelet.registrations) == 1


@both_kinds
async def test_the_older_of_two_processes_may_leave_without_harm_to_the_newer(
    kubelet_dir: Path, kind: Kind
) -> None:
    async with (
        running_kubelet(kubelet_dir, dial_back=kind) as kubelet,
        anyio.create_task_group() as tasks,
    ):
        leave = anyio.Event()

        async def older() -> None:
            async with running_endpoint(kubelet_dir, resource(A), process="00000a"):
                await leave.wait()

        tasks.start_soon(older)
        await settled(kubelet, I915, {A})
        async with running_endpoint(kubelet_dir, resource(A, B), process="00000b") as newer:
            await kubelet.wait_for(lambda k: k.resource(I915).streams == 2)
            leave.set()
            await settled(kubelet, I915, {A, B})
            newer.resource.set(resource(B))
            await settled(kubelet, I915, {B})
            assert len(kubelet.registrations) == (3 if kind == "before" else 2)


async def test_a_folder_where_nothing_can_be_served_is_said_once_and_tried_again(kubelet_dir: Path) -> None:
    with heard() as lines:
        async with (
            running_kubelet(kubelet_dir) as kubelet,
            running_endpoint(kubelet_dir, resource(A)) as endpoint,
        ):
            kubelet.faults.refuse = "no"
            await lost(endpoint, "no")
            soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
            os.close(lowest := os.dup(0))
            limits.setrlimit(limits.RLIMIT_NOFILE, (lowest, hard))  # not one more file
            try:
                state = await lost(endpoint, "cannot serve")
            finally:
                limits.setrlimit(limits.RLIMIT_NOFILE, (soft, hard))
            assert state.reason == f"cannot serve in {kubelet_dir}: Too many open files"
            kubelet.faults.refuse = ""
            await settled(kubelet, I915, {A})
    assert sum("cannot serve" in line for line in lines) == 1


# --- whoever wants to know --------------------------------------------------------------


class Heard(Witness):
    """A witness that writes down what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.states: list[tuple[bool, str]] = []
        self.lists: list[int] = []

    def registered(self, name: ResourceName, outcome: Registration) -> None:
        assert name == I915
        self.outcomes.append(outcome)

    def became(self, name: ResourceName, *, streaming: bool, phase: str, reason: str) -> None:
        assert name == I915
        assert phase
        self.states.append((streaming, reason))

    def sent(self, resource: Resource) -> None:
        self.lists.append(len(resource))


async def test_a_witness_is_told_of_every_registration_and_state_and_list(kubelet_dir: Path) -> None:
    witness = Heard()
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse = "no room"
        async with running_endpoint(kubelet_dir, resource(A), witness=witness) as endpoint:
            await kubelet.wait_for(lambda k: len(k.registrations) == 4)
            kubelet.faults.refuse = ""
            await settled(kubelet, I915, {A})
            await until(endpoint.state, is_streaming)
            endpoint.resource.set(resource(A, B))
            await settled(kubelet, I915, {A, B})
    refused = witness.outcomes.count("refused")
    assert refused in {3, 4}
    assert witness.outcomes == [*["refused"] * refused, "streaming"]
    why = "the kubelet refused: no room"
    assert witness.states[:3] == [(False, ""), (False, why), (False, f"{why} (2 times)")]
    assert witness.states[-1] == (True, "")
    assert len(witness.states) == 1 + refused + 1
    assert witness.lists == [1, 2]


async def test_an_answer_without_a_stream_is_an_outcome_of_its_own(kubelet_dir: Path) -> None:
    witness = Heard()
    async with running_kubelet(kubelet_dir) as kubelet:
        kubelet.faults.opens_streams = False
        patience = Patience(stream=0.05)
        async with running_endpoint(kubelet_dir, resource(A), patience=patience, witness=witness):
            await eventually(lambda: bool(witness.outcomes), lambda: "an outcome")
            kubelet.faults.opens_streams = True
            await settled(kubelet, I915, {A})
            await eventually(lambda: "streaming" in witness.outcomes, lambda: str(witness.outcomes))
    assert set(witness.outcomes[:-1]) == {"no_stream"}


# --- told to stop, at every step ------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["waiting", "during Register", "before the stream", "streaming", "pausing", "blocked stream"]
)
async def test_told_to_stop_it_leaves_soon_and_takes_its_own_sockets_along(
    kubelet_dir: Path, step: str
) -> None:
    foreign = kubelet_dir / "gpuplug-not-ours.sock"
    with socket.socket(socket.AF_UNIX) as other:
        async with running_kubelet(kubelet_dir, started=step != "waiting") as kubelet:
            other.bind(str(foreign))
            kubelet.faults.delay = math.inf if step == "during Register" else 0
            kubelet.faults.opens_streams = step != "before the stream"
            kubelet.faults.refuse = "no" if step == "pausing" else ""
            if step == "blocked stream":
                kubelet.pause_lists()
            many = resource(*[f"0000:{bus:02x}:00.0" for bus in range(99)], shares=99)
            async with running_endpoint(kubelet_dir, many) as endpoint:
                if step == "waiting":
                    await until(endpoint.state, lambda s: bool(s.reason))
                elif step in {"during Register", "before the stream"}:
                    await kubelet.wait_for(lambda k: k.registrations)
                elif step == "pausing":
                    await kubelet.wait_for(lambda k: len(k.registrations) == 8)
                    await until(endpoint.state, lambda s: s.phase is Phase.LOST)
                else:
                    await until(endpoint.state, is_streaming)
                began = time.monotonic()
            assert time.monotonic() - began < IN_TIME
            assert own_sockets(kubelet_dir) == [foreign.name]


async def test_told_to_stop_at_any_turn_of_the_event_loop_it_leaves_no_socket(kubelet_dir: Path) -> None:
    async with running_kubelet(kubelet_dir):
        before = open_files()
        for turns in range(60):
            async with running_endpoint(kubelet_dir, resource(A)):
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
            assert own_sockets(kubelet_dir) == [], f"after {turns} turns"
        await anyio.wait_all_tasks_blocked()
        left = [name for name in open_files() if "inotify" in name]
        assert left == [name for name in before if "inotify" in name]


# --- all Endpoints of the node --------------------------------------------------------


async def test_endpoints_follow_the_difference_and_what_is_gone_gets_an_empty_list(kubelet_dir: Path) -> None:
    directory = KubeletDirectory(str(kubelet_dir), "000001", Latest(None))
    async with running_kubelet(kubelet_dir) as kubelet, anyio.create_task_group() as tasks:
        endpoints = Endpoints(tasks, directory, allocate_from_the_list)
        assert endpoints.states == {}
        endpoints.apply(InventoryDiff(added=(resource(A), resource(B, name=XE))))
        await settled(kubelet, I915, {A}, sockets=2)
        await settled(kubelet, XE, {B}, sockets=2)
        endpoints.apply(InventoryDiff(changed=(resource(A, C),), gone=(ResourceName(XE),)))
        await settled(kubelet, I915, {A, C}, sockets=2)
        await settled(kubelet, XE, set(), sockets=2)
        endpoints.apply(InventoryDiff(added=(resource(B, name=XE),), gone=(ResourceName(I915),)))
        await settled(kubelet, XE, {B}, sockets=2)
        await settled(kubelet, I915, set(), sockets=2)
        assert endpoints.states == {
            I915: EndpointState(Phase.STREAMING),
            XE: EndpointState(Phase.STREAMING),
        }
        assert len(kubelet.registrations) == 2
        tasks.cancel_scope.cancel()
    assert own_sockets(kubelet_dir) == []
