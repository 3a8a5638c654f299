"""Why our DaemonSet mounts the host's /dev, and not /dev/dri.

All other tests look through that mount too: the witness "DaemonSet" is the gpuplug behind it.
"""

from pathlib import Path

from .gpus import Gpus
from .launch import DRI_ONLY
from .serving import I915, Witness, Witnesses, witness


def mounts_of(seen: Witness, where: str) -> list[str]:
    """Return the lines of the mounts at a place, as a gpuplug has them."""
    lines = Path(f"/proc/{seen.process.pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == where]


async def test_the_witness_behind_the_mount_sees_dev_read_only_and_follows_the_host(
    watched: Witnesses,
) -> None:
    seen = watched.each[0]
    *_, line = mounts_of(seen, "/dev")
    assert "ro" in line.split()[5].split(",")
    assert "master:" in line
    status = Path(f"/proc/{seen.process.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status


async def test_a_mount_of_dri_alone_goes_stale_with_the_last_gpu_and_the_mount_of_dev_does_not(
    gpus: Gpus, watched: Witnesses
) -> None:
    address = await gpus.plug(0)
    await watched.come_to_have(I915, {address})
    async with witness("dri alone", DRI_ONLY) as wrong:
        await wrong.comes_to_have(I915, {address})
        await gpus.unbind(address)
        await watched.come_to_have(I915, set())
        await gpus.bind(address, "i915")
        await watched.come_to_have(I915, {address})
        (line,) = mounts_of(wrong, "/dev/dri")
        assert "//deleted" in line.split()[3]
        seen_there = Path(f"/proc/{wrong.process.pid}/root/dev/dri")
        assert list(seen_there.iterdir()) == []
        assert wrong.has(I915) == set()
