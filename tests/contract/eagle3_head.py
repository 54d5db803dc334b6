"""A random EAGLE-3 head for the laboratory's target: wrong most of the time, which is what a contract test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specrig.decoding.heads.eagle3 import head_config, random_tensors, save


def make(folder: Path, lab: Any) -> None:
    config = head_config(lab.target.config)
    folder.mkdir(parents=True)
    save(folder, config, random_tensors(config, seed=5, deviation=0.15))
