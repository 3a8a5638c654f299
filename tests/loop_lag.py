"""Run ``gpuplug serve`` with a heartbeat on its event loop, and write down the longest gap.

``python -m tests.loop_lag FILE OPTIONS…``: as ``gpuplug serve OPTIONS…``, but at every
SIGUSR1 the longest time in seconds that the loop was held up since the last one is
appended to FILE.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import anyio

from gpuplug import app, log
from gpuplug.commands.serve import listen
from gpuplug.plugins import loader
from gpuplug.settings import Settings, resolve
from gpuplug.witness import NOBODY

BEAT = 0.001


async def _beat(out: Path) -> None:
    longest = 0.0
    asked = anyio.Event()

    async def on_signal() -> None:
        nonlocal asked
        with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                asked.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(on_signal)
        while True:
            before = time.perf_counter()
            await anyio.sleep(BEAT)
            longest = max(longest, time.perf_counter() - before - BEAT)
            if asked.is_set():
                with out.open("a") as file:
                    file.write(f"{longest}\n")
                longest, asked = 0.0, anyio.Event()


async def _serve(out: Path, settings: Settings) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_beat, out)
        loaded, witness = loader.load(), NOBODY
        sockets = listen(settings, "--listen")
        if sockets:
            from gpuplug.commands.listening import watched  # noqa: PLC0415 - as in gpuplug serve

            witness, answer = watched(settings, loaded)
            tasks.start_soon(answer, sockets)
        await app.serve(settings, loaded, witness=witness)


def main() -> None:
    out, *words = sys.argv[1:]
    pairs = (word.removeprefix("--").partition("=") for word in words)
    given = {name.replace("-", "_"): value for name, _, value in pairs}
    settings = resolve(given, os.environ)
    log.set_up("warning", "text")
    anyio.run(_serve, Path(out), settings)


if __name__ == "__main__":
    main()
