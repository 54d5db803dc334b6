"""What a job asks a cluster for: memory, minutes and GPUs, from the pair's row and the plan's estimates. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specrig.planning.estimate import TRAINING, WORKSPACE_BYTES, PairSize, process_seconds, shape_taught
from specrig.study.study import Study
from specrig.training.budget import training_flop, training_memory

STARTING = 10
"""Minutes for starting Python and loading models."""
MARGIN = 2
"""Times the estimated minutes: the estimate is of memory bandwidth and arithmetic alone. A job that runs out of time goes on in another."""
UNKNOWN_MINUTES, UNKNOWN_MB = 240, 16_000
"""Asked for where the target's size is not known."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks for. memory_mb: megabytes of main memory. minutes: of run time. gpus: of its node, 0 for a job on the CPU."""

    memory_mb: int = UNKNOWN_MB
    minutes: int = UNKNOWN_MINUTES
    gpus: int = 0


def measuring_demand(study: Study, process: tuple[str, str, str], size: PairSize) -> Demand:
    """Return what the measuring job of one process asks for. process: a key of the grid's `processes`. size: of its pair.

    On a GPU the models pass through main memory, so a job asks for as much of it as the plan estimates of the GPU's.
    """
    gpus = study.rows.pairs[size.pair].tensor_parallel if study.uses_gpu() else 0
    if size.memory_bytes is None:
        return Demand(gpus=gpus)
    return _demand(size.memory_bytes, process_seconds(study, process, size), gpus)


def training_demand(study: Study, pair: str, model: str) -> Demand:
    """Return what training one model of a pair asks for. model: a name in `training.stages.STAGES`, or `joint` for Medusa-2.

    The time that a draft or head takes includes the text that the target writes for it.
    """
    gpus, target = int(study.uses_gpu()), shape_taught(study, pair)
    if target is None:
        return Demand(gpus=gpus)
    speed, _ = TRAINING["cuda" if study.uses_gpu() else "cpu"]
    memory = training_memory(study.training, model, target) + WORKSPACE_BYTES
    return _demand(memory, training_flop(study.training, [model], target) / speed, gpus)


def _demand(memory_bytes: float, seconds: float, gpus: int) -> Demand:
    return Demand(math.ceil(memory_bytes / 1e6), STARTING + math.ceil(MARGIN * seconds / 60), gpus)
