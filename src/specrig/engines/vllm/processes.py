"""The processes that vLLM starts: finding them, telling how one ended, and ending them all. No engine by itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
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
from specrig.engines.http.launch import die_with_parent, ending

STOP_S = 10.0
"""How long they may take to end by themselves before they are killed."""


class Processes:
    """The processes of one engine. Make this object before the engine starts, and call `meet` once it has started."""

    def __init__(self) -> None:
        self._strangers = children()
        self._strange_cores = multiprocessing.active_children()
        self.all: list[psutil.Process] = []
        self._cores: list[Any] = []

    def meet(self) -> None:
        """Note the processes that are new. This must happen while they live: of a dead process nobody knows what it had
        started.
        """
        self.all = list(children() - self._strangers)
        self._cores = [core for core in multiprocessing.active_children() if core not in self._strange_cores]

    def wake(self, outputs: Queue[Any]) -> None:
        """Put an error into `outputs` when an engine core ends. vLLM 0.32 itself would leave whoever reads that queue
        waiting for ever.
        """
        sentinels = [core.sentinel for core in self._cores]

        def wait() -> None:
            connection.wait(sentinels)
            outputs.put(EngineError("its process is gone"))

        if sentinels:
            Thread(target=wait, name="specrig-vllm-watch", daemon=True).start()

    def ended(self) -> str:
        """How an engine core ended, for the error's message; empty while all of them run. vLLM's own error does not say
        how.
        """
        # Its connection may break a moment before it ends; and where vLLM's own thread has waited for it too, the code
        # comes a moment later.
        deadline = time.monotonic() + 1
        while self._cores and time.monotonic() < deadline:
            for core in self._cores:
                if core.exitcode is not None:
                    hint = (
                        " (by someone, or by the system when memory ran out)"
                        if core.exitcode == -signal.SIGKILL
                        else ""
                    )
                    return f"its process {core.name} {ending(core.exitcode)}{hint}"
            time.sleep(0.02)
        return ""

    def end(self) -> None:
        """Ask the processes to end, kill those that do not, and return when all are gone."""
        for process in self.all:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(self.all, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()


def resident_mb(processes: Iterable[psutil.Process]) -> float:
    """Resident memory of this process and of others, in MiB."""
    found = 0
    for process in (psutil.Process(), *processes):
        with contextlib.suppress(psutil.Error):  # it may just have died
            found += process.memory_info().rss
    return found / 2**20


def placing(threads: int) -> dict[str, str]:
    """Environment variables by which vLLM runs so many threads on a CPU.

    They are bound to this process's cores if they take all of these. With fewer, another job may run beside this one
    and would be bound
    to the same: then the system places them.
    """
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
    bound = ",".join(map(str, cores)) if threads >= len(cores) else "nobind"
    return {"VLLM_CPU_OMP_THREADS_BIND": bound, "OMP_NUM_THREADS": str(threads)}


@contextlib.contextmanager
def intel_openmp() -> Iterator[None]:
    """Processes that start meanwhile get Intel's OpenMP, which comes with vLLM's CPU build: its speculation is slow
    without.

    Only meanwhile: it must be there when a process starts, and another engine's server would decode with it,
    llama.cpp's far slower.
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
    """Let an engine core end with the process that started it; vLLM calls this when one of its processes starts
    (`vllm.general_plugins`).

    Without it an engine core does not notice that its parent was killed, and keeps running with all its memory.
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
    """Let a second engine start in one process after n-gram drafting, which imports numba and with it llvmlite.

    vLLM 0.32 looks through the values of every module for `__dict__`. llvmlite's library object takes any attribute,
    that one too, for a function of the library and fails. Here it raises AttributeError instead, as it should.
    """
    if "llvmlite.binding.ffi" not in sys.modules:
        return
    kind = type(sys.modules["llvmlite.binding.ffi"].lib)
    lookup = kind.__getattr__

    def getattr_(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lookup(self, name)

    kind.__getattr__ = getattr_
