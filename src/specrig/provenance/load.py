"""Records what else the machine did while a job measured, and how fast the machine was before and after.

A speedup that was measured beside other programs, or by a process that was suspended meanwhile, looks like any other.
So counters of the operating system are read before and after each generation, never inside the timed region.
`analysis.disturbance` judges what they mean for a cell.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from specrig.provenance.bandwidth import last_level_cache, wait

PROBE_S = 0.1
"""Seconds that each probe takes. The fastest repetition counts: a short interruption is not seen, a lasting one is."""
COPY_BYTES = 64 << 20
"""Least size of the copied buffer in bytes; it is made larger where that is less than twice the last-level cache."""
COPY_MOST = 128 << 20
"""Its most: the system takes longer to hand over more memory than the copies take. A host's cache of hundreds of
megabytes, which many guests share, holds it; its speed changes as that of memory does."""
MATRIX = {"cpu": 512, "cuda": 4096}
"""Device -> rows and columns of the multiplied matrices, so that a product takes some milliseconds."""
THREADS = Path("/proc/self/task")
"""Folder with `schedstat` of each thread: nanoseconds running, nanoseconds ready but waiting for a processor, and a
count.

Source: the Linux kernel's Documentation/scheduler/sched-stats."""
NS = 1e-9


@dataclass(frozen=True, slots=True)
class Moment:
    """The system's counters at one moment, in seconds; None if the system has no such counter."""

    clock_s: float
    asleep_s: float
    busy_s: float
    steal_s: float
    own_s: float
    waited_s: float | None
    thread_s: tuple[float, float] | None
    """(seconds running, seconds ready but waiting for a processor) of the calling thread."""


def moment(*, children: bool = False) -> Moment:
    """Read the counters now. children: count child processes' work as this one's own, which takes milliseconds."""
    times = psutil.cpu_times()
    # The time of guests is part of the user's; idle and iowait are no work, steal is somebody else's.
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    own, folders = time.process_time(), [THREADS]
    if children:
        ended = os.times()
        own += ended.children_user + ended.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                spent = child.cpu_times()
            except psutil.Error:  # it ended in between
                continue
            own += spent.user + spent.system
            folders.append(Path("/proc", str(child.pid), "task"))
    monotonic = time.monotonic()
    return Moment(
        clock_s=monotonic,
        # Since the machine started, with and without the time that it was suspended.
        asleep_s=time.clock_gettime(time.CLOCK_BOOTTIME) - monotonic if hasattr(time, "CLOCK_BOOTTIME") else 0.0,
        busy_s=busy,
        steal_s=getattr(times, "steal", 0.0),
        own_s=own,
        waited_s=_waited(folders),
        thread_s=_schedstat(Path("/proc/thread-self/schedstat")),
    )


def between(before: Moment, after: Moment) -> dict[str, float | None]:
    """Return what happened between two moments, as the fields of `measurement.records.Load`, in seconds.

    The system counts all work in ticks but the process's own in nanoseconds, so others' work can come out a tick below
    0; 0 is returned then.
    """
    elapsed, own = after.clock_s - before.clock_s, after.own_s - before.own_s
    found: dict[str, float | None] = {
        "elapsed_s": elapsed,
        "own_s": own,
        "others_s": max(after.busy_s - before.busy_s - own, 0.0),
        "steal_s": max(after.steal_s - before.steal_s, 0.0),
        "slept_s": max(after.asleep_s - before.asleep_s, 0.0),
        "waited_s": None,
        "held_s": None,
    }
    if before.waited_s is not None and after.waited_s is not None:
        found["waited_s"] = max(after.waited_s - before.waited_s, 0.0)  # threads that ended took theirs with them
    if before.thread_s is not None and after.thread_s is not None:
        found["held_s"] = max(elapsed - sum(after.thread_s) + sum(before.thread_s), 0.0)
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


def probe(device: str) -> dict[str, Any]:
    """Measure how fast the machine is now and return the fields of `measurement.records.Probe`.

    On a CPU, torch uses as many threads as are set. Untested on hardware: the probes of a GPU.
    """
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "copy_gb_s": _copy(device),
        "product_gflop_s": _product(device),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _copy(device: str) -> float | None:
    """Bandwidth of a large copy in GB/s, read and written bytes added; None if memory is short."""
    import torch

    needed = min(COPY_MOST, max(COPY_BYTES, 2 * ((last_level_cache() or 0) if device == "cpu" else 0)))
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    if free < 4 * needed:
        return None
    source = torch.zeros(needed // 4, dtype=torch.float32, device=device)
    target = torch.ones_like(source)
    seconds = _fastest(lambda: target.copy_(source), device)
    return round(2 * source.numel() * source.element_size() / seconds / 1e9, 2)


def _product(device: str) -> float:
    """Speed of a product of two float32 matrices in GFLOP/s."""
    import torch

    size = MATRIX[device]
    left = torch.ones(size, size, device=device)
    right, out = left.clone(), torch.empty_like(left)
    return round(2 * size**3 / _fastest(lambda: torch.mm(left, right, out=out), device) / 1e9, 1)


def _fastest(action: Callable[[], Any], device: str) -> float:
    """Repeat `action` for `PROBE_S` seconds and return the seconds of the fastest repetition."""
    action()  # what a first call sets up is no work of the machine's
    wait(device)
    found, end = float("inf"), time.perf_counter() + PROBE_S
    while (start := time.perf_counter()) < end:
        action()
        wait(device)
        found = min(found, time.perf_counter() - start)
    return found


def _waited(folders: list[Path]) -> float | None:
    """Seconds that threads in `folders` were ready but waited for a processor, since each began; None: not counted."""
    found = [
        times[1] for folder in folders for path in folder.glob("*/schedstat") if (times := _schedstat(path)) is not None
    ]
    return sum(found) if found else None


def _schedstat(path: Path) -> tuple[float, float] | None:
    try:
        on, ready = path.read_text().split()[:2]
    except (OSError, ValueError):  # another system, a kernel without it, or a thread that has ended
        return None
    return int(on) * NS, int(ready) * NS
