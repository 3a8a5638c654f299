"""Driver packages: what one of them does wrong costs that one alone."""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.core.inventory import Driver, judge
from gpuplug.errors import DriverError
from gpuplug.model import HEALTHY, Declined, Device, DeviceId, DeviceSpec, Mount, Verdict
from gpuplug.plugins import hookspecs
from gpuplug.plugins.answers import check_version
from gpuplug.plugins.hookspecs import hookimpl
from gpuplug.plugins.loader import LoadedDriver, from_modules, load
from gpuplug.settings import Settings
from tests.values import A, make_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SETTINGS = Settings()
GPU = make_gpu(A)
NO_HOOK = "def gpuplug_resource_name(gpu): return 'a.com/gpu'\n"
SOUND = "from gpuplug import hookimpl\n\n@hookimpl\n" + NO_HOOK


class Installed:
    """Modules in a folder on ``sys.path``, and entry points that lead to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def __call__(self, name: str, source: str, attribute: str = "") -> importlib.metadata.EntryPoint:
        module = f"gpuplug_test_{self._folder.name.replace('-', '_')}_{next(self._numbers)}"
        (self._folder / f"{module}.py").write_text(source)
        return importlib.metadata.EntryPoint(
            name, f"{module}:{attribute}" if attribute else module, "gpuplug"
        )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.syspath_prepend(tmp_path)
    return Installed(tmp_path)


def hooks(**answers: object) -> SimpleNamespace:
    """Make a module of hooks that answer so; a function is called."""
    module = SimpleNamespace()
    for name, value in {"resource_name": None, **answers}.items():

        def hook(value: Any = value) -> object:
            return value() if callable(value) else value

        setattr(module, f"gpuplug_{name}", hookimpl(lambda hook=hook: hook()))
    return module


def driver(**answers: object) -> LoadedDriver:
    return LoadedDriver("mine", hooks(**answers))


def raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def broken_iterator() -> Iterator[object]:
    yield DeviceSpec("/dev/x", "/dev/x")
    raise LookupError("half way")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")

    __repr__ = __str__


class LyingMapping(Mapping[str, str]):
    def __getitem__(self, key: str) -> str:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["A"])

    def __len__(self) -> int:
        return 1


# loading


def test_the_drivers_of_the_environment_are_loaded_from_their_entry_points() -> None:
    loaded = load()
    found = {driver.name: driver for driver in loaded.drivers}
    assert {"i915", "xe"} <= found.keys()
    assert found["xe"].distribution == f"gpuplug-intel {importlib.metadata.version('gpuplug-intel')}"


def test_a_sound_module_becomes_a_driver(installed: Installed) -> None:
    loaded = load([installed("mine", SOUND)])
    assert loaded.broken == ()
    (mine,) = loaded.drivers
    assert (mine.name, mine.distribution, mine.sysfs_attributes) == ("mine", "", frozenset())
    core_view: Driver = mine
    assert core_view.resource_name(GPU, SETTINGS) == "a.com/gpu"


def test_an_entry_point_may_lead_to_an_object_with_hooks(installed: Installed) -> None:
    source = (
        "from gpuplug import hookimpl\n"
        "class D:\n    @hookimpl\n    def gpuplug_resource_name(self): return 'a.com/x'\n"
        "d = D()\n"
    )
    (mine,) = load([installed("mine", source, "d")]).drivers
    assert mine.resource_name(GPU, SETTINGS) == "a.com/x"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import nothing_of_this_name",
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of",
        ),
        ("raise RuntimeError('no\\nfirmware')", "cannot be imported: RuntimeError: no firmware"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("def (", "cannot be imported: SyntaxError: "),
        ("raise ValueError", "cannot be imported: ValueError"),
        ("", "implements no gpuplug hook"),
        (
            NO_HOOK,
            "driver bad: gpuplug_resource_name has no @hookimpl, and would never be called; a function",
        ),
        (
            SOUND + "def gpuplug_health(gpu): return None\n",
            "driver bad: gpuplug_health has no @hookimpl, and",
        ),
        (SOUND + "GPUPLUG_HOOKS = 99\n", "driver bad is too new: it needs version 99 of the hooks, and this"),
        (SOUND + "GPUPLUG_HOOKS = 0\n", "driver bad: its GPUPLUG_HOOKS is 0, not a number from 1 on"),
        (SOUND + "GPUPLUG_HOOKS = '1'\n", "driver bad: its GPUPLUG_HOOKS is '1', not a number from 1 on"),
        (SOUND.replace("resource_name", "resource_nam"), "unknown hook 'gpuplug_resource_nam'"),
        (SOUND.replace("(gpu)", "(card)"), "{'card'} are declared in the hookimpl but can not be found"),
        (
            SOUND.replace("def", "async def"),
            "gpuplug_resource_name is a coroutine; hooks are plain functions",
        ),
        (
            SOUND + "@hookimpl\ndef gpuplug_sysfs_attributes(): return ['../../dev/dri/card0']",
            "'../../dev/dri/card0' is not a path or glob below the GPU's bus device",
        ),
        (
            SOUND + "@hookimpl\ndef gpuplug_sysfs_attributes(): raise KeyError('x')",
            "gpuplug_sysfs_attributes raised KeyError: 'x'",
        ),
        (
            SOUND + "@hookimpl\ndef gpuplug_sysfs_attributes(): return ['*/a/b?/[cd]/e*']",
            "'*/a/b?/[cd]/e*' has wildcards in more than 3 of its parts",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_named_with_a_reason_and_the_others_load(
    installed: Installed, source: str, reason: str
) -> None:
    loaded = load([installed("bad", source), installed("good", SOUND)])
    assert [driver.name for driver in loaded.drivers] == ["good"]
    ((name, text),) = [(broken.name, broken.reason) for broken in loaded.broken]
    assert name == "bad"
    assert text.startswith("driver bad")
    assert reason in text
    assert "\n" not in text


@pytest.mark.parametrize("content", [b"[gpuplug]\nno equals sign\n", b"\xff\xfe"])
def test_a_damaged_distribution_is_named_and_the_drivers_of_the_others_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    folder = tmp_path / "damaged-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(content)
    sound = [driver.name for driver in load().drivers]
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load()
    assert [driver.name for driver in loaded.drivers] == sound
    ((name, reason),) = [(broken.name, broken.reason) for broken in loaded.broken]
    assert name == "damaged"
    assert reason.startswith("its entry points cannot be read: ")


@pytest.mark.parametrize("value", ["not a module", "os:nothing_of_this_name", ""])
def test_an_entry_point_that_leads_nowhere_is_a_broken_driver(value: str) -> None:
    loaded = load([importlib.metadata.EntryPoint("bad", value, "gpuplug")])
    assert loaded.drivers == ()
    assert loaded.broken[0].reason.startswith("driver bad cannot be imported: ")


def test_an_entry_point_that_leads_to_none_has_no_hook(installed: Installed) -> None:
    loaded = load([installed("bad", "nothing = None", "nothing")])
    assert loaded.broken[0].reason == "driver bad: NoneType implements no gpuplug hook"


def test_an_object_that_cannot_be_looked_at_is_a_broken_driver(installed: Installed) -> None:
    source = "def __dir__(): raise OSError('busy')\n"
    loaded = load([installed("bad", source)])
    assert loaded.broken[0].reason == "driver bad cannot be looked at: OSError: busy"


def test_of_two_drivers_of_one_name_the_first_by_value_is_used(installed: Installed) -> None:
    first, second = installed("mine", SOUND), installed("mine", SOUND.replace("a.com/gpu", "a.com/other"))
    for order in ([first, second], [second, first]):
        loaded = load(order)
        assert [d.resource_name(GPU, SETTINGS) for d in loaded.drivers] == ["a.com/gpu"]
        assert loaded.broken[0].reason == f"driver mine: {second.value} uses a name that is taken"


def test_a_broken_driver_leaves_its_name_to_a_sound_one(installed: Installed) -> None:
    loaded = load([installed("mine", ""), installed("mine", SOUND)])
    assert len(loaded.drivers) == len(loaded.broken) == 1


class DamagedDistribution(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        raise OSError(filename)

    def locate_file(self, path: Any) -> Any:
        raise OSError(path)


def test_damaged_metadata_does_not_keep_a_driver_from_loading(installed: Installed) -> None:
    entry_point = installed("mine", SOUND)
    vars(entry_point).update(dist=DamagedDistribution())
    (mine,) = load([entry_point]).drivers
    assert mine.distribution == ""


def test_the_attributes_that_all_drivers_want_are_read_once() -> None:
    loaded = from_modules(
        {
            "a": hooks(sysfs_attributes=["sriov_numvfs", "drm/card*/x"]),
            "b": hooks(sysfs_attributes=("sriov_numvfs",)),
            "c": hooks(resource_name="a.com/gpu"),
            "d": hooks(sysfs_attributes=lambda: (name for name in ["y"])),
        }
    )
    assert loaded.sysfs_attributes == {"sriov_numvfs", "drm/card*/x", "y"}
    assert [driver.name for driver in loaded.drivers] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "answer",
    [
        "sriov_numvfs",
        5,
        [5],
        ["/sys/"],
        ["/sys//x"],
        ["/sys/../etc/shadow"],
        ["/etc/shadow"],
        ["/dev/kfd"],
        [""],
        ["a/../b"],
        [".."],
        ["a\0b"],
        ["**/x"],
        ["\udcff"],
        broken_iterator,
    ],
)
def test_attributes_that_are_not_below_the_gpu_or_sys_are_refused_at_load(answer: object) -> None:
    with pytest.raises(DriverError, match=r"^driver mine: "):
        driver(sysfs_attributes=answer)


def test_attributes_may_lie_anywhere_below_sys() -> None:
    assert driver(sysfs_attributes=["/sys/class/kfd/*/x"]).sysfs_attributes == {"/sys/class/kfd/*/x"}


def test_the_companions_that_all_drivers_want_are_looked_up_once() -> None:
    loaded = from_modules(
        {
            "a": hooks(companion_nodes=["/dev/kfd"]),
            "b": hooks(companion_nodes=lambda: iter(["/dev/kfd", "/dev/foo/control"])),
            "c": hooks(resource_name="a.com/gpu"),
        }
    )
    assert loaded.companion_nodes == {"/dev/kfd", "/dev/foo/control"}


@pytest.mark.parametrize(
    "path",
    [
        *("kfd", "/dev", "/dev/", "/etc/kfd", "/dev/dri/card0", "/dev/dri", "/dev/../etc", "/dev//kfd"),
        *("/dev/./kfd", "/dev/kfd/", "/dev/nvidia*", "/dev/[a]", "/dev/\0", "/dev/\udcff", 5),
    ],
)
def test_companions_that_are_no_nodes_below_dev_are_refused_at_load(path: object) -> None:
    with pytest.raises(DriverError, match=r"^driver mine: "):
        driver(companion_nodes=[path])


def test_a_driver_that_wants_to_be_asked_last_is_a_fallback() -> None:
    def claim(gpu: object) -> str:
        del gpu
        return "a.com/gpu"

    module = SimpleNamespace(gpuplug_resource_name=hookimpl(claim, trylast=True))
    assert LoadedDriver("mine", module).fallback
    assert not LoadedDriver("mine", SimpleNamespace(gpuplug_resource_name=hookimpl(claim))).fallback
    assert not driver(sysfs_attributes=[]).fallback


def test_a_driver_may_decline_a_gpu() -> None:
    assert driver(resource_name=Declined("why")).resource_name(GPU, SETTINGS) == Declined("why")


# answers


def test_a_hook_that_is_left_out_has_its_default() -> None:
    mine = driver(sysfs_attributes=[])
    assert mine.resource_name(GPU, SETTINGS) is None
    assert mine.device_specs(GPU, SETTINGS) == (
        DeviceSpec("/dev/dri/card0", "/host/dev/dri/card0", "rw"),
        DeviceSpec("/dev/dri/renderD128", "/host/dev/dri/renderD128", "rw"),
    )
    assert mine.mounts(GPU, SETTINGS) == ()
    assert mine.envs([], SETTINGS) == {}
    assert mine.health(GPU, SETTINGS) == HEALTHY
    assert mine.health(make_gpu(missing=["card0", "card1"]), SETTINGS) == Verdict(
        healthy=False, reason="/dev/dri lacks card0, card1"
    )


def test_the_specification_of_each_hook_says_nothing_by_itself() -> None:
    assert list(hookspecs.gpuplug_sysfs_attributes()) == []
    assert list(hookspecs.gpuplug_companion_nodes()) == []
    assert hookspecs.gpuplug_resource_name(GPU, SETTINGS) is None
    assert hookspecs.gpuplug_device_specs(GPU, SETTINGS) is None
    assert hookspecs.gpuplug_mounts(GPU, SETTINGS) is None
    assert hookspecs.gpuplug_envs([], SETTINGS) is None
    assert hookspecs.gpuplug_health(GPU, SETTINGS) is None


def test_a_hook_that_answers_none_has_its_default_too() -> None:
    mine = driver(resource_name=None, device_specs=None, mounts=None, envs=None, health=None)
    assert mine.device_specs(GPU, SETTINGS) == driver(sysfs_attributes=[]).device_specs(GPU, SETTINGS)
    assert (mine.mounts(GPU, SETTINGS), mine.envs([], SETTINGS)) == ((), {})
    assert (mine.resource_name(GPU, SETTINGS), mine.health(GPU, SETTINGS)) == (None, HEALTHY)


def test_sound_answers_come_through() -> None:
    spec, mount = DeviceSpec("/dev/x", "/dev/y", "rwm"), Mount("/a", "/b", read_only=False)
    verdict = Verdict(healthy=False, reason="it is wedged")
    mine = driver(device_specs=lambda: iter([spec]), mounts=[mount], envs={"A": "ä"}, health=verdict)
    assert mine.device_specs(GPU, SETTINGS) == (spec,)
    assert mine.mounts(GPU, SETTINGS) == (mount,)
    assert mine.envs([Device(DeviceId(A), GPU)], SETTINGS) == {"A": "ä"}
    assert mine.health(GPU, SETTINGS) == verdict


def test_an_empty_list_of_nodes_is_an_answer_and_not_the_default() -> None:
    assert driver(device_specs=[]).device_specs(GPU, SETTINGS) == ()


def test_a_mapping_of_any_kind_gives_variables() -> None:
    assert driver(envs=MappingProxyType({"A": "1"})).envs([], SETTINGS) == {"A": "1"}


def ask(mine: LoadedDriver, hook: str) -> object:
    if hook == "envs":
        return mine.envs([Device(DeviceId(A), GPU)], SETTINGS)
    return getattr(mine, hook)(GPU, SETTINGS)


HOOKS = ["resource_name", "device_specs", "mounts", "envs", "health"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("two\n lines"), "ValueError: two lines"),
        (RecursionError(), "RecursionError"),
        (SystemExit(3), "SystemExit: 3"),
        (UnspeakableError(), "UnspeakableError"),
        (ValueError("\udcff"), r"ValueError: \udcff"),
    ],
)
def test_a_hook_that_raises_is_a_driver_error_in_one_line(
    hook: str, error: BaseException, words: str
) -> None:
    mine = driver(**{hook: raising(error)})
    with pytest.raises(DriverError) as caught:
        ask(mine, hook)
    assert str(caught.value) == f"driver mine: gpuplug_{hook} raised {words}"


def test_a_person_who_interrupts_is_not_taken_for_a_fault_of_the_driver() -> None:
    with pytest.raises(KeyboardInterrupt):
        driver(health=raising(KeyboardInterrupt())).health(GPU, SETTINGS)


SPEC, MOUNT = DeviceSpec("/dev/x", "/dev/x"), Mount("/x", "/x")
ANY: Any = None


@pytest.mark.parametrize(
    ("hook", "answer", "words"),
    [
        ("resource_name", 5, "gpuplug_resource_name returned int, not str"),
        ("resource_name", b"a.com/x", "gpuplug_resource_name returned bytes, not str"),
        ("device_specs", SPEC, "an answer raised TypeError"),
        ("device_specs", "/dev/x", "'/dev/x' is not a sequence of DeviceSpec"),
        ("device_specs", ["/dev/x"], "'/dev/x' is not a DeviceSpec"),
        ("device_specs", [MOUNT], "is not a DeviceSpec"),
        ("device_specs", [UnspeakableError()], "a UnspeakableError is not a DeviceSpec"),
        ("device_specs", ["x" * 10_000], "x… is not a DeviceSpec"),
        ("device_specs", broken_iterator, "an answer raised LookupError: half way"),
        ("device_specs", lambda: (sys.exit(1) for _ in "x"), "an answer raised SystemExit: 1"),
        ("device_specs", [DeviceSpec("dev/x", "/dev/x")], "'dev/x' is not an absolute path"),
        ("device_specs", [DeviceSpec("/dev/x", "")], "'' is not an absolute path"),
        ("device_specs", [DeviceSpec("/dev/x", ANY)], "None is not an absolute path"),
        ("device_specs", [DeviceSpec("/dev/\0", "/dev/x")], r"'/dev/\x00' is not an absolute path"),
        ("device_specs", [DeviceSpec("/dev/\udcff", "/dev/x")], r"'/dev/\udcff' is not an absolute path"),
        ("device_specs", [DeviceSpec("/dev/x", "/dev/../etc")], "'/dev/../etc' has a part '..'"),
        ("device_specs", [DeviceSpec("/dev", "/dev")], "'/dev' holds what is not of this GPU"),
        ("device_specs", [DeviceSpec("/dev/x", "/dev/dri/")], "'/dev/dri/' holds what is not of this GPU"),
        ("device_specs", [DeviceSpec("/dev/x", "/dev/.")], "'/dev/.' holds what is not of this GPU"),
        ("device_specs", [DeviceSpec("/dev/x", "//dev//dri")], "'//dev//dri' holds what is not of this GPU"),
        ("mounts", [Mount("/host", "/")], "'/' holds what is not of this GPU"),
        ("mounts", [Mount("/x/..", "/x")], "'/x/..' has a part '..'"),
        ("device_specs", [DeviceSpec("/dev/x", "/dev/x", "x")], "'x' is not a set of r, w and m"),  # type: ignore[arg-type]
        ("device_specs", [DeviceSpec("/dev/x", "/dev/x", [])], "[] is not a set of r, w and m"),  # type: ignore[arg-type]
        ("resource_name", Declined(5), "5 is not text"),  # type: ignore[arg-type]
        ("mounts", [SPEC], "is not a Mount"),
        ("mounts", [Mount("x", "/x")], "'x' is not an absolute path"),
        ("mounts", [Mount("/x", "/x", "yes")], "read_only is 'yes', not a bool"),  # type: ignore[arg-type]
        ("envs", [("A", "1")], "gpuplug_envs returned list, not Mapping"),
        ("envs", {"A": 1}, "environment variable 'A' is not text to text"),
        ("envs", {1: "A"}, "environment variable 1 is not text to text"),
        ("envs", {"A": "\0"}, "environment variable 'A' is not text to text"),
        ("envs", {"A": "\udcff"}, "environment variable 'A' is not text to text"),
        ("envs", {"": "A"}, "'' is not a name of an environment variable"),
        ("envs", {"A=B": "A"}, "'A=B' is not a name of an environment variable"),
        ("envs", LyingMapping(), "an answer raised RuntimeError: A"),
        ("health", True, "gpuplug_health returned bool, not Verdict"),
        ("health", Verdict("no"), "is not a bool and a text"),  # type: ignore[arg-type]
        ("health", Verdict(healthy=False, reason=ANY), "is not a bool and a text"),
        ("health", Verdict(healthy=False, reason="\udcff"), "is not a bool and a text"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_a_driver_error_that_says_what_it_is(
    hook: str, answer: object, words: str
) -> None:
    mine = driver(**{hook: answer})
    with pytest.raises(DriverError) as caught:
        ask(mine, hook)
    assert str(caught.value).startswith("driver mine: ")
    assert words in str(caught.value)
    str(caught.value).encode()
    assert len(str(caught.value)) < 250


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.just(SPEC)
    | st.just(MOUNT)
    | st.just(HEALTHY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(hook=st.sampled_from(HOOKS), answer=anything)
def test_whatever_a_hook_answers_it_is_right_or_a_driver_error(hook: str, answer: object) -> None:
    mine = driver(**{"resource_name": "a.com/gpu", hook: answer})
    judgement = judge(GPU, [mine], SETTINGS)
    assert (judgement.offer is None) == bool(judgement.reason)
    try:
        got = ask(mine, hook)
    except DriverError:
        return
    if hook in {"device_specs", "mounts"}:
        assert isinstance(got, tuple)
    if hook == "envs":
        assert isinstance(got, dict)


def test_two_modules_that_claim_one_gpu_are_told_apart_by_name() -> None:
    loaded = from_modules({"b": hooks(resource_name="b.com/gpu"), "a": hooks(resource_name="a.com/gpu")})
    judgement = judge(GPU, loaded.drivers, SETTINGS)
    assert judgement.resource == "a.com/gpu"
    assert judgement.problems == (f"drivers a and b both claim {A}: a has it",)


def test_drivers_never_hear_each_others_hooks() -> None:
    loaded = from_modules(
        {"a": hooks(resource_name=raising(KeyError("x"))), "b": hooks(resource_name="b.com/gpu")}
    )
    judgement = judge(GPU, loaded.drivers, SETTINGS)
    assert judgement.resource == "b.com/gpu"
    assert judgement.problems == ("driver a: gpuplug_resource_name raised KeyError: 'x'",)


def test_a_module_at_hand_that_is_no_driver_is_an_error_at_once() -> None:
    with pytest.raises(DriverError, match="driver x: SimpleNamespace implements no gpuplug hook"):
        from_modules({"x": SimpleNamespace()})


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (1, "driver mine is too old: it is for version 1 of the hooks, and this gpuplug has none before 2"),
        (4, "driver mine is too new: it needs version 4 of the hooks, and this gpuplug has version 3"),
    ],
)
def test_a_driver_for_other_hooks_is_told_what_to_update(version: int, words: str) -> None:
    with pytest.raises(DriverError) as caught:
        check_version("mine", version, oldest=2, newest=3)
    assert str(caught.value).startswith(words)
    assert "update" in str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_a_driver_for_any_version_between_is_taken(version: int) -> None:
    check_version("mine", version, oldest=2, newest=3)
