"""Digests of everything that decides a cell's result. Records with another digest are stale, and their cell is measured
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.measurement.records import RecordError, read_records
from specrig.models.endpoint import endpoint_of
from specrig.models.pair import PairFiles
from specrig.provenance.digests import code_digest
from specrig.provenance.environment import model_digest
from specrig.runtime.gpus import resolve_device
from specrig.tasks import Prompt

if TYPE_CHECKING:
    from specrig.study.study import Study


def cell_digests(
    study: Study, cells: Sequence[Cell], pair: PairFiles, prompts: dict[str, list[Prompt]], replicate: int = 0
) -> dict[Cell, str]:
    """Return cell -> digest of the cell, the study's settings, the prompts, the models and the code that runs it.

    pair: where the models lie; prompts: task -> its prompts; replicate: the number of the replicate, from 0. How many
    replicates the study has does not count.
    """
    models: dict[str, Any] = {
        name: model_digest(source) or "@".join(filter(None, (source, pair.revisions.get(name))))
        for name, source in pair.sources.items()
    }
    if pair.simulated_acceptance is not None:
        models["simulated acceptance"] = pair.simulated_acceptance
    counts = {(cell.task, study.grid.prompt_count(cell.batch_size)) for cell in cells}
    texts = {
        (task, count): digest([(prompt.id, prompt.text) for prompt in prompts[task][:count]]) for task, count in counts
    }
    settings = [
        study.seed,
        study.max_new_tokens,
        study.repeats,
        study.warmup,
        pair.dtype,
        [pair.tensor_parallel, pair.quantization, pair.gpu_memory_utilization, pair.max_model_len],
        resolve_device(study.device),
        study.threads,
        *([f"replicate {replicate}"] if replicate else []),
    ]
    result = {}
    for cell in cells:
        code = job_digest(cell.engine, cell.method)
        servers = [endpoint_of(each, pair.servers) for each in (cell, baseline_of(cell))]
        options = pair.engine_options.get(cell.engine, {})
        own = texts[cell.task, study.grid.prompt_count(cell.batch_size)]
        result[cell] = digest([cell.model_dump(), settings, options, own, models, code, servers])
    return result


def job_digest(engine: str, method: str) -> str:
    """Digest of the code that measures with `engine` and `method`, the drafters that the method imports included."""
    return code_digest("specrig.measurement.runner", *method_modules(engine, method))


def method_modules(engine: str, method: str) -> tuple[str, ...]:
    """The modules of an engine, of a method, and of the service that runs the method's draft model."""
    drafter = methods()[method]
    service = ("specrig.services.model",) if drafter.uses_service else ()
    return engines()[engine].__module__, drafter.__module__, *service


def measured(path: Path, expected: str) -> bool:
    """Whether the record file at `path` is complete and all of its records have the digest `expected`."""
    if not path.is_file():
        return False
    try:
        return all(record.digest == expected for record in read_records(path))
    except RecordError:
        return False


def baseline_of(cell: Cell) -> Cell:
    """The baseline's cell for `cell`: autoregressive, with the same engine, pair, task, temperature and batch size.

    The batch size is 1 instead for a method whose baseline runs its prompts one by one.
    """
    batch_size = 1 if methods()[cell.method].baseline_alone else cell.batch_size
    return cell.model_copy(
        update={"method": "autoregressive", "k": 0, "variant": "", "options": {}, "batch_size": batch_size}
    )
