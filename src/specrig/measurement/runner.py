"""Measures cells: baseline and methods alternate prompt by prompt in one process, and finished cells are kept.

One process loads the models once and measures cells of one or more methods. Cells with the same task, temperature and
batch size form blocks, whatever their method: they share prompts, seeds and the baseline's runs. All blocks are
repeated until their times settle (`repeats`), one after the other, so that the repeats of a prompt lie minutes apart.
A cell's records are written as soon as it is done. What is known of the others lies in parts meanwhile, from which a job
that was killed, or whose engine died in a baseline, goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell, digest
from specrig.engines.base import Engine
from specrig.files import write_atomically
from specrig.measurement.block import Block
from specrig.measurement.blocks import in_turn
from specrig.measurement.energy import Meter, metered
from specrig.measurement.plan import MeasurementPlan, Part, gpus_used, resolve
from specrig.measurement.progress import Advance, progress
from specrig.measurement.recording import write_index
from specrig.provenance.bandwidth import memory
from specrig.provenance.environment import capture
from specrig.provenance.load import Load
from specrig.runtime.cores import threads_on_cores

if TYPE_CHECKING:
    from specrig.study.study import Study


def measure(
    study: Study,
    engine: str,
    pair: str,
    method_names: Sequence[str],
    part: Part | None = None,
    again: bool = False,
) -> None:
    """Measure the cells of some methods on one engine and pair that are not measured yet.

    part: measure only this; None: all cells on all prompts. again: measure also what is measured.

    Writes the record file of each cell below the study's results folder as soon as its block is done, in the end
    `environment.json` and `index.json` of each method. A cell that fails is listed in the index with the reason and
    does not stop the others. Raises EngineError and ModelError if the target cannot be loaded, EngineError for what the
    study does not have.
    """
    plan = resolve(study, engine, pair, method_names, part, again)
    failed = dict(plan.unusable)
    if plan.pending:
        failed |= _run(plan, f"{engine}/{pair}")
    for method, cells in plan.cells.items():
        measured = {cell.slug: plan.digests[cell] for cell in cells if cell not in failed}
        write_index(plan.folders[method], measured, {cell.slug: failed[cell] for cell in cells if cell in failed})


def _run(plan: MeasurementPlan, title: str) -> dict[Cell, str]:
    """Measure the pending cells of a plan; returns the reason for each cell that failed."""
    for method in plan.pending:  # what is written from now on is in no index until the end
        (plan.folders[method] / "index.json").unlink(missing_ok=True)
    failed: dict[Cell, str] = {}
    with ExitStack() as open_things:
        if plan.engine.in_process and plan.device == "cpu":
            open_things.enter_context(threads_on_cores(plan.threads))
        engine = open_things.enter_context(plan.engine(plan.pair, device=plan.device, threads=plan.threads))
        meter = open_things.enter_context(_metered(engine))
        environment = capture(plan.pair, device=plan.device, threads=plan.threads)
        environment |= engine.environment() | {"energy": meter.source}
        load = Load()
        _describe(plan, environment)
        groups = in_turn(chain.from_iterable(plan.pending.values()), paired=engine.paired)
        blocks = [[Block(plan, engine, meter, cells) for cells in group] for group in groups]
        measure_all = _alternate if engine.paired else _one_after_another
        with progress(title, _units(blocks, engine.paired)) as advance:
            for group in blocks:
                measure_all(group, advance)
                failed |= {cell: block.failed[cell] for block in group for cell in block.cells if cell in block.failed}
        # Last: heads are loaded by now, and what memory is read with is in no cell's peak memory.
        if engine.loads_pairs:
            environment |= engine.environment() | {"memory": memory(plan.device), "load": load.so_far()}
            _describe(plan, environment)
    return failed


def _units(blocks: Sequence[Sequence[Block]], paired: bool) -> int:
    """Units of progress: groups of prompts in the least repeats, times (cells + the baseline) if these do not alternate."""
    made = [block for group in blocks for block in group]
    turns = (len(block.groups) * (1 if paired else len(block.running)) for block in made)
    return sum(turns) * made[0].plan.repeats.least


def _describe(plan: MeasurementPlan, environment: Mapping[str, Any]) -> None:
    """Write the description of the machine beside the records of each method that is measured."""
    for method in plan.pending:
        write_atomically(plan.folders[method] / "environment.json", json.dumps(environment, indent=1))


def _metered(engine: Engine) -> AbstractContextManager[Meter]:
    """The meter of an engine's devices: all GPUs over which it splits the target; none for servers elsewhere."""
    if not engine.loads_pairs:
        return nullcontext(Meter())
    return metered(engine.device, gpus_used(type(engine), engine.pair.tensor_parallel))


def _alternate(blocks: Sequence[Block], advance: Advance) -> None:
    """Repeat all blocks until they are done: prompt by prompt the baseline and all cells in turn, then the whole again."""
    for _ in range(blocks[0].plan.repeats.most):
        for block in blocks:
            if block.is_unfinished():
                block.walk(block.running, advance)
            block.finish()


def _one_after_another(blocks: Sequence[Block], advance: Advance) -> None:
    """Run the baselines once, then each cell until it is done, then the baselines until they are done.

    For engines that cannot alternate. Starting such an engine takes long, so cells with the same k and options follow
    one another, and the baseline's engine starts twice.
    """
    for block in blocks:
        if not all(block.measured[block.baseline]):  # else an interrupted job ran it
            block.walk([block.baseline], advance)
            block.finish()
    standing = [(block, cell) for block in blocks if block.baseline not in block.failed for cell in block.cells]
    order = list(dict.fromkeys(_engine_of(cell) for _, cell in standing))
    for block, cell in sorted(standing, key=lambda entry: order.index(_engine_of(entry[1]))):
        while cell != block.baseline and block.is_open(cell):
            block.walk([cell], advance)
            block.finish()
    for block in blocks:
        while block.is_unfinished() and block.is_open(block.baseline):
            block.walk([block.baseline], advance)
        block.finish()


def _engine_of(cell: Cell) -> str:
    """Digest of k and options; cells of a job with the same digest run in one started engine."""
    return digest([cell.k, cell.options])
