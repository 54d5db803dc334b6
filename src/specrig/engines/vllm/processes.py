"""The processes that one start of vLLM brings: which they are, how one ended, that all are gone. No engine by itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from multiprocessing import connection
from queue import Queue
from threading import Thread
from typing import Any

import psutil

from specrig.engines.base import EngineError
from specrig.engines.http.launch import die_with_parent, ending

STOP_S = 10.0
"""How long they may take to end by themselves before they are killed."""


class Processes:
    """Made before the engine starts; `meet` when it has."""

    def __init__(self) -> None:
        self._strangers = children()
        self._strange_cores = multiprocessing.active_children()
        self.all: list[psutil.Process] = []
        self._cores: list[Any] = []

    def meet(self) -> None:
        """Note who is new: once a process is dead, nobody knows whom it had started."""
        self.all = list(children() - self._strangers)
        self._cores = [core for core in multiprocessing.active_children() if core not in self._strange_cores]

    def wake(self, outputs: Queue[Any]) -> None:
        """Have whoever waits for `outputs` told when an engine core is gone: vLLM 0.32 closes the queue's source and lets them wait."""
        sentinels = [core.sentinel for core in self._cores]

        def wait() -> None:
            connection.wait(sentinels)
            outputs.put(EngineError("its process is gone"))

        if sentinels:
            Thread(target=wait, name="specrig-vllm-watch", daemon=True).start()

    def ended(self) -> str:
        """How an engine core ended that should still run; empty while all do. vLLM's own error only says that one is gone."""
        for core in self._cores:
            core.join(1)  # its connection may break a moment before
            if core.exitcode is not None:
                hint = " (by someone, or by the system when memory ran out)" if core.exitcode == -signal.SIGKILL else ""
                return f"its process {core.name} {ending(core.exitcode)}{hint}"
        return ""

    def resident_mb(self) -> float:
        """Their memory, and this process's."""
        found = 0
        for process in (psutil.Process(), *self.all):
            with contextlib.suppress(psutil.Error):  # it may just have died
                found += process.memory_info().rss
        return found / 2**20

    def end(self) -> None:
        """End them, kindly first; returns when they are gone."""
        for process in self.all:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(self.all, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()


def register() -> None:
    """Called by vLLM when one of its processes starts (`vllm.general_plugins`).

    An engine core does not notice that the process which started it was killed: it would stay, with all its memory.
    """
    if multiprocessing.parent_process() is not None and sys.platform == "linux":
        die_with_parent()


def children() -> set[psutil.Process]:
    """Processes below this one, but for Python's own tracker of shared memory, which outlives every engine."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found
