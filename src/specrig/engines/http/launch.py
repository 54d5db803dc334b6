"""A server as a child process: start it, wait until it is ready, and end it with all it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psutil

from specrig.cell import Cell
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.client import HttpEngine
from specrig.engines.logs import EngineLog
from specrig.http_client import Client
from specrig.models.pair import PairFiles
from specrig.runtime.cores import all_cores

READY_S = 1200.0
"""Longest time for a server to load: tens of GB from a slow disk, and kernels to compile."""
STOP_S = 20.0
"""Longest time for it to end by itself before it is killed."""
PR_SET_PDEATHSIG = 1


class ServerProcess:
    """`command` in a process group of its own, ready once the path `health` answers. On Linux it dies with this
    process.

    Raises EngineError with the end of its log where it ends, or `ready_s` pass, before it is ready.
    """

    def __init__(self, command: Sequence[str], url: str, *, health: str, ready_s: float = READY_S) -> None:
        self.engine_log = EngineLog()
        self.name = " ".join(command[:3])
        self.process = subprocess.Popen(
            command,
            stdout=self.engine_log.handle,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(_in_child, all_cores()) if sys.platform == "linux" else None,
        )
        self._family: set[psutil.Process] = set()
        try:
            self._wait(Client(url), health, ready_s)
        except BaseException:  # Ctrl-C too: loading takes minutes
            self.close(keep_log=True)
            raise

    def _wait(self, client: Client, health: str, ready_s: float) -> None:
        deadline = time.monotonic() + ready_s
        while client.get_or_none(health) is None or not self._listens(urlsplit(client.url).port):
            if self.process.poll() is not None:
                raise EngineError(self.ended("before it was ready"))
            if time.monotonic() > deadline:
                raise EngineError(f"{self.name} was not ready after {ready_s:g} s; {self.engine_log.tail()}")
            time.sleep(0.2)

    def _listens(self, port: int | None) -> bool:
        """Whether the server itself listens at the port: another process may have taken it first, and answer there."""
        self._note_children()
        found: list[Any] = []
        try:
            for member in self._family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += member.net_connections("tcp")
        except psutil.AccessDenied:
            return self.alive
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)

    def _note_children(self) -> None:
        """Note the processes that it has started; once it is dead they cannot be found."""
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            self._family |= {main, *main.children(recursive=True)}

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def died(self, within_s: float = 1.0) -> bool:
        """Whether the process has ended. Waits up to `within_s`: connections may break a moment before it ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return not self.alive

    def ended(self, when: str) -> str:
        """The message for a server that has ended: how, when, and the last lines of its log."""
        return f"{self.name} {exit_reason(self.process.poll())} {when}; {self.engine_log.tail()}"

    def close(self, *, keep_log: bool = False) -> None:
        """Terminate the process and all it started, kill what stays, and return when all are gone.

        The log of a process that has ended by itself is kept: `ended` names it.
        """
        keep_log = keep_log or not self.alive
        self._note_children()
        members = list(self._family)
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, sent)
            for member in members:  # those that left the group
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(sent)
            _, members = psutil.wait_procs(members, timeout=STOP_S)
        self.process.wait()
        self.engine_log.close(keep=keep_log)


class LaunchingEngine(HttpEngine):
    """Starts servers and keeps them, each under what tells it apart."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self._servers: dict[str, tuple[ServerProcess, Client]] = {}

    @abstractmethod
    def _server(self, cell: Cell) -> tuple[ServerProcess, Client]:
        """The server that runs a cell, with its client."""

    def counters(self, cell: Cell) -> counters.Counters:
        """See `HttpEngine`."""
        return counters.read(self._server(cell)[1])

    def ended(self, cell: Cell, within_s: float = 0.2) -> str:
        """See `HttpEngine`."""
        server, _ = self._server(cell)
        return server.ended(f"while it answered for {cell.name}") if server.died(within_s) else ""

    def close(self) -> None:
        """End the servers."""
        for server, _ in self._servers.values():
            server.close()
        self._servers.clear()
        super().close()


def exit_reason(code: int | None) -> str:
    """An exit code in words: the signal that killed the process (negative codes), or its status."""
    if code is not None and code < 0:
        hint = " (by someone, or by the system when memory ran out)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"
    return f"ended with status {code}"


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _in_child(cores: set[int]) -> None:
    die_with_parent()
    os.sched_setaffinity(0, cores)  # the thread that starts it may be tied to one


def die_with_parent() -> None:
    """In a child process: let the kernel send SIGTERM when the parent is gone (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
