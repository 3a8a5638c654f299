"""What the operator chose: one frozen ``Settings``, made from options and the environment.

Each option has one row in ``OPTIONS``; the command line, the environment variables,
the help text and the checks all come from there. Only texts are looked at here:
whether a folder exists is found out by the command that needs it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gpuplug.errors import SettingError
from gpuplug.options import written
from gpuplug.pciids import NO_IDS, PciIds, read_pci_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_GPUS: Final = 128
"""GPUs on one node that a list must have room for: twice the 64 card numbers of older kernels."""

MAX_SHARES: Final = 764
"""The largest ``--shared-dev-num`` with which 128 GPUs stay under the 4 MiB of one gRPC message.

Counted by ``core.sizes`` for PCI addresses of 16 characters, the longest that there can be
(``ffffffff:e1:00.0``), any NUMA node and any health.
"""

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})

MAX_SOCKET_PATH: Final = 107
"""Bytes of a unix socket's path: ``sun_path`` of unix(7) has 108, one of them for the final NUL."""

LOG_LEVELS: Final = ("trace", "debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
POLICIES: Final = ("none", "balanced", "packed")
BY_PATH: Final = ("single", "none", "all")
MONITORING: Final = ("split", "single")

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_LABEL: Final = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST_PORT: Final = re.compile(
    r"(\[(?P<ipv6>[0-9a-fA-F:.]+(%[\w.-]{1,15})?)\]|(?P<ipv4>[0-9.]+)"
    rf"|{_LABEL}(\.{_LABEL})*)?:(?P<port>[0-9]{{1,5}})",
    re.ASCII,
)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def _shares(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError(f"is not a whole number from 1 to {MAX_SHARES}")
    number = int(text)
    if not 1 <= number <= MAX_SHARES:
        raise ValueError(
            f"is not from 1 to {MAX_SHARES}:"
            f" the kubelet takes lists of up to 4 MiB, and {MAX_GPUS} GPUs must fit"
        )
    return number


def _seconds(text: str) -> float:
    if not _SECONDS.fullmatch(text) or not 1 <= (number := float(text)) <= 86_400:  # noqa: PLR2004 - a day
        raise ValueError("is not a number of seconds from 1 to 86400")
    return number


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("is not an absolute path")
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of another encoding; the kubelet takes UTF-8 alone
        raise ValueError("is not UTF-8") from None
    return text.rstrip("/") or "/"


def _socket(text: str) -> str:
    path = _absolute(text)
    if len(path.encode()) > MAX_SOCKET_PATH:
        raise ValueError(
            f"is longer than {MAX_SOCKET_PATH} bytes, which the path of a unix socket has at most"
        )
    return path


def _prefix(text: str) -> str:
    return _absolute(text).rstrip("/") if text else ""


def _node_root(text: str) -> str:
    return _absolute(text) if text else ""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(","))) if text else ()
    if "" in names or any(name != name.strip() or not name.isprintable() for name in names):
        raise ValueError("is not a name, or several with a comma between them")
    return names


def split_address(text: str) -> tuple[str, int]:
    """Split a ``HOST:PORT`` that was taken; an empty host means every address of the machine."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(text: str) -> str:
    """Take ``HOST:PORT``: a name, an IPv4 address, an IPv6 address in brackets, or nothing as HOST."""
    if not text:
        return ""
    found = _HOST_PORT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:  # noqa: PLR2004 - the largest port
        raise ValueError("is not HOST:PORT, such as :9380, 127.0.0.1:9380 or [::1]:9380")
    if found["ipv6"] is not None or found["ipv4"] is not None:
        try:
            ipaddress.ip_address(found["ipv6"] or found["ipv4"])
        except ValueError:
            raise ValueError(
                f"is not HOST:PORT: {found['ipv6'] or found['ipv4']!r} is no IP address"
            ) from None
    return text


class _Choice:
    """Take one of several words, in any case."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        if text.lower() not in self.choices:
            raise ValueError(f"is not one of {', '.join(self.choices)}")
        return text.lower()


def _switch(text: str) -> bool:
    """Read a boolean as Go's flags do (``strconv.ParseBool``)."""
    if text.lower() not in _BOOLEANS:
        raise ValueError("is not true or false")
    return _BOOLEANS[text.lower()]


_BOOLEANS: Final = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run, all valid."""

    shared_dev_num: int = 1
    """Devices that stand for one GPU; more than 1 lets containers share it."""
    allocation_policy: str = "none"
    """Which GPU the kubelet is advised to take a share of; one of ``POLICIES``."""
    allow_ids: PciIds = NO_IDS
    """Leave out every GPU with another id; empty allows all."""
    deny_ids: PciIds = NO_IDS
    """Leave out the GPUs with these ids."""
    enable_monitoring: bool = False
    """Whether there is a resource that gives one container all the GPUs of another resource."""
    monitoring_mode: str = "split"
    """``split``: ``<resource>_monitoring`` for each resource; ``single``: ``<domain>/monitoring``."""
    bypath: str = "single"
    """What containers get of /dev/dri/by-path: the links of their own GPUs, nothing, or the folder."""
    prefix: str = ""
    """A folder that stands for ``/`` when /sys and /dev are read; empty for the machine itself."""
    node_root: str = ""
    """What the kubelet knows the prefix as, ``/`` where the node is mounted there; empty: as the prefix."""
    kubelet_dir: str = "/var/lib/kubelet/device-plugins"
    """The folder with ``kubelet.sock``; the kubelet's own default, which ``--root-dir`` does not move."""
    resync: float = 60.0
    """Seconds between two looks at the machine when no event asks for one."""
    listen: str = ""
    """``HOST:PORT`` of /metrics and its like; empty for no network listener at all."""
    log_level: str = "info"
    log_format: str = "text"
    driver: tuple[str, ...] = ()
    """The drivers to load, by name; empty for all that are installed."""
    no_driver: tuple[str, ...] = ()
    """The drivers not to load."""
    options: Mapping[str, Any] = field(default_factory=lambda: NO_OPTIONS, hash=False)
    """For a driver that is asked: the values of its own options, by name; empty for anybody else."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Where the kubelet tells who holds what; unlike ``kubelet_dir`` it moves with ``--root-dir``."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command line, and its environment variable."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    """Whether it may be given several times, as it may be with commas."""
    bare: str | None = None
    """What it means without a value; ``None`` if it needs one."""
    serves: bool = True
    """Whether it is one of ``gpuplug serve``."""

    @property
    def field(self) -> str:
        """The name of the field of ``Settings``."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it can be; empty where it can be anything else."""
        return self.parse.choices if isinstance(self.parse, _Choice) else ()

    @property
    def variable(self) -> str:
        """The environment variable that is read where the option is not given."""
        return f"GPUPLUG_{self.field.upper()}"


OPTIONS: Final = (
    Option("--shared-dev-num", "N", _shares, "containers that may share one GPU (no isolation between them)"),
    Option(
        "--allocation-policy",
        "POLICY",
        _Choice(*POLICIES),
        "which GPU to take a share of: none (near the container's others, then the emptiest),"
        " balanced (the emptiest), packed (the fullest)",
    ),
    Option("--allow-ids", "IDS", read_pci_ids, "only GPUs with these PCI device ids, such as 0x56a0,0x56a1"),
    Option("--deny-ids", "IDS", read_pci_ids, "no GPU with one of these PCI device ids"),
    Option(
        "--enable-monitoring",
        "YES",
        _switch,
        "also serve a resource that gives one container all GPUs: <resource>_monitoring",
        bare="true",
    ),
    Option(
        "--monitoring-mode",
        "MODE",
        _Choice(*MONITORING),
        "split (<resource>_monitoring for each resource) or single (<domain>/monitoring for all of them)",
    ),
    Option(
        "--bypath",
        "MODE",
        _Choice(*BY_PATH),
        "what containers get of /dev/dri/by-path: single (the links of their GPUs), none, all (the folder)",
    ),
    Option("--prefix", "DIR", _prefix, "read DIR/sys and DIR/dev instead of /sys and /dev"),
    Option("--node-root", "DIR", _node_root, "the kubelet's own name for the folder of --prefix"),
    Option("--kubelet-dir", "DIR", _absolute, "the kubelet's device-plugins folder, with kubelet.sock"),
    Option("--resync", "SECONDS", _seconds, "time between two looks that no event asked for"),
    Option("--listen", "HOST:PORT", _address, "serve /metrics, /readyz, /healthz and /report over HTTP"),
    Option("--log-level", "LEVEL", _Choice(*LOG_LEVELS), f"one of {', '.join(LOG_LEVELS)}"),
    Option("--log-format", "FORMAT", _Choice(*LOG_FORMATS), f"one of {', '.join(LOG_FORMATS)}"),
    Option("--driver", "NAME", _names, "load only these drivers (see `gpuplug drivers`)", many=True),
    Option("--no-driver", "NAME", _names, "do not load these drivers", many=True),
    Option("--pod-resources-socket", "PATH", _socket, "where the kubelet tells who holds what", serves=False),
)
_DEFAULTS: Final[Mapping[str, Any]] = {each.name: each.default for each in fields(Settings)}


def default(option: Option) -> str:
    """Write what holds when neither the option nor its variable is given."""
    return written(_DEFAULTS[option.field])


def resolve(given: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """Make Settings of the options given (by field name) and the environment.

    An option wins over its variable; an empty variable counts as not set.

    :raises SettingError: naming the option or the variable, and the value.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.field in given:
            source, text = option.flag, given[option.field]
        elif environ.get(option.variable):
            source, text = option.variable, environ[option.variable]
        else:
            continue
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            raise SettingError(f"{source}: {text!r} {error}") from None
    settings = Settings(**values)
    if settings.allow_ids and settings.deny_ids:
        named = origins(given, environ)
        raise SettingError(
            f"{named['allow_ids']} and {named['deny_ids']} exclude each other: give one of them"
        )
    return settings


def origins(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Say where each field that the operator set comes from: the option's or the variable's name."""
    return {
        option.field: option.flag if option.field in given else option.variable
        for option in OPTIONS
        if option.field in given or environ.get(option.variable)
    }


def spelt(settings: Settings) -> str:
    """Write as options what differs from the defaults, wherever it comes from."""
    texts = {option: written(getattr(settings, option.field)) for option in OPTIONS if option.serves}
    return " ".join(f"{option.flag}={text}" for option, text in texts.items() if text != default(option))
