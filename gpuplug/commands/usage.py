"""What there is to type: each command with its options, examples and exit codes, and the parser made of them.

A new command is a module of its name in ``gpuplug.commands`` with a ``run``, and an entry in ``COMMANDS``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuplug.commands.intel import IGNORED, VERBOSITY
from gpuplug.errors import SettingError
from gpuplug.settings import OPTIONS, default

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

INSPECTED: Final = (
    "--shared-dev-num",
    "--allow-ids",
    "--deny-ids",
    "--enable-monitoring",
    "--monitoring-mode",
    "--prefix",
    "--driver",
    "--no-driver",
)
"""The options of ``serve`` that decide what is advertised, and so what ``inspect`` shows."""
SHELLS: Final = ("bash", "zsh", "fish")
_NARROWEST: Final = 30
"""Columns below which a text is not broken any further."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as its ``--help`` tells of it."""

    summary: str
    """One line, for the list of commands."""
    add_options: Callable[[argparse.ArgumentParser], None]
    examples: tuple[tuple[str, str], ...]
    """What to type, and what it does. Each can be typed as it stands."""
    exits: tuple[tuple[int, str], ...]
    """What it ends with, beside 2 for a bad option."""
    more: str = ""
    """What else a person should know, in whole sentences."""
    asks_drivers: bool = False
    """Whether it takes the options of the drivers that are installed."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose help has examples and exit codes."""

    command: Command | None = None
    has_drivers = False

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise SettingError(message)

    def format_help(self) -> str:
        """Lay the help out for the terminal that there is."""
        if self.command is not None:
            width = shutil.get_terminal_size().columns - 2
            summary = self.command.summary
            self.description = _wrapped(
                f"{summary[0].upper()}{summary[1:]}. {self.command.more}".strip(), width, ""
            )
            self.epilog = _epilog(self.command, width)
            if self.command.asks_drivers and not self.has_drivers:
                self.has_drivers = True
                add_drivers(self)
        return super().format_help()


def parser() -> Parser:
    """Make the parser of the whole command line; ``command`` of its answer is the command's name."""
    version = importlib.metadata.version("gpuplug")
    whole = Parser(
        prog="gpuplug",
        allow_abbrev=False,
        description="Every GPU that the Linux kernel has bound, as a schedulable Kubernetes resource.",
        epilog="gpuplug COMMAND --help has the options, examples and exit codes of a command.",
    )
    whole.add_argument("--version", action="version", version=f"gpuplug {version}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.summary,
            description=command.summary,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.command = command
        command.add_options(one)
    return whole


def _epilog(command: Command, width: int) -> str:
    lines = ["examples:"]
    for typed, told in command.examples:
        lines += [f"  {typed}", _wrapped(told, width, " " * 6)]
    lines += ["", "exit codes:"]
    for code, told in sorted((*command.exits, (2, "a bad option or variable, named in one line"))):
        lines.append(_wrapped(told, width, " " * 6, first=f"  {code:>2}  "))
    return "\n".join(lines)


def _wrapped(text: str, width: int, indent: str, first: str | None = None) -> str:
    return textwrap.fill(
        text,
        max(width, _NARROWEST),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def add_settings(parser: argparse.ArgumentParser, flags: Collection[str] = ()) -> None:
    """Add the options that ``flags`` names, or all those of ``gpuplug serve``."""
    for option in OPTIONS:
        if not (option.flag in flags if flags else option.serves):
            continue
        text = f"{option.help} (default: {default(option) or 'none'}; {option.variable})"
        bare: dict[str, Any] = {} if option.bare is None else {"nargs": "?", "const": option.bare}
        parser.add_argument(
            option.flag,
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=text.replace("%", "%%"),
            action=_Joined if option.many else "store",
            **bare,
        )


class _Joined(argparse.Action):
    """Take an option any number of times, as if all values had been given at once."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Add the values to those before."""
        del parser, option_string
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


class _Ignored(argparse.Action):
    """Note that an option was given, with or without a value."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        """Add the option to those that are ignored."""
        del parser, values
        namespace.ignored = [*getattr(namespace, "ignored", []), option_string]


def _serve(parser: argparse.ArgumentParser) -> None:
    """Add all options, and what Intel's plugin takes besides, of which the help does not tell."""
    add_settings(parser)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--v", dest=VERBOSITY, metavar="N", **hidden)
    for flag in IGNORED:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Ignored, **hidden)


def add_drivers(parser: argparse.ArgumentParser) -> None:
    """Add the options of the drivers that are installed, for the help: they are read elsewhere."""
    from gpuplug.options import flag, variable, written  # noqa: PLC0415 - loading is for the help alone
    from gpuplug.plugins.loader import load  # noqa: PLC0415

    # Their names may be of any length, and would make the usage long and wide: the groups below have them.
    usage = parser.format_usage().removeprefix("usage: ").rstrip().replace("%", "%%")
    parser.usage = f"{usage}\n{' ' * len(f'usage: {parser.prog} ')}[OPTIONS OF DRIVERS]"
    for driver in load().drivers:
        group = parser.add_argument_group(f"options of driver {driver.name} ({driver.distribution})")
        for option in driver.options:
            shown = written(option.default) or "none"
            text = f"{option.help} (default: {shown}; {variable(driver.name, option)})"
            group.add_argument(
                flag(driver.name, option),
                dest=variable(driver.name, option),
                metavar=option.metavar,
                help=text.replace("%", "%%"),
            )


def _inspect(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, INSPECTED)
    parser.add_argument("--json", action="store_true", help="print JSON (schema: gpuplug/observe/README.md)")


def _drivers(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, INSPECTED)
    parser.add_argument("--json", action="store_true", help="print JSON (schema: gpuplug/observe/README.md)")


def _status(parser: argparse.ArgumentParser) -> None:
    flags = ("--pod-resources-socket", *INSPECTED)
    add_settings(parser, flags)
    parser.add_argument("--json", action="store_true", help="print JSON (schema: gpuplug/observe/README.md)")
    parser.add_argument(
        "--watch",
        nargs="?",
        const="2",
        metavar="SECONDS",
        help="look again every so many seconds (2 if none are given) until interrupted",
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to open (default: all in /dev/dri)")
    parser.add_argument(
        "--write-zipapp",
        metavar="FILE",
        help="open nothing: write this command to FILE (- is standard output), which needs only python3",
    )


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="stay until interrupted, and log what happens")
    parser.add_argument(
        "--gpu",
        metavar="NAME[,FILE=TEXT]",
        help="to try a driver package: show one GPU on the kernel driver NAME, with such files in sysfs",
    )


COMMANDS: Final[Mapping[str, Command]] = {
    "serve": Command(
        "serve the node's GPUs to the kubelet (the command of the DaemonSet)",
        _serve,
        (
            ("gpuplug serve", "every GPU as one device"),
            ("gpuplug serve --shared-dev-num 4", "every GPU for up to four containers at a time"),
            (
                "gpuplug serve --deny-ids 0x4680 --allocation-policy packed",
                "leave one kind of GPU out, fill the others",
            ),
            (
                "gpuplug serve --prefix /host --node-root /",
                "in a container with the node's /sys and /dev in /host",
            ),
            ("gpuplug -shared-dev-num=4", "the same as the second, as Intel's GPU plugin spells it"),
        ),
        ((0, "SIGTERM or SIGINT has ended it in order"), (1, "it failed")),
        "It runs until it is told to stop, and waits for a kubelet and for GPUs that are not there yet.",
        asks_drivers=True,
    ),
    "inspect": Command(
        "show every GPU of this machine, and why one is not advertised: no kubelet needed",
        _inspect,
        (
            ("gpuplug inspect", "what gpuplug sees here, as it would serve it"),
            ("gpuplug inspect --prefix /host", "the same, where the node is mounted at /host"),
            ("gpuplug inspect --json | jq .gpus", "for scripts"),
        ),
        ((0, "something is advertised"), (3, "nothing is")),
        asks_drivers=True,
    ),
    "drivers": Command(
        "list the driver packages that are installed, what they claim here, and what is wrong with them",
        _drivers,
        (
            ("gpuplug drivers", "all that are installed where gpuplug is"),
            (
                "gpuplug drivers --prefix /host",
                "the same, with the GPUs of the node that is mounted at /host",
            ),
            ("gpuplug drivers --json | jq '.drivers[].problems'", "for scripts"),
        ),
        (
            (0, "all is well"),
            (3, "no driver is installed, or all are left out"),
            (4, "one of them has a problem"),
        ),
        "drivers/README.md tells how one is written.",
        asks_drivers=True,
    ),
    "status": Command(
        "show who holds which GPU, what is free, and where the kubelet and the machine differ",
        _status,
        (
            ("gpuplug status", "on the node, as root"),
            ("gpuplug status --watch", "the same, again and again, until Ctrl-C"),
            ("gpuplug status --json | jq .disagreements", "for scripts"),
            (
                "gpuplug status --pod-resources-socket /data/kubelet/pod-resources/kubelet.sock",
                "beside a kubelet with --root-dir=/data/kubelet",
            ),
        ),
        (
            (0, "the kubelet and the machine agree"),
            (1, "the kubelet cannot be asked; one line says what to do"),
            (3, "they agree, and there is nothing: no GPU is advertised, and none is held"),
            (4, "they do not agree"),
        ),
        "It asks the kubelet's pod-resources API and compares with /sys and /dev."
        " A GPU counts as many devices as the kubelet was told, unless --shared-dev-num or its variable says"
        " another number. With --watch, output that is no terminal gets a new part when something changed,"
        " and JSON one line.",
        asks_drivers=True,
    ),
    "verify": Command(
        "in a container: open the GPU nodes that it was given, and say what that tells",
        _verify,
        (
            ("gpuplug verify", "every node in /dev/dri"),
            ("gpuplug verify /dev/dri/renderD128", "this one"),
            ("gpuplug verify --write-zipapp verify.pyz", "make a file for images that have only Python"),
        ),
        (
            (0, "all nodes open"),
            (10, "EPERM: the device cgroup refuses"),
            (11, "EACCES: the node's mode refuses"),
            (12, "ENXIO or ENODEV: there is no device behind the node"),
            (13, "ENOENT: there is no such node"),
            (14, "anything else"),
            (15, "there is no node at all"),
        ),
        "In an image that has only Python, run the file that --write-zipapp writes: `python3 verify.pyz`.",
    ),
    "demo": Command(
        "show it all on a made-up machine: no root, no GPU, no cluster",
        _demo,
        (
            ("gpuplug demo", "two GPUs, an Allocate, a third GPU that is plugged in, and the end"),
            ("gpuplug demo --keep", "stay until Ctrl-C, with the log"),
            ("gpuplug demo --gpu amdgpu", "what the driver package for it makes of a GPU"),
            (
                "gpuplug demo --gpu v3d --drm-kernel-drivers v3d",
                "the same, with an option of a driver package",
            ),
        ),
        ((0, "all that was told did happen"), (1, "something did not")),
        asks_drivers=True,
    ),
    "completion": Command(
        "print what a shell needs to complete gpuplug's commands and options",
        _completion,
        (
            ("gpuplug completion bash > /etc/bash_completion.d/gpuplug", "for bash, with bash-completion"),
            ("gpuplug completion zsh > /usr/local/share/zsh/site-functions/_gpuplug", "for zsh"),
            ("gpuplug completion fish > ~/.config/fish/completions/gpuplug.fish", "for fish"),
        ),
        ((0, "it was printed"),),
        "Options of the drivers that are installed now are among them: print it again after a change.",
    ),
}
"""Each command is the module of that name in ``gpuplug.commands``."""
