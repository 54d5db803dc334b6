"""All that one process needs of a study to measure an engine and a pair, resolved once before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import Engine, EngineError
from specrig.measurement.blocks import baseline_of
from specrig.measurement.records import RecordError, read_records
from specrig.measurement.task_prompts import prepared
from specrig.models.endpoint import endpoint_of
from specrig.models.hub import at_commits
from specrig.models.pair import PairFiles
from specrig.provenance.digests import code_digest
from specrig.provenance.environment import model_digest
from specrig.provenance.trained_for import check_trained_for
from specrig.runtime.gpus import resolve_device
from specrig.tasks import Prompt, PromptError

if TYPE_CHECKING:
    from specrig.study.config import Repeats
    from specrig.study.study import Study


MEASURING = (
    *("cell", "decoding", "engines", "heads", "http_client", "measurement", "models", "runtime", "seeds", "services"),
    "tasks",
)
"""The packages that measuring uses."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some cells of a study on some of their prompts, whose records lie in a folder of their own.

    prompts: cell -> the slice of its task's prompts that it runs.
    """

    folder: Path
    prompts: Mapping[Cell, slice]


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """What one process measures, and all that decides it."""

    engine: type[Engine]
    pair: PairFiles
    """Where the models are that some method needs; models of the hub at their present commits."""
    device: str
    """`cuda` or `cpu`; the GPUs are this process's own."""
    threads: int | None
    seed: int
    max_new_tokens: int
    warmup: int
    repeats: Repeats
    cells: Mapping[str, Sequence[Cell]]
    """Method -> its cells."""
    folders: Mapping[str, Path]
    """Method -> the folder of its records."""
    prompts: Mapping[Cell, Sequence[Prompt]]
    """Cell -> the prompts that it runs, as the engine encodes them; enough to fill a batch."""
    unusable: Mapping[Cell, str]
    """Cells whose prompts cannot be used -> why."""
    digests: Mapping[Cell, str]
    """Cell -> digest of all that decides its result: itself, the settings, the prompts, the models and the code."""
    pending: Mapping[str, Sequence[Cell]]
    """Method -> its cells to measure: those whose records are missing or have another digest."""

    def records(self, cell: Cell) -> Path:
        """The file with a cell's records."""
        return self.folders[cell.method] / f"{cell.slug}.jsonl"


def resolve(
    study: Study,
    engine: str,
    pair: str,
    method_names: Sequence[str],
    part: Part | None = None,
    again: bool = False,
) -> MeasurementPlan:
    """Resolve what a process measures: the cells of some methods on one engine and pair.

    part: measure only this; None: all cells on all prompts. again: measure also what is measured.

    Takes GPUs for this process where jobs share them. Raises EngineError for what the study does not have, ModelError
    for a draft or head that was trained for another target.
    """
    if absent := [name for name in method_names if (engine, pair, name) not in study.grid.by_method]:
        raise EngineError(f"study {study.study} has no cells of {engine}/{pair}/{absent[0]}")
    grid = {name: study.grid.by_method[engine, pair, name] for name in method_names}
    cells = {name: [each for each in grid[name] if part is None or each in part.prompts] for name in grid}
    files = study.paths.pair_files(pair, study.root)
    records = (part.folder if part else study.root / "records") / engine / pair
    files = files.only([need for name in method_names for need in methods()[name].needs])
    folders = {name: records / name for name in method_names}
    kind = engines()[engine]
    # Before anything can start CUDA, which reads once which GPUs are this process's.
    device = resolve_device(study.device, gpus_used(kind, files.tensor_parallel))
    every = [cell for each in cells.values() for cell in each]
    by_task, unusable = _prompts(study, {cell.task for cell in every}, files)
    chosen = part.prompts if part else {cell: slice(study.grid.prompt_count(cell.batch_size)) for cell in every}
    prompts = {cell: by_task[cell.task][chosen[cell]] for cell in every if cell.task in by_task}
    shared = [
        *(study.seed, study.max_new_tokens, study.repeats.model_dump(), study.warmup, files.dtype),
        [files.tensor_parallel, files.quantization, files.gpu_memory_utilization, files.max_model_len],
        *(device, study.threads),
    ]
    digests: dict[Cell, str] = {}
    pending: dict[str, list[Cell]] = {}
    for name, members in cells.items():
        usable = [cell for cell in members if cell in prompts]
        own = files.only(methods()[name].needs)  # what other methods need decides nothing here
        digests |= _cell_digests(usable, own, prompts, shared)
        stale = [
            cell for cell in usable if again or not is_current(folders[name] / f"{cell.slug}.jsonl", digests[cell])
        ]
        if stale:
            pending[name] = stale
    if pending:
        check_trained_for(files)
        files = at_commits(files)
    return MeasurementPlan(
        engine=kind,
        pair=files,
        device=device,
        threads=study.threads,
        seed=study.seed,
        max_new_tokens=study.max_new_tokens,
        warmup=study.warmup,
        repeats=study.repeats,
        cells=cells,
        folders=folders,
        prompts=prompts,
        unusable={cell: unusable[cell.task] for cell in every if cell.task in unusable},
        digests=digests,
        pending=pending,
    )


def model_digests(pair: PairFiles) -> dict[str, Any]:
    """Part of the pair -> digest of its files, or its id on the hub."""
    return {
        name: model_digest(source) or "@".join(filter(None, (source, pair.revisions.get(name))))
        for name, source in pair.sources.items()
    }


def gpus_used(engine: type[Engine], tensor_parallel: int) -> int:
    """How many GPUs an engine uses for a pair whose row says `tensor_parallel`."""
    return tensor_parallel if engine.splits else 1


def _prompts(study: Study, tasks: Iterable[str], pair: PairFiles) -> tuple[dict[str, list[Prompt]], dict[str, str]]:
    """The prompts of each task, and why those of others cannot be used."""
    found: dict[str, list[Prompt]] = {}
    unusable: dict[str, str] = {}
    for task in sorted(tasks):
        try:
            found[task] = prepared(study, task, pair, study.root)
        except PromptError as error:
            print(f"task {task}: {error}", file=sys.stderr)
            unusable[task] = str(error)
    return found, unusable


def _cell_digests(
    cells: Sequence[Cell],
    pair: PairFiles,
    prompts: Mapping[Cell, Sequence[Prompt]],
    shared: Sequence[Any],
) -> dict[Cell, str]:
    """Cell -> digest of all that decides its result. shared: settings of the study that all cells share."""
    models: dict[str, Any] = model_digests(pair)
    if pair.simulated_acceptance is not None:
        models["simulated acceptance"] = pair.simulated_acceptance
    texts: dict[tuple[str, ...], str] = {}
    found, code = {}, code_digest(*MEASURING)
    for cell in cells:
        run = cell.task, *(prompt.id for prompt in prompts[cell])
        if run not in texts:
            texts[run] = digest([(prompt.id, prompt.text) for prompt in prompts[cell]])
        servers = [endpoint_of(each, pair.servers) for each in (cell, baseline_of(cell))]
        options = pair.engine_options.get(cell.engine, {})
        found[cell] = digest([cell.model_dump(), shared, options, texts[run], models, code, servers])
    return found


def is_current(path: Path, expected: str, read: Callable[[Path], Iterable[Any]] = read_records) -> bool:
    """Whether the file of records at `path` is complete and all of its records have the digest `expected`."""
    try:
        return path.is_file() and {record.digest for record in read(path)} == {expected}
    except RecordError:
        return False
