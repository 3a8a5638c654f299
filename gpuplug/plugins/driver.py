"""A typed façade over one driver package: whatever it does wrong becomes a ``DriverError``.

Every Driver has a pluggy manager to itself: a hook is never called across drivers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

import pluggy

from gpuplug.errors import DriverError
from gpuplug.model import HEALTHY, Declined, DeviceSpec, Mount, Verdict
from gpuplug.options import DriverOption, fault, parse
from gpuplug.plugins import hookspecs
from gpuplug.plugins.answers import (
    VERSION_NAME,
    attribute,
    called,
    check_marks,
    check_path,
    check_version,
    companion,
    each,
    is_bool,
    is_text,
)
from gpuplug.plugins.attempt import asked
from gpuplug.plugins.words import FAILURES, is_ours, said, sentence, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuplug.model import Device, Gpu
    from gpuplug.settings import Settings

T = TypeVar("T")
P = ParamSpec("P")

_PERMISSIONS: Final = ("r", "w", "m", "rw", "rm", "wm", "rwm")


def _hook(
    name: str,
) -> Callable[[Callable[Concatenate[LoadedDriver, P], T]], Callable[Concatenate[LoadedDriver, P], T]]:
    """Mark a method that asks a hook: what its answer does when it is looked at counts as the hook's, too."""

    def mark(method: Callable[Concatenate[LoadedDriver, P], T]) -> Callable[Concatenate[LoadedDriver, P], T]:
        @wraps(method)
        def ask(self: LoadedDriver, *arguments: P.args, **named: P.kwargs) -> T:
            with self._asked(name):
                return method(self, *arguments, **named)

        return cast("Callable[Concatenate[LoadedDriver, P], T]", ask)

    return mark


class LoadedDriver:
    """A typed façade over one driver module: wrong answers and exceptions become ``DriverError``."""

    __slots__ = (
        "_chosen",
        "_hooks",
        "_notes",
        "_passed_on",
        "companion_nodes",
        "distribution",
        "fallback",
        "gives_envs",
        "hooks",
        "name",
        "options",
        "stuck",
        "sysfs_attributes",
    )

    def __init__(self, name: str, module: object, distribution: str = "") -> None:
        """Register the module and ask it for its attributes.

        :raises DriverError: if it misspells a hook, or has no hook at all, or answers wrongly.
        """
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        try:
            check_version(name, getattr(module, VERSION_NAME, hookspecs.UNSTATED))
            check_marks(name, module)
            manager.register(module, name=name)
            manager.check_pending()
            callers: Sequence[pluggy.HookCaller] | None = manager.get_hookcallers(module)
        except DriverError:
            raise
        except pluggy.PluginValidationError as error:
            raise DriverError(f"driver {name}: {said(str, error)}") from error
        except FAILURES as error:  # pluggy asks it for its attributes, which may be computed
            raise DriverError(f"driver {name} cannot be looked at: {sentence(error)}") from error
        if not callers:
            raise DriverError(f"driver {name}: {called(module)} implements no gpuplug hook")
        if not manager.hook.gpuplug_resource_name.get_hookimpls():
            raise DriverError(f"driver {name}: it has no gpuplug_resource_name, so it can claim no GPU")
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
        self._notes: dict[str, str] = {}
        self.stuck = ""
        """Why it is not asked any more, once one of its hooks did not return; empty until then."""
        self.sysfs_attributes: Final = self._declared("gpuplug_sysfs_attributes", attribute)
        self.companion_nodes: Final = self._declared("gpuplug_companion_nodes", companion)
        self.options: Final = self._declared_options()
        """The options that it declares."""
        self.gives_envs: Final = bool(manager.hook.gpuplug_envs.get_hookimpls())
        """Whether it has anything to say of environment variables."""
        self.hooks: Final = tuple(caller.name for caller in callers)
        """The names of the hooks that it implements."""
        self._chosen: Mapping[str, Any] = {}
        self._passed_on: tuple[Settings, Settings] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of it beside its answers: that it prints, say."""
        return tuple(self._notes.values())

    def forget_notes(self) -> None:
        """Begin to take notes anew: those until now have been told of."""
        self._notes.clear()

    def _give_up(self, what: str) -> None:
        self.stuck = f"driver {self.name}: {what}, and it is not asked any more"

    @contextmanager
    def _asked(self, hook: str) -> Iterator[None]:
        """Have it asked, for as long as it returns, and note what it prints.

        :raises DriverError: if it did not return from a call before this.
        """
        if self.stuck:
            raise DriverError(self.stuck)
        with asked(self._give_up, hook) as heard:
            before = len(heard.text)
            try:
                yield
            except Exception:
                raise
            except BaseException as error:
                if is_ours(error):
                    raise
                raise DriverError(f"driver {self.name}: {hook} raised {sentence(error)}") from error
            finally:
                text = heard.text[before:]
                if text.strip():
                    self._notes.setdefault(hook, f"driver {self.name}: {hook} printed {shown(text)}")

    def read(self, option: DriverOption, text: str) -> object:
        """Read the value of one of its options.

        :raises ValueError: if the text is refused; what it says follows the text.
        :raises DriverError: if the function that reads it fails otherwise.
        """
        try:
            with self._asked(f"option {option.name}"):
                return parse(option, text)
        except DriverError:
            raise
        except ValueError as error:
            raise ValueError(sentence(error).partition(": ")[2] or "is refused") from None
        except FAILURES as error:
            raise DriverError(f"driver {self.name}: option {option.name} raised {sentence(error)}") from error

    def choose(self, values: Mapping[str, object]) -> None:
        """Take what the operator chose for its options, by name; the others keep their defaults."""
        self._chosen = dict(values)
        self._passed_on = None

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The value of each of its options."""
        return {option.name: self._chosen.get(option.name, option.default) for option in self.options}

    def _settings(self, settings: Settings) -> Settings:
        """Add the values of the driver's own options; mostly they are asked for with the same settings."""
        if not self.options:
            return settings
        if self._passed_on is None or self._passed_on[0] is not settings:
            self._passed_on = settings, replace(settings, options=MappingProxyType(dict(self.chosen)))
        return self._passed_on[1]

    @_hook("gpuplug_resource_name")
    def resource_name(self, gpu: Gpu, settings: Settings) -> str | Declined | None:
        """Ask whether the driver claims the GPU, and under which resource name."""
        answer = self._call("gpuplug_resource_name", gpu=gpu, settings=self._settings(settings))
        if answer is None or isinstance(answer, str):
            return answer
        if isinstance(answer, Declined):
            if not is_text(answer.reason):
                raise DriverError(f"driver {self.name}: {shown(answer.reason)} is not text")
            return answer
        raise DriverError(
            f"driver {self.name}: gpuplug_resource_name returned {type(answer).__name__}, not str"
        )

    @_hook("gpuplug_device_specs")
    def device_specs(self, gpu: Gpu, settings: Settings) -> tuple[DeviceSpec, ...]:
        """Ask for the nodes; without an answer every DRM node of the GPU, ``rw``."""
        specs = self._ask_for_each(
            "gpuplug_device_specs", DeviceSpec, gpu=gpu, settings=self._settings(settings)
        )
        if specs is None:
            return tuple(DeviceSpec(node.path, node.host_path) for node in gpu.nodes)
        for spec in specs:
            if spec.permissions not in _PERMISSIONS:
                raise DriverError(f"driver {self.name}: {shown(spec.permissions)} is not a set of r, w and m")
            check_path(self.name, spec.container_path)
            check_path(self.name, spec.host_path)
        return specs

    @_hook("gpuplug_mounts")
    def mounts(self, gpu: Gpu, settings: Settings) -> tuple[Mount, ...]:
        """Ask for mounts; without an answer none."""
        mounts = self._ask_for_each("gpuplug_mounts", Mount, gpu=gpu, settings=self._settings(settings)) or ()
        for mount in mounts:
            check_path(self.name, mount.container_path)
            check_path(self.name, mount.host_path)
            if not is_bool(mount.read_only):
                raise DriverError(f"driver {self.name}: read_only is {shown(mount.read_only)}, not a bool")
        return mounts

    @_hook("gpuplug_envs")
    def envs(self, devices: Sequence[Device], settings: Settings) -> Mapping[str, str]:
        """Ask for environment variables; without an answer none."""
        answer = self._call("gpuplug_envs", devices=tuple(devices), settings=self._settings(settings))
        if answer is None:
            return {}
        if not isinstance(answer, Mapping):
            raise DriverError(
                f"driver {self.name}: gpuplug_envs returned {type(answer).__name__}, not Mapping"
            )
        try:
            envs: dict[Any, Any] = dict(answer)
        except FAILURES as error:
            raise DriverError(f"driver {self.name}: an answer raised {sentence(error)}") from error
        for key, value in envs.items():
            if not is_text(key) or not is_text(value):
                raise DriverError(
                    f"driver {self.name}: environment variable {shown(key)} is not text to text"
                )
            if not key or "=" in key:
                raise DriverError(
                    f"driver {self.name}: {shown(key)} is not a name of an environment variable"
                )
        return envs

    @_hook("gpuplug_health")
    def health(self, gpu: Gpu, settings: Settings) -> Verdict:
        """Ask for the health; without an answer healthy while no node is missing."""
        answer = self._ask("gpuplug_health", Verdict, gpu=gpu, settings=self._settings(settings))
        if answer is not None:
            if not is_bool(answer.healthy) or not is_text(answer.reason):
                raise DriverError(f"driver {self.name}: {shown(answer)} is not a bool and a text")
            return answer
        if gpu.missing:
            return Verdict(healthy=False, reason=f"/dev/dri lacks {', '.join(gpu.missing)}")
        return HEALTHY

    def _declared(self, hook: str, check: Callable[[str, str], str]) -> frozenset[str]:
        """Ask once for paths; pluggy answers with a list of what each module said."""
        with self._asked(hook):
            declared = self._ask(hook, list) or []
            return frozenset(
                check(self.name, path) for some in declared for path in each(self.name, some, str)
            )

    def _declared_options(self) -> tuple[DriverOption, ...]:
        with self._asked("gpuplug_options"):
            declared = self._ask("gpuplug_options", list) or []
            options = tuple(option for some in declared for option in each(self.name, some, DriverOption))
        names: set[str] = set()
        for option in options:
            try:
                wrong = fault(option)
            except FAILURES as error:
                wrong = sentence(error)
            if not wrong and option.name in names:
                wrong = "its name is used twice"
            if wrong:
                raise DriverError(f"driver {self.name}: option {shown(option.name)}: {wrong}")
            names.add(option.name)
        return options

    def _ask(self, hook: str, kind: type[T], **arguments: object) -> T | None:
        answer = self._call(hook, **arguments)
        if answer is None or isinstance(answer, kind):
            return answer
        raise DriverError(f"driver {self.name}: {hook} returned {type(answer).__name__}, not {kind.__name__}")

    def _ask_for_each(self, hook: str, kind: type[T], **arguments: object) -> tuple[T, ...] | None:
        answer = self._call(hook, **arguments)
        return None if answer is None else each(self.name, answer, kind)

    def _call(self, hook: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever the driver answers
        try:
            return getattr(self._hooks, hook)(**arguments)
        except FAILURES as error:
            raise DriverError(f"driver {self.name}: {hook} raised {sentence(error)}") from error
