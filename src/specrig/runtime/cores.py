"""A core of its own for each of torch's threads, while a job measures.

The threads of a product wait for each other without sleeping. Where another program keeps a core busy, the system may
leave two of them on one core for minutes. Each then waits away the time that the other needs, and a pass takes from three
to more than twenty times as long. With a core for each it takes two to three times as long, methods and plain decoding
alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import psutil

PARALLEL = 1 << 20
"""Elements that are enough for all threads to take part in an operation."""


@contextmanager
def threads_on_cores(threads: int | None = None) -> Iterator[bool]:
    """Meanwhile the calling thread, and each thread that torch has started for it, has a core of its own. Yields whether
    that is so.

    threads: how many compute; None: torch's own number.

    It is so on Linux, where torch first computes in parallel here: threads that started before cannot be told from
    others. It is not so where there are fewer threads than cores: the system finds a free one for each.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    team = _team() if len(cores) == torch.get_num_threads() > 1 else ()
    tied = len(team) == len(cores) > 0
    if tied:
        for thread, core in zip(team, cores, strict=True):
            _allow(thread, [core])
    try:
        yield tied
    finally:
        if tied:
            for thread in team:
                _allow(thread, cores)


@cache
def _team() -> tuple[int, ...]:
    """The calling thread, which is 0 to the system, and those that start when it first computes in parallel."""
    import torch

    before = _threads()
    torch.ones(PARALLEL).sum()
    return 0, *sorted(_threads() - before)


def all_cores() -> set[int]:
    """The cores of all threads of this process. A child process gets only those of the thread that starts it."""
    cores: set[int] = set()
    for thread in _threads():
        with suppress(ProcessLookupError):  # it has just ended
            cores |= os.sched_getaffinity(thread)
    return cores


def _threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def _allow(thread: int, cores: Iterable[int]) -> None:
    with suppress(ProcessLookupError):  # torch has ended it
        os.sched_setaffinity(thread, cores)
