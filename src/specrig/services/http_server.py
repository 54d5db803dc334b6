"""The process that listens: uvicorn with a limit on the time of a request's header, and a line that says where."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
"""Most seconds between the first byte of a request and the end of its header; the first request may take as long to
begin.
"""
KEEP_ALIVE_S = 75
SHUTDOWN_S = 5


class TimedProtocol(H11Protocol):
    """A connection that is closed where a request's header takes longer than `HEADER_S`."""

    _header: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first header."""
        super().connection_made(transport)
        self._header = self.loop.call_later(HEADER_S, self._close_late)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a header, where the bytes so far hold no request."""
        super().data_received(data)
        self._watch_header()

    def on_response_complete(self) -> None:
        """Wait for the rest of the next request's header, where some of it has come already."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _watch_header(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._header is None and not self.transport.is_closing():
            self._header = self.loop.call_later(HEADER_S, self._close_late)

    def _stop_waiting(self) -> None:
        if self._header is not None:
            self._header.cancel()
            self._header = None

    def _close_late(self) -> None:
        self._header = None
        print(f"{self.client[0] if self.client else 'a client'}: no whole header in {HEADER_S:g} s", file=sys.stderr)
        self.transport.close()


class Server(uvicorn.Server):
    """Says where it listens as soon as it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        if self.started:
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            title = self.config.app.title if isinstance(self.config.app, FastAPI) else "service"
            print(f"{title}: listens at http://{host}:{self.config.port}", file=sys.stderr, flush=True)


def server_of(app: FastAPI, host: str, port: int) -> Server:
    """The server of an application, to be run."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=TimedProtocol,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return Server(config)
