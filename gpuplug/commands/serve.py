"""``gpuplug serve``: what the DaemonSet runs on every node."""

from __future__ import annotations

import asyncio
import importlib.metadata
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from loguru import logger

from gpuplug import app, log
from gpuplug.commands.folders import check_folder
from gpuplug.commands.intel import IGNORED, with_log_level
from gpuplug.commands.prepare import prepared
from gpuplug.commands.signals import DetailSignal, StopSignals
from gpuplug.core.identity import SOCKET_PREFIX, socket_name, socket_room
from gpuplug.errors import SettingError
from gpuplug.host.sockets import remove_own
from gpuplug.plugins.chosen import spelt_options
from gpuplug.settings import MAX_SOCKET_PATH, Settings, origins, spelt, split_address
from gpuplug.witness import NOBODY

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from gpuplug.plugins.loader import Loaded

_HIGHEST_GENERATION: Final = 10**6 - 1


def run(given: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Check the settings, then serve until SIGTERM or SIGINT; return 0.

    :raises SettingError: for an option, variable or folder that cannot be used.
    """
    given = with_log_level(given)
    settings, loaded = prepared(given, environ)
    check_folders(settings, origins(given, environ))
    sockets = listen(settings, origins(given, environ).get("listen", "--listen"))
    detail = DetailSignal(log.set_up(settings.log_level, settings.log_format).next_level)
    started = (
        "gpuplug",
        importlib.metadata.version("gpuplug"),
        "serve",
        spelt(settings),
        spelt_options(loaded),
    )
    logger.info("{}", " ".join(filter(None, started)))
    for flag in given.get("ignored", ()):
        logger.warning("{} has no effect: {}", flag, IGNORED[flag])
    signals = StopSignals(partial(remove_own, settings.kubelet_dir, SOCKET_PREFIX))
    anyio.run(_until_told_to_stop, settings, loaded, signals, detail, sockets)
    signals.no_more()
    return 0


def check_folders(settings: Settings, chosen: Mapping[str, str]) -> None:
    """See that the folders can be used, before anything is served.

    The kubelet's own folder may come later than we do, so its absence is no error; a
    folder that the operator named must be there.

    :param chosen: for each field that was set, the option or variable that set it.
    :raises SettingError: naming the option or variable, and the folder.
    """
    prefix = chosen.get("prefix", "--prefix")
    if settings.prefix:
        for folder in ("", "/sys", "/dev"):
            check_folder(prefix, settings.prefix + folder)
    kubelet_dir = chosen.get("kubelet_dir", "--kubelet-dir")
    check_folder(kubelet_dir, settings.kubelet_dir, may_come_later="kubelet_dir" not in chosen)
    try:
        socket_name("", "000000", _HIGHEST_GENERATION, socket_room(settings.kubelet_dir))
    except ValueError:
        raise SettingError(
            f"{kubelet_dir}: {settings.kubelet_dir!r} is too long:"
            f" the path of a unix socket has {MAX_SOCKET_PATH} bytes at most"
        ) from None


def listen(settings: Settings, chosen: str) -> list[socket.socket]:
    """Listen where ``--listen`` says; nowhere, if it says nothing.

    :param chosen: the option or variable that says it.
    :raises SettingError: naming the option or variable, and the value.
    """
    if not settings.listen:
        return []
    from gpuplug.host.listen import bind, words  # noqa: PLC0415 - most processes do not listen

    try:
        return bind(*split_address(settings.listen))
    except OSError as error:
        raise SettingError(f"{chosen}: cannot listen on {settings.listen!r}: {words(error)}") from None


async def _until_told_to_stop(
    settings: Settings,
    loaded: Loaded,
    signals: StopSignals,
    detail: DetailSignal,
    sockets: Sequence[socket.socket],
) -> None:
    detail.serve(asyncio.get_running_loop())
    async with anyio.create_task_group() as tasks:
        witness = NOBODY
        if sockets:
            from gpuplug.commands.listening import watched  # noqa: PLC0415 - with what only listeners need

            witness, answer = watched(settings, loaded)
            tasks.start_soon(answer, sockets, name="http")
        tasks.start_soon(partial(app.serve, settings, loaded, witness=witness))
        await signals.wait()
        tasks.cancel_scope.cancel()
