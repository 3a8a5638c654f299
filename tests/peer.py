"""A peer that speaks HTTP/2 by hand: what grpclib's own client would never send, or never leave unread."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from anyio.abc import SocketStream

SERVICE: Final = "/v1beta1.DevicePlugin"


def framed(message: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """Put gRPC's five bytes before a message."""
    return struct.pack(">?I", compressed, len(message) if length is None else length) + message


@dataclass
class Answer:
    """What has come on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False

    @property
    def status(self) -> int | None:
        """The gRPC status; ``None`` until it came."""
        return int(self.headers["grpc-status"]) if "grpc-status" in self.headers else None

    @property
    def message(self) -> str:
        """The text beside the status."""
        return unquote(self.headers.get("grpc-message", ""))


class Peer:
    """One connection to a plugin's socket."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream: Final = stream
        self.http2: Final = H2Connection(
            H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        self._answers: dict[int, Answer] = {}
        self.acknowledges = True
        """Whether the windows are kept open, as a reader does."""

    async def begin(self, *, connection_window: int, stream_window: int) -> None:
        """Send the preface and grant the windows."""
        self.http2.initiate_connection()
        self.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: stream_window})
        self.http2.increment_flow_control_window(connection_window)
        await self.flush()

    async def flush(self) -> None:
        """Send what is due."""
        if data := self.http2.data_to_send():
            await self.stream.send(data)

    async def call(self, method: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Begin a call; return the number of its stream."""
        number = self.http2.get_next_available_stream_id()
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"{SERVICE}/{method}",
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **(headers or {}),
        }
        self.http2.send_headers(number, list(fields.items()), end_stream=not body)
        if body:
            self.http2.send_data(number, body, end_stream=True)
        self._answers[number] = Answer()
        await self.flush()
        return number

    async def receive(self) -> None:
        """Take in what comes next.

        :raises anyio.EndOfStream: when the plugin hangs up.
        """
        for event in self.http2.receive_data(await self.stream.receive()):
            if isinstance(event, (ResponseReceived, TrailersReceived)):
                pairs = [(_text(name), _text(value)) for name, value in event.headers or ()]
                self._answers[event.stream_id].headers.update(pairs)
            elif isinstance(event, DataReceived):
                self._answers[event.stream_id].data += event.data
                if self.acknowledges:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, (StreamEnded, StreamReset)):
                self._answers[event.stream_id].ended = True
        await self.flush()

    async def hung_up(self) -> None:
        """Wait until the plugin hangs up."""
        with anyio.fail_after(5), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await self.receive()

    async def answer(self, number: int, *, of_bytes: int | None = None) -> Answer:
        """Wait until a call has ended, or until so many bytes of data have come; return what has come."""
        answer = self._answers[number]
        with anyio.fail_after(5):
            while not answer.ended and (of_bytes is None or len(answer.data) < of_bytes):
                await self.receive()
        return answer


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


@asynccontextmanager
async def connected(
    path: Path | str, *, connection_window: int = 2**24, stream_window: int = 65535
) -> AsyncIterator[Peer]:
    """Connect to a plugin's socket."""
    async with await anyio.connect_unix(path) as stream:
        peer = Peer(stream)
        await peer.begin(connection_window=connection_window, stream_window=stream_window)
        yield peer
