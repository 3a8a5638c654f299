"""Asks for GPUs as the kubelet does, and sees whose nodes come."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel

from gpuplug.testing import FakeKubeletError

from .serving import I915, Witness
from .waiting import SECONDS, until


def bearer(path: str) -> str:
    """Ask the kernel which bus device a node belongs to."""
    number = Path(path).stat().st_rdev
    return Path(f"/sys/dev/char/{os.major(number)}:{os.minor(number)}/device").resolve().name


async def given_in_the_end(witness: Witness, address: str) -> None:
    """Ask until it is given, as the last look at the machine may not be over, and see whose nodes came."""
    with anyio.fail_after(SECONDS):
        while True:
            with suppress(FakeKubeletError):
                nodes = await witness.allocated(I915, address)
                break
    assert {bearer(path) for path in nodes.values()} == {address}


class Asked:
    """A GPU that is asked for without a pause, and what came of it."""

    def __init__(self, witness: Witness, address: str) -> None:
        self._witness: Final = witness
        self._address: Final = address
        self.outcomes: Final[Counter[str]] = Counter()

    async def on_and_on(self) -> None:
        """Ask until cancelled. An answer must name nodes, an error must name the GPU."""
        while True:
            try:
                nodes = await self._witness.allocated(I915, self._address)
            except FakeKubeletError as error:
                assert self._address in str(error)  # noqa: PT017 - one of many outcomes
                self.outcomes["refused"] += 1
            else:
                assert nodes
                self.outcomes["given"] += 1
            await anyio.lowlevel.checkpoint()

    async def again(self, outcome: str) -> None:
        """Wait until it is `given` or `refused` once more."""
        before = self.outcomes[outcome]
        await until(f"{self._address} to be {outcome}", lambda: self.outcomes[outcome] > before)


@asynccontextmanager
async def asked_on_and_on(witness: Witness, steady: str, flighty: str) -> AsyncIterator[Asked]:
    """Ask for two GPUs without a pause, and give the flighty one; the steady one is never to be refused."""
    asked = [Asked(witness, steady), Asked(witness, flighty)]
    async with anyio.create_task_group() as tasks:
        for each in asked:
            tasks.start_soon(each.on_and_on)
        yield asked[1]
        tasks.cancel_scope.cancel()
    assert asked[0].outcomes["given"] > 0
    assert not asked[0].outcomes["refused"]
