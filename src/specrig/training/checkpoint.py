"""The last checkpoint of an unfinished training, from which the training goes on where it was killed.

It then sees the same batches in the same order. The same weights as those of a training that was never killed are no
promise.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specrig.training.optimizer import Optimizer

FILE = "checkpoint.pt"
EVERY_S = 180.0
"""Seconds between two checkpoints."""


class State:
    """What a training changes: modules with their optimisers, and the random generators of its noise."""

    def __init__(
        self,
        folder: Path,
        key: str,
        parts: Mapping[str, tuple[nn.Module, Optimizer]],
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """folder: where the checkpoint lies; one of a training with the same `key` is restored at once. parts: name ->
        (module, optimiser).
        """
        self.path, self.key, self.parts, self.generators = folder / FILE, key, parts, generators
        self.saved = time.monotonic()
        if found := _read(folder, key):
            for generator, state in zip(generators, found["generators"], strict=True):
                generator.set_state(state)
            for name, (module, optimizer) in parts.items():
                module.load_state_dict(found["modules"][name])
                optimizer.load_state_dict(found["optimizers"][name])

    @property
    def optimizers(self) -> list[Optimizer]:
        """Of every part."""
        return [optimizer for _, optimizer in self.parts.values()]

    def due(self) -> bool:
        """Whether the last checkpoint is old enough to be replaced."""
        return time.monotonic() - self.saved >= EVERY_S

    def save(self, step: int) -> None:
        """Write the state after `step`. Whenever the process is killed, either the last checkpoint or this one is
        there, whole.
        """
        content = {
            "key": self.key,
            "step": step,
            "modules": {name: module.state_dict() for name, (module, _) in self.parts.items()},
            "optimizers": {name: optimizer.state_dict() for name, (_, optimizer) in self.parts.items()},
            "generators": [generator.get_state() for generator in self.generators],
        }
        unfinished = self.path.with_suffix(".unfinished")
        torch.save(content, unfinished)
        unfinished.replace(self.path)
        self.saved = time.monotonic()


def steps_done(folder: Path, key: str) -> int:
    """Steps that the checkpoint in `folder` has taken; 0 where there is none, or one of another training."""
    found = _read(folder, key)
    return int(found["step"]) if found else 0


def _read(folder: Path, key: str) -> dict[str, Any] | None:
    """The checkpoint of a training with this key; None where there is none that can be read."""
    try:
        found: dict[str, Any] = torch.load(folder / FILE, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError):
        return None
    return found if found.get("key") == key else None
