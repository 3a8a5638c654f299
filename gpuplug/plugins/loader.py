"""Load driver packages from their entry points, each behind a typed façade of its own.

Every Driver has a pluggy manager to itself: a hook is never called across drivers, and a
module that cannot be imported, or that misspells a hook, is a named problem and nothing more.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

import pluggy

from gpuplug.errors import DriverError
from gpuplug.model import HEALTHY, Declined, DeviceSpec, Mount, Verdict
from gpuplug.plugins import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from gpuplug.model import Device, Gpu
    from gpuplug.settings import Settings

T = TypeVar("T")

_FAILURES: Final = (Exception, SystemExit)
"""What a driver may raise; code that is imported or called may also call ``exit()``."""
_PERMISSIONS: Final = ("r", "w", "m", "rw", "rm", "wm", "rwm")
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class BrokenDriver:
    """An entry point that could not be loaded, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of loading: the Drivers that work, and those that do not."""

    drivers: tuple[LoadedDriver, ...] = ()
    broken: tuple[BrokenDriver, ...] = ()

    @property
    def sysfs_attributes(self) -> frozenset[str]:
        """The sysfs attributes that any of the Drivers wants."""
        return frozenset().union(*(driver.sysfs_attributes for driver in self.drivers))

    @property
    def companion_nodes(self) -> frozenset[str]:
        """The companion nodes that any of the Drivers wants."""
        return frozenset().union(*(driver.companion_nodes for driver in self.drivers))


class LoadedDriver:
    """A typed façade over one driver module: wrong answers and exceptions become ``DriverError``."""

    __slots__ = ("_hooks", "companion_nodes", "distribution", "fallback", "name", "sysfs_attributes")

    def __init__(self, name: str, module: object, distribution: str = "") -> None:
        """Register the module and ask it for its attributes.

        :raises DriverError: if it misspells a hook, or has no hook at all, or answers wrongly.
        """
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(module, name=name)
            manager.check_pending()
            callers: Sequence[pluggy.HookCaller] | None = manager.get_hookcallers(module)
        except pluggy.PluginValidationError as error:
            raise DriverError(f"driver {name}: {_sentence(error)}") from error
        except _FAILURES as error:  # pluggy asks it for its attributes, which may be computed
            raise DriverError(f"driver {name} cannot be looked at: {_sentence(error)}") from error
        if not callers:
            raise DriverError(f"driver {name}: {_called(module)} implements no gpuplug hook")
        for caller in callers:
            if any(inspect.iscoroutinefunction(hook.function) for hook in caller.get_hookimpls()):
                raise DriverError(f"driver {name}: {caller.name} is a coroutine; hooks are plain functions")
        self.name: Final = name
        self.distribution: Final = distribution
        """``name version`` of the distribution that it came in; empty where it has none."""
        self.fallback: Final = any(
            hook.trylast for hook in manager.hook.gpuplug_resource_name.get_hookimpls()
        )
        """Whether it is asked only about GPUs that no other driver claims."""
        self._hooks: Final = manager.hook
        self.sysfs_attributes: Final = self._declared("gpuplug_sysfs_attributes", _attribute)
        self.companion_nodes: Final = self._declared("gpuplug_companion_nodes", _companion)

    def resource_name(self, gpu: Gpu, settings: Settings) -> str | Declined | None:
        """Ask whether the driver claims the GPU, and under which resource name."""
        answer = self._call("gpuplug_resource_name", gpu=gpu, settings=settings)
        if answer is None or isinstance(answer, str):
            return answer
        if isinstance(answer, Declined):
            if not _is_text(answer.reason):
                raise DriverError(f"driver {self.name}: {_shown(answer.reason)} is not text")
            return answer
        raise DriverError(
            f"driver {self.name}: gpuplug_resource_name returned {type(answer).__name__}, not str"
        )

    def device_specs(self, gpu: Gpu, settings: Settings) -> tuple[DeviceSpec, ...]:
        """Ask for the nodes; without an answer every DRM node of the GPU, ``rw``."""
        specs = self._ask_for_each("gpuplug_device_specs", DeviceSpec, gpu=gpu, settings=settings)
        if specs is None:
            return tuple(DeviceSpec(node.path, node.host_path) for node in gpu.nodes)
        for spec in specs:
            if spec.permissions not in _PERMISSIONS:
                raise DriverError(
                    f"driver {self.name}: {_shown(spec.permissions)} is not a set of r, w and m"
                )
        self._check_paths([(spec.container_path, spec.host_path) for spec in specs])
        return specs

    def mounts(self, gpu: Gpu, settings: Settings) -> tuple[Mount, ...]:
        """Ask for mounts; without an answer none."""
        mounts = self._ask_for_each("gpuplug_mounts", Mount, gpu=gpu, settings=settings) or ()
        self._check_paths([(mount.container_path, mount.host_path) for mount in mounts])
        for mount in mounts:
            if not _is_bool(mount.read_only):
                raise DriverError(f"driver {self.name}: read_only is {_shown(mount.read_only)}, not a bool")
        return mounts

    def envs(self, devices: Sequence[Device], settings: Settings) -> Mapping[str, str]:
        """Ask for environment variables; without an answer none."""
        answer = self._call("gpuplug_envs", devices=tuple(devices), settings=settings)
        if answer is None:
            return {}
        if not isinstance(answer, Mapping):
            raise DriverError(
                f"driver {self.name}: gpuplug_envs returned {type(answer).__name__}, not Mapping"
            )
        try:
            envs: dict[Any, Any] = dict(answer)
        except _FAILURES as error:
            raise DriverError(f"driver {self.name}: an answer raised {_sentence(error)}") from error
        for key, value in envs.items():
            if not _is_text(key) or not _is_text(value):
                raise DriverError(
                    f"driver {self.name}: environment variable {_shown(key)} is not text to text"
                )
            if not key or "=" in key:
                raise DriverError(
                    f"driver {self.name}: {_shown(key)} is not a name of an environment variable"
                )
        return envs

    def health(self, gpu: Gpu, settings: Settings) -> Verdict:
        """Ask for the health; without an answer healthy while no node is missing."""
        answer = self._ask("gpuplug_health", Verdict, gpu=gpu, settings=settings)
        if answer is not None:
            if not _is_bool(answer.healthy) or not _is_text(answer.reason):
                raise DriverError(f"driver {self.name}: {_shown(answer)} is not a bool and a text")
            return answer
        if gpu.missing:
            return Verdict(healthy=False, reason=f"/dev/dri lacks {', '.join(gpu.missing)}")
        return HEALTHY

    def _declared(self, hook: str, check: Callable[[str, str], str]) -> frozenset[str]:
        """Ask once for paths; pluggy answers with a list of what each module said."""
        said = self._ask(hook, list) or []
        return frozenset(check(self.name, path) for some in said for path in _each(self.name, some, str))

    def _ask(self, hook: str, kind: type[T], **arguments: object) -> T | None:
        answer = self._call(hook, **arguments)
        if answer is None or isinstance(answer, kind):
            return answer
        raise DriverError(f"driver {self.name}: {hook} returned {type(answer).__name__}, not {kind.__name__}")

    def _ask_for_each(self, hook: str, kind: type[T], **arguments: object) -> tuple[T, ...] | None:
        answer = self._call(hook, **arguments)
        return None if answer is None else _each(self.name, answer, kind)

    def _call(self, hook: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever the driver answers
        try:
            return getattr(self._hooks, hook)(**arguments)
        except _FAILURES as error:
            raise DriverError(f"driver {self.name}: {hook} raised {_sentence(error)}") from error

    def _check_paths(self, pairs: Sequence[tuple[object, object]]) -> None:
        for pair in pairs:
            for path in pair:
                if not _is_text(path) or not path.startswith("/"):
                    raise DriverError(f"driver {self.name}: {_shown(path)} is not an absolute path")


def load(entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Loaded:
    """Load every Driver that is installed; one that fails costs only itself.

    :param entry_points: instead of those of group ``gpuplug`` in the environment.
    """
    drivers: dict[str, LoadedDriver] = {}
    broken: list[BrokenDriver] = []
    if entry_points is None:
        entry_points = _installed(broken)
    for entry_point in sorted(entry_points, key=lambda e: (e.name, e.value)):
        if entry_point.name in drivers:
            broken.append(BrokenDriver(entry_point.name, f"{entry_point.value} uses a name that is taken"))
            continue
        try:
            drivers[entry_point.name] = _load(entry_point.name, entry_point.load, _origin(entry_point))
        except DriverError as error:
            broken.append(BrokenDriver(entry_point.name, str(error)))
    return Loaded(tuple(drivers.values()), tuple(broken))


def _installed(broken: list[BrokenDriver]) -> Iterable[importlib.metadata.EntryPoint]:
    """Find the entry points of the environment, even if one distribution in it is damaged."""
    try:
        return importlib.metadata.entry_points(group=hookspecs.PROJECT)
    except _FAILURES:
        found: dict[str, Iterable[importlib.metadata.EntryPoint]] = {}
    for distribution in importlib.metadata.distributions():
        name = _said(lambda d: d.name, distribution) or "a distribution without a name"
        try:
            found.setdefault(name, distribution.entry_points.select(group=hookspecs.PROJECT))
        except _FAILURES as error:
            broken.append(BrokenDriver(name, f"its entry points cannot be read: {_sentence(error)}"))
    return [entry_point for some in found.values() for entry_point in some]


def from_modules(modules: Mapping[str, ModuleType | object]) -> Loaded:
    """Load Drivers from modules that are at hand, by name: for tests and for the demo."""
    return Loaded(tuple(LoadedDriver(name, module) for name, module in sorted(modules.items())))


def _load(name: str, find: Callable[[], object], origin: str) -> LoadedDriver:
    try:
        module = find()
    except _FAILURES as error:
        raise DriverError(f"driver {name} cannot be imported: {_sentence(error)}") from error
    return LoadedDriver(name, module, origin)


def _origin(entry_point: importlib.metadata.EntryPoint) -> str:
    distribution = entry_point.dist
    if distribution is None:
        return ""
    try:
        return f"{distribution.name} {distribution.version}"
    except Exception:  # noqa: BLE001 - damaged metadata; it is shown to people, and nothing depends on it
        return ""


def _called(module: object) -> str:
    return str(getattr(module, "__name__", type(module).__name__))


def _sentence(error: BaseException) -> str:
    text = _said(str, error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shown(value: object) -> str:
    text = _said(repr, value) or f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _said(ask: Callable[[Any], str], value: object) -> str:
    """Put a driver's object into words on one line, or into none if even that fails."""
    try:
        return " ".join(ask(value).encode(errors="backslashreplace").decode().split())
    except _FAILURES:
        return ""


def _is_bool(value: object) -> bool:
    """Tell whether it is what its annotation says: no driver is type-checked here."""
    return isinstance(value, bool)


def _is_text(value: object) -> TypeGuard[str]:
    """Tell whether the kubelet and the system take it as text: UTF-8 without a NUL."""
    return isinstance(value, str) and "\0" not in value and value.encode(errors="ignore").decode() == value


def _each(name: str, answer: Any, kind: type[T]) -> tuple[T, ...]:  # noqa: ANN401 - a driver's answer
    if isinstance(answer, str):  # a text is iterable, and never meant to be
        raise DriverError(f"driver {name}: {_shown(answer)} is not a sequence of {kind.__name__}")
    try:
        items = tuple(answer)
    except _FAILURES as error:
        raise DriverError(f"driver {name}: an answer raised {_sentence(error)}") from error
    for item in items:
        if not isinstance(item, kind):
            raise DriverError(f"driver {name}: {_shown(item)} is not a {kind.__name__}")
    return items


def _attribute(name: str, path: str) -> str:
    """Check a sysfs attribute's path or glob: below the bus device, or below /sys."""
    below = path.removeprefix("/sys/")
    if not below or below.startswith("/") or not _is_text(path) or ".." in path.split("/") or "**" in path:
        raise DriverError(
            f"driver {name}: {_shown(path)} is not a path or glob below the GPU's bus device, or below /sys"
        )
    return path


def _companion(name: str, path: str) -> str:
    """Check a companion node's path: below /dev, outside /dev/dri, and no glob."""
    parts = path.split("/")
    normal = parts[:2] == ["", "dev"] and len(parts) > 2 and not {"", ".", ".."} & set(parts[2:])  # noqa: PLR2004
    if not normal or parts[2] == "dri" or not _is_text(path) or set("*?[") & set(path):
        raise DriverError(f"driver {name}: {_shown(path)} is not a node's path in /dev, outside /dev/dri")
    return path
