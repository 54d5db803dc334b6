"""A core of its own for each of torch's threads, while a job measures.

The threads of a product wait for each other without sleeping. Where another program keeps a core busy, the system may
leave two of them on one core for minutes. Each then waits away the time that the other needs, and a pass takes from three
to more than twenty times as long. With a core for each it takes two to three times as long, methods and plain decoding
alike.
"""

from __future__ import annotations

import os

import psutil

PARALLEL = 1 << 20
"""Elements that are enough for all threads to take part in an operation."""


def spread_threads(threads: int | None = None) -> bool:
    """Tie the calling thread, and each thread that torch starts for it, to a core. Return whether that was done.

    threads: how many compute; None: torch's own number.

    It is done on Linux, once, before torch first computes here in parallel: threads that have started cannot be told
    from others. It is not done where there are fewer threads than cores: the system finds a free one for each.
    """
    import torch

    if not hasattr(os, "sched_setaffinity"):
        return False
    if threads is not None:
        torch.set_num_threads(threads)
    cores, before = sorted(os.sched_getaffinity(0)), _threads()
    torch.ones(PARALLEL).sum()
    team = [0, *sorted(_threads() - before)]  # 0: the calling thread
    if len(team) == 1 or len(team) != len(cores):
        return False
    for thread, core in zip(team, cores, strict=True):
        os.sched_setaffinity(thread, {core})
    return True


def all_cores() -> set[int]:
    """The cores of all threads of this process. A child process gets only those of the thread that starts it."""
    return set().union(*map(os.sched_getaffinity, _threads()))


def _threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}
