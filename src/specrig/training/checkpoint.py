"""An unfinished training on disk, so that a training that was killed can continue. Safetensors only.

A continued training gives the same weights as an uninterrupted one: modules, optimisers and generators are all stored,
and the batches depend only on the seed and the step. On a CPU the weights agree to the last bit. On a GPU, where sums
have no fixed order, two runs of the same training differ in the last digits, and so do an uninterrupted and a continued
one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specrig.training.optimizer import Optimizer

FILE = "checkpoint.safetensors"
EVERY_S = 30.0
SHARE = 0.05
"""The largest share of a training's time that writing checkpoints may take: to write a large model's state takes
seconds.
"""


class State:
    """Everything that a training changes: modules with their optimisers, and the random generators of its noise.

    folder: where the checkpoint lies; one of a training with the same `key` is restored at once. parts: name, without a
    dot -> (module, optimiser).
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        parts: Mapping[str, tuple[nn.Module, Optimizer]],
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self.path, self.key, self.parts, self.generators = folder / FILE, key, parts, generators
        self.saved, self.pause = time.monotonic(), EVERY_S
        if done := steps_done(folder, key):
            self._restore(load_file(self.path), done)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Of every part."""
        return [optimizer for _, optimizer in self.parts.values()]

    def due(self) -> bool:
        """Whether the last checkpoint is old enough to be replaced."""
        return time.monotonic() - self.saved >= self.pause

    def keep(self, step: int) -> None:
        """Write the state after `step`, if it is due."""
        if self.due():
            self.save(step)

    def save(self, step: int) -> None:
        """Write the state after `step`. Whenever the process is killed, either the last checkpoint or this one is
        there, whole.
        """
        begun = time.monotonic()
        tensors: dict[str, Tensor] = {f"generator.{n}": each.get_state() for n, each in enumerate(self.generators)}
        for part, (module, optimizer) in self.parts.items():
            tensors |= {f"{part}.weight.{name}": value for name, value in module.named_parameters()}
            tensors |= {f"{part}.{kind}.{name}": value for kind, name, value in optimizer.state(module)}
        unfinished = self.path.with_suffix(".unfinished")
        whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        save_file(whole, unfinished, metadata={"key": self.key, "step": str(step)})
        unfinished.replace(self.path)
        self.saved = time.monotonic()
        self.pause = max(EVERY_S, (self.saved - begun) / SHARE)

    def _restore(self, tensors: dict[str, Tensor], done: int) -> None:
        for number, generator in enumerate(self.generators):
            generator.set_state(tensors[f"generator.{number}"])
        named = [(key.split(".", 2), value) for key, value in tensors.items() if not key.startswith("generator.")]
        for part, (module, optimizer) in self.parts.items():
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(tensors[f"{part}.weight.{name}"])
            kept = {(kind, name): value for (own, kind, name), value in named if own == part}
            optimizer.restore(module, kept, done)


def steps_done(folder: Path, key: str) -> int:
    """Steps that the checkpoint in `folder` has taken; 0 where there is none, or one of another training."""
    try:
        with safe_open(folder / FILE, "pt") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError):
        return 0
    return int(metadata.get("step", 0)) if metadata.get("key") == key else 0
