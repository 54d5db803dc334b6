"""Random Medusa heads of the lab's target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specrig.decoding.heads import medusa


def make(folder: Path, lab: Any) -> None:
    model = lab.target
    config = medusa.heads_config(hidden=model.hidden_size, vocabulary=model.vocab_size, heads=4)
    medusa.save(folder, config, medusa.random_tensors(config, seed=4))
