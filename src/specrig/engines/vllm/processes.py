"""The processes that vLLM starts: find them, say how one ended, end them all."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing import connection
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import psutil

from specrig.engines.base import EngineError
from specrig.engines.http.launch import die_with_parent, exit_reason

STOP_S = 10.0
"""Longest time for them to end by themselves before they are killed."""


class Processes:
    """The processes of one engine. Make this object before the engine starts, and call `note_children` once it has
    started.
    """

    def __init__(self) -> None:
        self._known_before = children()
        self._cores_before = multiprocessing.active_children()
        self.all: list[psutil.Process] = []
        self._cores: list[Any] = []

    def note_children(self) -> None:
        """Note the new processes while they live: a dead one's children are not known."""
        self.all = list(children() - self._known_before)
        self._cores = [core for core in multiprocessing.active_children() if core not in self._cores_before]

    def watch_cores(self, outputs: Queue[Any]) -> None:
        """Put an error into `outputs` when an engine core ends. In vLLM 0.32 a reader of that queue would wait for
        ever.
        """
        sentinels = [core.sentinel for core in self._cores]

        def wait() -> None:
            connection.wait(sentinels)
            outputs.put(EngineError("its process is gone"))

        if sentinels:
            Thread(target=wait, name="specrig-vllm-watch", daemon=True).start()

    def exit_reason(self) -> str:
        """How an engine core ended, for the error's message; empty while all of them run. vLLM does not say."""
        # Its connection may break a moment before it ends, and its exit code may come a moment later.
        deadline = time.monotonic() + 1
        while self._cores and time.monotonic() < deadline:
            for core in self._cores:
                if core.exitcode is not None:
                    return f"its process {core.name} {exit_reason(core.exitcode)}"
            time.sleep(0.02)
        return ""

    def end(self) -> None:
        """Terminate the processes, kill those that stay, and return when all are gone."""
        for process in self.all:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(self.all, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=STOP_S)


def resident_mb(processes: Iterable[psutil.Process]) -> float:
    """Resident memory of this process and of others, in MiB."""
    found = 0
    for process in (psutil.Process(), *processes):
        with contextlib.suppress(psutil.Error):  # it may just have died
            found += process.memory_info().rss
    return found / 2**20


def placing(threads: int) -> dict[str, str]:
    """Environment variables by which vLLM runs so many threads on a CPU.

    They are bound to this process's cores if they take all of these; else the system places them, since another job may
    run beside this one.
    """
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
    bound = ",".join(map(str, cores)) if threads >= len(cores) else "nobind"
    return {"VLLM_CPU_OMP_THREADS_BIND": bound, "OMP_NUM_THREADS": str(threads)}


@contextlib.contextmanager
def intel_openmp() -> Iterator[None]:
    """Processes that start meanwhile get Intel's OpenMP from vLLM's CPU build, whose speculation is slow without it.

    Only meanwhile: llama.cpp's server decodes far more slowly with it.
    """
    openmp, before = Path(sys.prefix, "lib", "libiomp5.so"), os.environ.get("LD_PRELOAD")
    if not openmp.is_file() or "omp" in (before or ""):
        yield
        return
    os.environ["LD_PRELOAD"] = ":".join(filter(None, (str(openmp), before)))
    try:
        yield
    finally:
        os.environ.pop("LD_PRELOAD")
        if before is not None:
            os.environ["LD_PRELOAD"] = before


def register() -> None:
    """Let an engine core end with its parent; vLLM calls this when one of its processes starts
    (`vllm.general_plugins`).

    Without it an engine core whose parent was killed keeps running with all its memory.
    """
    if multiprocessing.parent_process() is not None and sys.platform == "linux":
        die_with_parent()


def children() -> set[psutil.Process]:
    """All descendants of this process but Python's tracker of shared memory, which outlives every engine."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found


def quiet_llvmlite() -> None:
    """Let a second engine start in one process after n-gram drafting, which imports numba and llvmlite.

    vLLM 0.32 reads `__dict__` of every module's values. llvmlite's library object takes that for a function of the
    library and fails. Here it raises AttributeError instead.
    """
    if "llvmlite.binding.ffi" not in sys.modules:
        return
    kind = type(sys.modules["llvmlite.binding.ffi"].lib)
    lookup = kind.__getattr__
    if lookup.__module__ == __name__:
        return  # from the engine before

    def getattr_(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lookup(self, name)

    kind.__getattr__ = getattr_
