"""Talks to the QEMU that runs this very machine, through a port that leads to its QMP socket."""

import json
import os
import select
import time
from itertools import count
from pathlib import Path
from typing import Any

_PORTS = Path("/sys/class/virtio-ports")
_SECONDS = 20.0


class QmpError(Exception):
    """QEMU refused a command; the message is its own."""


class Qmp:
    """A QMP session. What QEMU tells unasked is kept until somebody waits for it."""

    def __init__(self) -> None:
        name = next(path.parent.name for path in _PORTS.glob("*/name") if path.read_text().strip() == "qmp")
        self._port = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._numbers = count(1)
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: object) -> Any:
        """Run a command and return its answer.

        :raises QmpError: if it is refused
        """
        number = next(self._numbers)
        message = {"execute": command, "arguments": arguments, "id": number}
        os.write(self._port, json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._next(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise QmpError(answer["error"]["desc"])
                return answer["return"]
            self._events.append(answer)

    def wait_for(self, event: str, **data: object) -> None:
        """Wait until QEMU tells of an event with this data, now or earlier."""
        deadline = time.monotonic() + _SECONDS
        while True:
            for seen in self._events:
                if seen.get("event") == event and data.items() <= seen.get("data", {}).items():
                    self._events.remove(seen)
                    return
            self._events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"QEMU says nothing for {_SECONDS:g} s; events so far: {self._events}")
            if select.select([self._port], [], [], left)[0]:
                self._unread += os.read(self._port, 65536)
        line, self._unread = self._unread.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line) if line.strip() else {}
        return message
