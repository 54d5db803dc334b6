"""Forward passes that are recorded once as CUDA graphs and then replayed. A step of a large model is some five hundred
kernels, and launching them one by one takes the host longer than the device needs to run them.

A graph repeats the same kernels on the same addresses. So whatever changes from step to step (tokens, lengths, which
token sees which) goes in through tensors of fixed shape, which are overwritten before each replay. The results, too,
are always the same tensors: the next replay of the same shapes overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from specrig.errors import first_line
from specrig.runtime.types import fall_back

Function = Callable[..., tuple[Tensor, ...]]
Run = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
WARM_UPS = 2
"""Runs before the recording: libraries choose kernels and allocate in their first runs, which must not be recorded."""


def eager(function: Function) -> Run:
    """A `Run` that calls `function` directly, without a recording."""
    return lambda inputs: function(*inputs)


class Recording:
    """One recorded run: the tensors that it reads and writes, and what repeats it."""

    __slots__ = ("inputs", "outputs", "run")

    def __init__(self, inputs: list[Tensor], outputs: tuple[Tensor, ...], run: Callable[[], Any]) -> None:
        self.inputs, self.outputs, self.run = inputs, outputs, run

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Copy `inputs` to where the recording reads them, and replay it. The next call overwrites the results."""
        for held, tensor in zip(self.inputs, inputs, strict=True):
            held.copy_(tensor)
        self.run()
        return self.outputs


class Replay:
    """The recordings of one model's passes. A recording is found by its key and the shapes of its inputs."""

    spent: ClassVar[float] = 0.0
    """Seconds spent on recording and on timing passes (`Resources.pass_costs`), by all models. Both belong to starting up,
    whenever they happen, so `device.now` leaves them out.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows = 1
        """Passes of up to 8 tokens are padded to a multiple of this, wider ones to a multiple of 8."""
        self.failure: str | None = None
        """Why recording does not work here; None while it does. After a failure passes run without recordings."""
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None

    def recorded(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> Run:
        """The recording of `function` for inputs of these shapes; it is made now if there is none yet.

        The function must not wait for the device. It may depend only on `key`, on the inputs, and on tensors whose
        addresses do not change. Recording runs it several times on the same inputs, so a second run must leave
        everything as the first did.
        """
        if self.failure is not None:
            return eager(function)
        key = key, *(tensor.shape for tensor in inputs)
        if key not in self._recordings:
            started = perf_counter()
            try:
                self._recordings[key] = self.record(function, [tensor.clone() for tensor in inputs])
            except RuntimeError as error:
                self.failure = first_line(error)
                self.clear()
                fall_back(f"CUDA graphs cannot be used, passes run without them: {self.failure}")
                return eager(function)
            finally:
                Replay.spent += perf_counter() - started
        return self._recordings[key]

    def clear(self) -> None:
        """Forget every recording; to be called when a tensor that they read or write has moved."""
        self._recordings.clear()
        self._pool = None  # CUDA frees a pool with its last recording, and refuses it afterwards

    def record(self, function: Function, inputs: list[Tensor]) -> Recording:
        """Capture `function` on these inputs. Raises RuntimeError where CUDA refuses."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function(*inputs)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = function(*inputs)
        torch.cuda.synchronize(self.device)
        return Recording(inputs, outputs, graph.replay)


class Unrecorded(Replay):
    """Passes of the same few shapes, without recordings: `CachedModel.pad_passes` on a processor."""

    def recorded(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> Run:
        """`function` as it is."""
        return eager(function)
