"""Arguments and environment → ``Settings`` → a command; and what it all exits with.

Exit codes: 0 done, 1 failed, 2 a bad option or variable (one line on standard error),
3 ``inspect`` found nothing to advertise; those of ``verify`` stand there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuplug.errors import SettingError
from gpuplug.settings import OPTIONS, default

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

COMMANDS: Final = {
    "serve": "serve the node's GPUs to the kubelet (the command of the DaemonSet)",
    "inspect": "show every GPU of this machine, and why one is not advertised: no kubelet needed",
    "verify": "in a container: open the GPU nodes that it was given, and say what that tells",
    "demo": "show it all on a made-up machine: no root, no GPU, no cluster",
}
"""Each command is the module of that name in ``gpuplug.commands``."""

_ONE_DASH: Final = re.compile(r"-[a-z]{2}")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(message)


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code."""
    environ = os.environ if environ is None else environ
    words = _normal(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parse(words)
        name = options.pop("command")
        if name == "serve":
            # Until serving begins there is nothing to end in order; and as the first process of a
            # container we would not even be killed by a signal that we have no handler for.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        command = importlib.import_module(f"gpuplug.commands.{name}")
        return int(command.run(options, environ))
    except SettingError as error:
        print(f"gpuplug: {error}", file=sys.stderr)  # noqa: T201 - no log is set up yet
        return 2


def _parse(words: Sequence[str]) -> dict[str, Any]:
    options, unknown = _parser().parse_known_args(words)
    if unknown:
        raise SettingError(f"unknown option or argument: {unknown[0]!r}")
    return vars(options)


def _normal(arguments: Sequence[str]) -> list[str]:
    """Take the arguments of Intel's plugin as they are: one dash, and no command.

    Go's flags may bear one dash or two, so existing manifests say ``-shared-dev-num=10``.
    """
    words = ["-" + word if _ONE_DASH.match(word) else word for word in arguments]
    if words and words[0].startswith("-") and words[0] not in {"-h", "--help", "--version"}:
        words.insert(0, "serve")
    return words


def _parser() -> _Parser:
    version = importlib.metadata.version("gpuplug")
    parser = _Parser(
        prog="gpuplug",
        allow_abbrev=False,
        description="Every GPU that the Linux kernel has bound, as a schedulable Kubernetes resource.",
    )
    parser.add_argument("--version", action="version", version=f"gpuplug {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        _ADD_OPTIONS[name](command)
    return parser


def _add_serve_options(parser: argparse.ArgumentParser, flags: Collection[str] = ()) -> None:
    """Add the options of ``Settings``, or those of them that ``flags`` names."""
    for option in OPTIONS:
        if flags and option.flag not in flags:
            continue
        shown = default(option)
        text = f"{option.help} (default: {'none' if shown == '' else shown}; {option.variable})"
        parser.add_argument(
            option.flag, metavar=option.metavar, default=argparse.SUPPRESS, help=text.replace("%", "%%")
        )


def _add_inspect_options(parser: argparse.ArgumentParser) -> None:
    _add_serve_options(parser, ("--shared-dev-num", "--prefix"))
    parser.add_argument("--json", action="store_true", help="print JSON (schema: gpuplug/observe/README.md)")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  gpuplug inspect                        what gpuplug sees here, as it would serve it\n"
        "  gpuplug inspect --prefix /host         the same, where the node is mounted at /host\n"
        "  gpuplug inspect --json | jq .gpus      for scripts\n\n"
        "exit codes: 0 something is advertised, 3 nothing is, 2 a bad option"
    )


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="nodes to open (default: all in /dev/dri)")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  gpuplug verify                         every node in /dev/dri\n"
        "  gpuplug verify /dev/dri/renderD128     this one\n"
        "  python3 verify.py                      the same from an image that has only Python: copy the one\n"
        "                                         file gpuplug/commands/verify.py into it\n\n"
        "exit codes: 0 all open, 10 EPERM (the device cgroup), 11 EACCES, 12 ENXIO or ENODEV, 13 ENOENT,\n"
        "14 anything else, 15 there is no node"
    )


def _add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="stay until interrupted, and log what happens")


_ADD_OPTIONS: Final[Mapping[str, Callable[[argparse.ArgumentParser], None]]] = {
    "serve": _add_serve_options,
    "inspect": _add_inspect_options,
    "verify": _add_verify_options,
    "demo": _add_demo_options,
}
