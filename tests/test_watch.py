"""The watch tells that something may have changed, whatever becomes of the folders."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from inotify_simple import Event, flags

from gpuplug.host.watch import COALESCE, Notifier, Place, open_notifier, watch
from gpuplug.latest import Latest
from tests.running import eventually, heard, open_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable


@dataclass
class Ticks:
    """What the watch has called out, place by place."""

    counts: dict[str, int] = field(default_factory=dict)
    changed: Latest[None] = field(default_factory=lambda: Latest(None))

    def tick(self, places: frozenset[Place]) -> None:
        for place in places:
            self.counts[place.path] = self.counts.get(place.path, 0) + 1
        self.changed.set(None)

    def of(self, place: Path) -> int:
        return self.counts.get(str(place), 0)

    async def past(self, place: Path, number: int, *, within: float = 5.0) -> int:
        """Wait until a place was ticked more often than that; return how often."""
        version = -1
        with anyio.move_on_after(within):
            while self.of(place) <= number:
                version, _ = await self.changed.newer(version)
            return self.of(place)
        raise TimeoutError(f"{place}: {self.of(place)} ticks and no more within {within} s")


@asynccontextmanager
async def watching(
    *places: Path,
    open_: Callable[[], Notifier] = open_notifier,
    poll: float = 0.01,
    retry: float = 0.05,
    rearm: float = 60.0,
) -> AsyncIterator[Ticks]:
    """Watch places; begins after the first tick, when the watches stand."""
    ticks = Ticks()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await watch(
                [Place(str(place)) for place in places],
                ticks.tick,
                open_=open_,
                poll=poll,
                retry=retry,
                rearm=rearm,
            )

        tasks.start_soon(run)
        await ticks.past(places[0], 0)
        yield ticks
        tasks.cancel_scope.cancel()


@pytest.fixture
def dev(short_path: Path) -> Path:
    folder = short_path / "dev"
    folder.mkdir()
    return folder


@pytest.fixture
def dri(dev: Path) -> Path:
    """Name a folder that is not there yet."""
    return dev / "dri"


async def seen(ticks: Ticks, place: Path, change: Callable[[], object]) -> None:
    """Make a change, and wait for a tick of its own."""
    before = ticks.of(place)
    change()
    await ticks.past(place, before)
    await anyio.sleep(3 * COALESCE)  # what else belongs to this change is over when the next one is made


# --- folders that come, go and are something else -------------------------------------


async def test_what_comes_and_goes_in_a_folder_is_heard_of(dri: Path) -> None:
    dri.mkdir()
    async with watching(dri) as ticks:
        await seen(ticks, dri, (dri / "card0").touch)
        await seen(ticks, dri, lambda: (dri / "card0").rename(dri / "card1"))
        await seen(ticks, dri, (dri / "card1").unlink)


async def test_a_folder_that_is_absent_at_first_is_followed_from_the_nearest_that_exists(
    short_path: Path,
) -> None:
    place = short_path / "var" / "lib" / "kubelet" / "device-plugins"
    async with watching(place) as ticks:
        for folder in reversed([place, *list(place.parents)[:3]]):
            await seen(ticks, place, folder.mkdir)
        await seen(ticks, place, (place / "kubelet.sock").touch)


async def test_folders_that_come_all_at_once_are_found_with_what_is_in_them(short_path: Path) -> None:
    place = short_path / "var" / "lib" / "kubelet" / "device-plugins"
    async with watching(place) as ticks:
        for number in range(10):
            before = ticks.of(place)
            place.mkdir(parents=True)
            (place / "kubelet.sock").touch()
            await ticks.past(place, before)
            await seen(ticks, place, (place / f"more-{number}").touch)  # its own watch stands
            (place / f"more-{number}").unlink()
            (place / "kubelet.sock").unlink()
            place.rmdir()
            place.parent.rmdir()
            place.parent.parent.rmdir()
            await seen(ticks, place, place.parent.parent.parent.rmdir)


async def test_a_folder_that_is_made_anew_is_followed_in_its_new_inode(dri: Path) -> None:
    dri.mkdir()
    async with watching(dri) as ticks:
        for _ in range(5):
            await seen(ticks, dri, dri.rmdir)
            await seen(ticks, dri, dri.mkdir)
            await seen(ticks, dri, (dri / "card0").touch)
            await seen(ticks, dri, (dri / "card0").unlink)


async def test_a_folder_that_is_replaced_within_one_burst_is_followed_in_its_new_inode(dri: Path) -> None:
    dri.mkdir()
    (dri.parent / "spare").mkdir()

    def replace() -> None:
        dri.rmdir()
        (dri.parent / "spare").rename(dri)

    async with watching(dri) as ticks:
        await seen(ticks, dri, replace)
        await seen(ticks, dri, (dri / "card0").touch)


async def test_a_file_in_the_folders_place_is_followed_until_it_is_a_folder_again(dri: Path) -> None:
    dri.mkdir()
    async with watching(dri) as ticks:
        await seen(ticks, dri, dri.rmdir)
        await seen(ticks, dri, dri.touch)
        await seen(ticks, dri, dri.unlink)
        await seen(ticks, dri, dri.mkdir)
        await seen(ticks, dri, (dri / "card0").touch)


async def test_a_link_in_the_folders_place_is_followed_to_where_it_leads(dri: Path) -> None:
    elsewhere = dri.parent / "elsewhere"
    elsewhere.mkdir()
    dri.mkdir()
    async with watching(dri) as ticks:
        await seen(ticks, dri, dri.rmdir)
        await seen(ticks, dri, lambda: dri.symlink_to(elsewhere))
        await seen(ticks, dri, (elsewhere / "card0").touch)
        await seen(ticks, dri, dri.unlink)
        await seen(ticks, dri, lambda: dri.symlink_to(dri))  # a circle
        await seen(ticks, dri, dri.unlink)
        await seen(ticks, dri, dri.mkdir)
        await seen(ticks, dri, (dri / "card0").touch)


async def test_a_folder_that_is_renamed_away_is_not_followed_any_longer(dri: Path) -> None:
    away = dri.parent / "away"
    dri.mkdir()
    async with watching(dri) as ticks:
        await seen(ticks, dri, lambda: dri.rename(away))
        before = ticks.of(dri)
        (away / "card0").touch()
        await anyio.sleep(3 * COALESCE)
        assert ticks.of(dri) == before
        await seen(ticks, dri, lambda: away.rename(dri))
        await seen(ticks, dri, (dri / "card1").touch)


async def test_no_watch_is_kept_on_what_is_no_longer_there(dri: Path) -> None:
    def watches() -> int:
        return sum(
            info.read_text().count("inotify wd:")
            for info in Path("/proc/self/fdinfo").iterdir()
            if info.exists()
        )

    dri.mkdir()
    async with watching(dri) as ticks:
        before = watches()
        for number in range(5):
            away = dri.parent / f"away{number}"
            await seen(ticks, dri, lambda away=away: dri.rename(away))  # type: ignore[misc]
            await seen(ticks, dri, dri.mkdir)
        assert watches() == before


async def test_a_folder_higher_up_that_is_renamed_away_takes_no_watch_along(short_path: Path) -> None:
    place = short_path / "var" / "lib" / "kubelet" / "device-plugins"
    place.mkdir(parents=True)
    async with watching(place) as ticks:
        await seen(ticks, place, lambda: (short_path / "var").rename(short_path / "old"))
        await seen(ticks, place, lambda: place.mkdir(parents=True))
        await seen(ticks, place, (place / "kubelet.sock").touch)


async def test_each_place_is_ticked_for_its_own_changes(short_path: Path, dri: Path) -> None:
    kubelet = short_path / "kubelet"
    kubelet.mkdir()
    dri.mkdir()
    async with watching(dri, kubelet) as ticks:
        await ticks.past(kubelet, 0)
        await seen(ticks, dri, (dri / "card0").touch)
        assert ticks.counts == {str(dri): 2, str(kubelet): 1}
        await seen(ticks, kubelet, (kubelet / "kubelet.sock").touch)
        assert ticks.counts == {str(dri): 2, str(kubelet): 2}


async def test_two_places_in_one_folder_do_not_hide_each_other(short_path: Path) -> None:
    one, other = short_path / "one", short_path / "other"
    async with watching(one, other) as ticks:
        await seen(ticks, other, other.mkdir)
        assert ticks.of(one) == 1
        await seen(ticks, one, one.mkdir)
        await seen(ticks, other, (other / "file").touch)


async def test_a_mount_or_whatever_else_hides_a_folder_without_an_event_is_found_after_a_while(
    dri: Path,
) -> None:
    """A stand-in for the mount: a notifier that does not tell of the rename, as none tells of a mount."""
    dri.mkdir()

    class Deaf(Listening):
        def read(self, timeout: int | None = None) -> Iterable[Event]:
            events = super().read(timeout)
            return [event for event in events if event.name != "dri" and event.mask & flags.MOVE_SELF == 0]

    async with watching(dri, open_=Deaf, rearm=0.05) as ticks:
        before = ticks.of(dri)
        dri.rename(dri.parent / "below")
        dri.mkdir()
        await ticks.past(dri, before)
        await seen(ticks, dri, (dri / "card0").touch)


async def test_watches_that_are_set_anew_unasked_tick_nothing_where_nothing_has_changed(dri: Path) -> None:
    added = 0

    class Counting(Listening):
        def add_watch(self, path: str, mask: int) -> int:
            nonlocal added
            added += path == str(dri)
            return super().add_watch(path, mask)

    dri.mkdir()
    async with watching(dri, open_=Counting, rearm=0.01) as ticks:
        await eventually(lambda: added > 5, lambda: f"{added} times")
        assert ticks.of(dri) == 1


# --- how often ------------------------------------------------------------------------


async def test_a_burst_makes_few_ticks(dri: Path) -> None:
    dri.mkdir()
    async with watching(dri) as ticks:
        for number in range(500):
            (dri / f"card{number}").touch()
        await ticks.past(dri, 1)
        await seen(ticks, dri, (dri / "last").touch)
        assert ticks.of(dri) <= 6


async def test_what_comes_within_milliseconds_is_one_tick(dri: Path) -> None:
    dri.mkdir()
    async with watching(dri) as ticks:
        began = anyio.current_time()
        for number in range(30):
            (dri / f"card{number}").touch()
            await anyio.sleep(0.001)
        await ticks.past(dri, 1)
        await seen(ticks, dri, (dri / "last").touch)
        assert ticks.of(dri) <= 2 + (anyio.current_time() - began) / COALESCE


async def test_what_happens_beside_the_places_ticks_nothing(dev: Path, dri: Path) -> None:
    dri.mkdir()
    (dri / "card0").touch()
    async with watching(dri) as ticks:
        for number in range(1000):
            os.close(os.open("/dev/null", os.O_RDONLY))
            (dri / "card0").read_bytes()  # a node that is used
            (dev / f"tty{number}").touch()
            (dev / f"tty{number}").unlink()
            if number % 100 == 0:
                await anyio.sleep(2 * COALESCE)
        await seen(ticks, dri, (dri / "card1").touch)
        assert ticks.of(dri) == 2  # at first, and for card1


async def test_after_an_overflow_of_the_queue_every_place_is_looked_at(short_path: Path, dri: Path) -> None:
    other = short_path / "other"

    class Overflowing(Listening):
        def read(self, timeout: int | None = None) -> Iterable[Event]:
            return [*list(super().read(timeout))[:0], Event(-1, flags.Q_OVERFLOW, 0, "")]

    dri.mkdir()
    async with watching(dri, other, open_=Overflowing) as ticks:
        await ticks.past(other, 0)
        before = ticks.of(other)
        (dri / "card0").touch()
        await ticks.past(other, before)


# --- without inotify ------------------------------------------------------------------


class Listening:
    """A real Notifier that can be made to fail."""

    def __init__(self) -> None:
        self._real = open_notifier()

    def fileno(self) -> int:
        return self._real.fileno()

    def add_watch(self, path: str, mask: int) -> int:
        return self._real.add_watch(path, mask)

    def rm_watch(self, wd: int) -> None:
        self._real.rm_watch(wd)

    def read(self, timeout: int | None = None) -> Iterable[Event]:
        return self._real.read(timeout)

    def close(self) -> None:
        self._real.close()


@dataclass
class Exhausted:
    """Opens notifiers that fail as long as ``code`` is set: at once, or when a watch is added."""

    code: int
    at_open: bool
    tried: int = 0

    def open(self) -> Notifier:
        self.tried += 1
        if self.code and self.at_open:
            raise OSError(self.code, os.strerror(self.code))
        outer = self

        class Failing(Listening):
            def add_watch(self, path: str, mask: int) -> int:
                if outer.code:
                    raise OSError(outer.code, os.strerror(outer.code))
                return super().add_watch(path, mask)

        return Failing()


@pytest.mark.parametrize(
    ("code", "at_open", "named"),
    [
        (errno.EMFILE, True, "fs.inotify.max_user_instances"),
        (errno.ENFILE, True, "fs.file-max"),
        (errno.ENOSPC, False, "fs.inotify.max_user_watches"),
        (errno.ENOMEM, False, "the memory of the node"),
        (errno.EACCES, False, "the right to read a folder"),
        (errno.EIO, False, "a fault"),
    ],
)
async def test_where_inotify_is_exhausted_it_polls_names_the_limit_once_and_recovers(
    dri: Path, code: int, at_open: bool, named: str
) -> None:
    dri.mkdir()
    exhausted = Exhausted(code, at_open)
    with heard() as lines:
        async with watching(dri, open_=exhausted.open, poll=0.01, retry=0.03) as ticks:
            while exhausted.tried < 4:
                await ticks.past(dri, ticks.of(dri))
            assert len(lines) == 1
            assert os.strerror(code) in lines[0]
            assert named in lines[0]
            assert lines[0].endswith("looking every 0.01 s")
            exhausted.code = 0
            while len(lines) < 2:
                await ticks.past(dri, ticks.of(dri))
            assert lines[1] == "INFO inotify works again: changes are seen at once"
            await seen(ticks, dri, (dri / "card0").touch)
            assert len(lines) == 2


async def test_a_watch_that_cannot_be_added_later_on_is_no_end_either(dri: Path) -> None:
    exhausted = Exhausted(0, at_open=False)
    with heard() as lines:
        async with watching(dri, open_=exhausted.open) as ticks:
            exhausted.code = errno.ENOSPC
            before = ticks.of(dri)
            dri.mkdir()
            await ticks.past(dri, before + 3)
            exhausted.code = errno.EMFILE  # another limit is another sentence
            exhausted.at_open = True
            while len(lines) < 2:
                await ticks.past(dri, ticks.of(dri))
            exhausted.code = 0
            while len(lines) < 3:
                await ticks.past(dri, ticks.of(dri))
            await seen(ticks, dri, (dri / "card0").touch)
    assert ["max_user_watches" in line for line in lines] == [True, False, False]
    assert "max_user_instances" in lines[1]


async def test_without_inotify_every_place_is_looked_at_at_an_even_pace(short_path: Path, dri: Path) -> None:
    exhausted = Exhausted(errno.EMFILE, at_open=True)
    other = short_path / "other"
    async with watching(dri, other, open_=exhausted.open, poll=0.02, retry=60) as ticks:
        began = anyio.current_time()
        first = ticks.of(dri)
        await ticks.past(dri, first + 9)
        assert anyio.current_time() - began >= 0.02 * 9
        assert abs(ticks.of(dri) - ticks.of(other)) <= 1
        assert exhausted.tried == 1


async def test_a_folder_above_that_may_only_be_passed_through_does_not_matter(dri: Path) -> None:
    class Hidden(Listening):
        def add_watch(self, path: str, mask: int) -> int:
            if path == str(dri.parent):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return super().add_watch(path, mask)

    dri.mkdir()
    with heard() as lines:
        async with watching(dri, open_=Hidden) as ticks:
            await seen(ticks, dri, (dri / "card0").touch)
    assert lines == []


# --- the end --------------------------------------------------------------------------


async def test_it_gives_its_descriptor_back_when_it_is_told_to_stop(dri: Path) -> None:
    before = open_files()
    for retry in range(20):
        async with watching(dri):
            if retry % 2:
                dri.mkdir()
                dri.rmdir()
    assert open_files() == before


async def test_it_opens_one_inotify_instance_for_all_places(short_path: Path) -> None:
    before = open_files()
    async with watching(*(short_path / str(number) for number in range(20))):
        assert (
            len([f for f in open_files() if "inotify" in f]) == len([f for f in before if "inotify" in f]) + 1
        )
