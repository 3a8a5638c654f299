"""A GPU that comes and goes without end."""

import json
import time
from typing import Final

import anyio
import pytest

from tests.vm.guest.asking import given_in_the_end
from tests.vm.guest.gpus import Gpus
from tests.vm.guest.launch import SHARE
from tests.vm.guest.serving import I915, Witnesses

SECONDS: Final = 60
PER_SECOND: Final = 20


@pytest.mark.long
async def test_a_gpu_that_flaps_for_a_minute_harms_no_other_and_is_right_in_the_end(
    gpus: Gpus, watched: Witnesses
) -> None:
    steady, flapping = await gpus.plug(0), await gpus.plug(1)
    await watched.come_to_have(I915, {steady, flapping})
    begin = time.monotonic()
    for change in range(SECONDS * PER_SECOND):
        await anyio.sleep(max(0.0, begin + change / PER_SECOND - time.monotonic()))
        await (gpus.bind(flapping, "i915") if change % 2 else gpus.unbind(flapping))
    took = time.monotonic() - begin
    for witness in watched.each:
        await given_in_the_end(witness, flapping)
        await witness.comes_to_have(I915, {steady, flapping})
        resource = witness.kubelet.resource(I915)
        assert len(witness.kubelet.registered(I915)) == 1, "it had to register again"
        late = [each for each in resource.lists if each.at > begin]
        assert all(each.devices[steady].healthy for each in late)
    row = {
        "what": "a GPU that flaps",
        "changes": SECONDS * PER_SECOND,
        "per second": f"{SECONDS * PER_SECOND / took:.1f}",
        "lists": sum(each.at > begin for each in watched.each[0].kubelet.resource(I915).lists),
    }
    with (SHARE / "measured").open("a") as file:
        file.write(json.dumps(row) + "\n")
