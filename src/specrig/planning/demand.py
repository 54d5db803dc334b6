"""What a job asks a cluster for: memory and minutes, from the pair's row and the plan's estimates. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specrig.planning.estimate import TRAINING, WORKSPACE_BYTES, PairSize, process_seconds, teacher_shape
from specrig.study.study import Study
from specrig.training.budget import training_flop, training_memory

STARTING = 10
"""Minutes for starting Python and loading models."""
MARGIN = 2
"""Times the estimated minutes: the estimate is of memory bandwidth and arithmetic alone. A job that runs out of time
goes on in another.
"""
UNKNOWN_MINUTES, UNKNOWN_MB = 240, 16_000
"""Asked for where the target's size is not known."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks for. memory_mb: megabytes of main memory. minutes: of run time."""

    memory_mb: int = UNKNOWN_MB
    minutes: int = UNKNOWN_MINUTES


def measuring_demand(study: Study, process: tuple[str, str, str], size: PairSize) -> Demand:
    """Return what the measuring job of one process asks for. process: a key of the grid's `processes`. size: of its
    pair.

    On a GPU the models pass through main memory, so a job asks for as much of it as the plan estimates of the GPU's.
    """
    return Demand() if size.memory_bytes is None else _demand(size.memory_bytes, process_seconds(study, process, size))


def training_demand(study: Study, pair: str, model: str) -> Demand:
    """Return what training one model of a pair asks for. model: a name in `training.stages.STAGES`, or `joint` for
    Medusa-2.

    The time that a draft or head takes includes the text that the target writes for it.
    """
    target = teacher_shape(study, pair)
    if target is None:
        return Demand()
    speed, _ = TRAINING["cuda" if study.uses_gpu() else "cpu"]
    memory = training_memory(study.training, model, target) + WORKSPACE_BYTES
    return _demand(memory, training_flop(study.training, [model], target) / speed)


def _demand(memory_bytes: float, seconds: float) -> Demand:
    return Demand(math.ceil(memory_bytes / 1e6), STARTING + math.ceil(MARGIN * seconds / 60))
