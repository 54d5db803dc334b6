"""What differs between a processor and a GPU: how host values get there, and how time is measured.

A GPU works through a queue. The host runs ahead and waits for it once a round, when it reads what was accepted. So
functions that run within a round do not wait: host values travel from pinned memory, and passes are timed by events in
the queue, which are read when the generation is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specrig.runtime.replay import Replay

Positions = Sequence[int] | Sequence[range]
"""Of each row of a batch one position, or as many in every row, one after another."""


def on_host(device: torch.device) -> bool:
    """Whether the device is the processor itself: reading a tensor is no wait, and few values are better handled without
    torch. The weights of a pass drive all other code out of the processor's caches, so each of torch's operations behind
    it costs up to ten times what it costs alone.
    """
    return device.type == "cpu"


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Host values as a tensor there, without waiting for the device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


@lru_cache(256)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Indices that are the same every round, as a tensor on the device; it is made once."""
    with torch.inference_mode(False):  # else a tensor made in a generation could not be used outside of one
        return torch.tensor(values, device=device)


def filled(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Rows of token ids with zeros behind shorter rows, `width` ids each."""
    return [[*row, *[0] * (width - len(row))] for row in rows]


def padded(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> Tensor:
    """Rows of token ids as a tensor `[B, width]`: left-aligned, zeros behind shorter rows."""
    return on_device(filled(rows, width), device).view(len(rows), width)


def at_each(states: Tensor, positions: Sequence[int]) -> Tensor:
    """Of `states` `[B, n, D]` the one at `positions[b]` of each row b: `[B, D]`."""
    if len(positions) == 1:
        return states[:, positions[0]]
    return states[torch.arange(len(positions), device=states.device), on_device(positions, states.device)]


def spans(positions: Positions) -> list[range]:
    """The positions of each row."""
    return [range(at, at + 1) if isinstance(at, int) else at for at in positions]


def in_each(states: Tensor, positions: Positions) -> Tensor:
    """Of `states` `[B, n, D]` those at `positions[b]` of each row b, m a row: `[B, m, D]`."""
    rows = spans(positions)
    if len(rows) == 1:
        return states[:, rows[0].start : rows[0].stop]
    index = on_device([list(row) for row in rows], states.device)
    return states[torch.arange(len(rows), device=states.device).unsqueeze(1), index]


def now(device: torch.device) -> float:
    """Seconds on `clock`, which is read when the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def clock() -> float:
    """Seconds on a clock that leaves out the recording and the timing of passes."""
    return perf_counter() - Replay.spent


class Stopwatch:
    """The time of bare forward passes, by their width (tokens a row)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spent: dict[int, list[float]] = {}
        self._open: list[tuple[int, Any, Any]] = []
        self._events: list[Any] = []  # of timings that were read, to be used again

    def start(self) -> Any:
        """Start timing a pass; returns the mark that `stop` needs."""
        return self._event() if self.device.type == "cuda" else perf_counter()

    def stop(self, width: int, mark: Any) -> None:
        """The pass that began at `mark` ends here. width: its tokens a row."""
        if self.device.type == "cuda":
            self._open.append((width, mark, self._event()))
        else:
            self._add(width, perf_counter() - mark)

    def clear(self) -> None:
        """Forget all passes timed so far."""
        self._events += [event for _, *pair in self._open for event in pair]
        self._open.clear()
        self._spent.clear()

    def totals(self) -> dict[int, tuple[int, float]]:
        """Width -> (calls, seconds) since `clear`; waits for the device."""
        if self._open:
            self._open[-1][2].synchronize()
        for width, begun, ended in self._open:
            self._add(width, begun.elapsed_time(ended) / 1e3)
            self._events += (begun, ended)
        self._open.clear()
        return {width: (int(calls), seconds) for width, (calls, seconds) in self._spent.items()}

    def _add(self, width: int, seconds: float) -> None:
        entry = self._spent.setdefault(width, [0, 0.0])
        entry[0] += 1
        entry[1] += seconds

    def _event(self) -> Any:
        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event
