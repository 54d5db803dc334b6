"""Measures cells: baseline and methods alternate prompt by prompt in one process, and finished cells are kept.

`unpaired` does the same for engines that cannot alternate.

One process loads the models once and measures cells of one or more methods. Those with the same task, temperature and
batch size form
blocks, whatever their method: they share prompts, seeds and the baseline, and run interleaved, so that a drift of the
machine's clock affects all of them alike.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import Engine
from specrig.measurement.blocks import blocks
from specrig.measurement.energy import Meter, metered
from specrig.measurement.freshness import baseline_of
from specrig.measurement.job import Job
from specrig.measurement.machine_state import MachineState
from specrig.measurement.progress import Advance, progress
from specrig.measurement.prompts import prepared
from specrig.measurement.recording import as_run, text_ends
from specrig.measurement.records import Probe, Record, Run, write_records
from specrig.measurement.unpaired import measure_unpaired
from specrig.models.hub import at_commits
from specrig.provenance.bandwidth import memory
from specrig.provenance.environment import capture
from specrig.provenance.trained_for import check_trained_for
from specrig.runtime.gpus import resolve_device
from specrig.tasks import Prompt, PromptError

if TYPE_CHECKING:
    from specrig.models.pair import PairFiles
    from specrig.study.study import Study

WARMUP_TOKENS = 16


def measure(study: Study, engine_name: str, pair_name: str, wanted: Sequence[str], replicate: int = 0) -> None:
    """Measure the cells of the methods `wanted` on one engine and pair, in one replicate, that are not measured yet.

    Writes the record file of each cell below the study's results folder as soon as its block is done, in the end
    `environment.json` and `index.json` of each method. A cell that fails is listed in the index with the reason and
    does not stop the others. Raises EngineError and ModelError if the target cannot be loaded, EngineError for what the
    study does not have.
    """
    resolve_device(study.device, _gpus(engines()[engine_name], study.rows.pairs[pair_name].tensor_parallel))
    jobs = {method: Job(study, (engine_name, pair_name, method), replicate) for method in wanted}
    pair = study.paths.pair_files(pair_name, study.root).only(
        [need for method in wanted for need in methods()[method].needs]
    )
    prompts, unusable = _prompts(study, {cell.task for job in jobs.values() for cell in job.cells}, pair)
    pending = {method: cells for method, job in jobs.items() if (cells := job.pending(pair, prompts, unusable))}
    if pending:
        check_trained_for(pair)
        device, pair = resolve_device(study.device), at_commits(pair)
        with ExitStack() as open_things:
            engine = open_things.enter_context(engines()[engine_name](pair, device=device, threads=study.threads))
            meter = open_things.enter_context(_metered(engine))
            machine = MachineState(device, here=engine.loads_pairs, in_process=engine.in_process)
            environment = (
                capture(pair, device=device, threads=study.threads) | engine.environment() | {"energy": meter.source}
            )
            for method in pending:
                jobs[method].describe(environment)
            # Engines that alternate run the cells of all methods in common blocks, the others method by method.
            groups = (
                [blocks(cell for cells in pending.values() for cell in cells)]
                if engine.paired
                else map(_whole, pending.values())
            )
            made = [
                [_Block(engine, meter, machine, cells, prompts[cells[0].task], jobs) for cells in group]
                for group in groups
            ]
            with progress(
                f"{engine_name}/{pair_name}", sum(block.units for group in made for block in group)
            ) as advance:
                for group in made:
                    _measure_group(group, advance)
            if engine.loads_pairs:  # last, so that its buffers are in no cell's peak memory
                for method in pending:
                    jobs[method].describe(environment | {"memory": memory(device)})
    for job in jobs.values():
        job.close()


def _prompts(study: Study, tasks: Iterable[str], pair: PairFiles) -> tuple[dict[str, list[Prompt]], dict[str, str]]:
    """The prompts of each task, and why those of others cannot be had."""
    found: dict[str, list[Prompt]] = {}
    unusable: dict[str, str] = {}
    for task in sorted(tasks):
        try:
            found[task] = prepared(study, task, pair, study.root)
        except PromptError as error:
            print(f"task {task}: {error}", file=sys.stderr)
            unusable[task] = str(error)
    return found, unusable


def _metered(engine: Engine) -> AbstractContextManager[Meter]:
    """The meter of the devices that an engine uses: all GPUs over which it splits the target; none for servers
    elsewhere.
    """
    if not engine.loads_pairs:
        return nullcontext(Meter())
    return metered(engine.device, _gpus(type(engine), engine.pair.tensor_parallel))


def _gpus(engine: type[Engine], tensor_parallel: int) -> int:
    """How many GPUs an engine uses for a pair whose row says `tensor_parallel`."""
    return tensor_parallel if engine.splits else 1


def _whole(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Blocks that are not parted: where the baseline cannot alternate, each part would run it twice more."""
    return blocks(cells, most=len(cells))


class _Block:
    """Cells that share task, temperature, batch size and baseline, with their prompts. It runs them and writes their
    records.

    jobs: method -> the job that the method's cells belong to.
    """

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        machine: MachineState,
        cells: list[Cell],
        prompts: list[Prompt],
        jobs: Mapping[str, Job],
    ) -> None:
        self.engine, self.meter, self.machine, self.cells, self.jobs = engine, meter, machine, cells, jobs
        any_job = jobs[cells[0].method]
        self.study, self.replicate = any_job.study, any_job.replicate
        self.baseline = baseline_of(cells[0])
        size = cells[0].batch_size
        prompts = prompts[: self.study.grid.prompt_count(size)]
        self.groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        self.tokens = {prompt.id: engine.encode(prompt.text) for prompt in prompts}
        self.failed: dict[Cell, str] = {}
        self.rounds = [(repeat, number) for repeat in range(self.study.repeats) for number in range(len(self.groups))]
        self.before: Probe | None = None
        self.after: Probe | None = None
        self.tell: Advance = lambda description="", amount=1: None

    @property
    def units(self) -> int:
        """Units of progress: groups of prompts, times (cells + two baseline runs) if cells cannot alternate."""
        return len(self.rounds) if self.engine.paired else len(self.rounds) * (len(self.cells) + 2)

    def advance(self) -> None:
        """Show that one more group of prompts is done."""
        cell = self.cells[0]
        self.tell(f"{cell.task} T={cell.temperature:g} b={cell.batch_size}")

    def warm_up(self, cell: Cell) -> None:
        """Run the first group of prompts `study.warmup` times without recording it."""
        for _ in range(self.study.warmup):
            self.attempt(cell, self.groups[0], 0, min(WARMUP_TOKENS, self.study.max_new_tokens))

    def run_alone(self, cell: Cell) -> list[list[Run]] | None:
        """Run all prompts of a cell, group by group; returns the runs of each group, or None if the cell fails."""
        self.failed.pop(cell, None)
        self.warm_up(cell)
        found = []
        for repeat, number in self.rounds:
            runs = self.attempt(cell, self.groups[number], repeat, self.study.max_new_tokens)
            self.advance()
            if runs is not None:
                found.append(runs)
        return found if len(found) == len(self.rounds) else None

    def attempt(self, cell: Cell, group: list[Prompt], repeat: int, limit: int) -> list[Run] | None:
        """Run one group of prompts; returns a run for each, or None if the cell fails or failed before (see `failed`)."""
        if cell in self.failed:
            return None
        try:
            return self._run(cell, group, repeat, limit)
        except Exception as error:
            self.failed[cell] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            print(f"{cell.name} failed: {self.failed[cell]}", file=sys.stderr)
            if os.environ.get("SPECRIG_DEBUG"):
                traceback.print_exc()
            return None

    def _run(self, cell: Cell, group: list[Prompt], repeat: int, limit: int) -> list[Run]:
        found: list[Run] = []
        for start in range(0, len(group), cell.batch_size):  # one batch, but for a baseline that runs alone
            batch = group[start : start + cell.batch_size]
            seeds = [self._seed(cell, prompt, repeat) for prompt in batch]
            prompts = [self.tokens[prompt.id] for prompt in batch]
            self.engine.reset_peak_memory()
            before, begun = self.meter.joules(), self.machine.begin()
            generations = self.engine.generate(cell, prompts, max_new_tokens=limit, seeds=seeds)
            load = self.machine.since(begun)
            measured = {"energy_j": self.meter.since(before), "device": self.meter.state(), "load": load}
            measured["peak_memory_mb"] = self.engine.peak_memory_mb()
            found += [as_run(generation).model_copy(update=measured) for generation in generations]
        return found

    def _seed(self, cell: Cell, prompt: Prompt, repeat: int) -> int:
        return seed_of(self.study.seed, cell.task, prompt.id, repeat, self.replicate)

    def write(
        self, cell: Cell, runs: list[list[Run]], baseline: list[list[Run]], drifts: Sequence[float | None]
    ) -> None:
        """Write the cell's record file from its runs and the baseline's, both with one list for each of `rounds`."""
        records, after, job = [], self.after or self.machine.probe(), self.jobs[cell.method]
        for (repeat, number), found, base, drift in zip(self.rounds, runs, baseline, drifts, strict=True):
            for prompt, run, plain in zip(self.groups[number], found, base, strict=True):
                records.append(
                    Record(
                        cell=cell,
                        digest=job.digests[cell],
                        prompt_id=prompt.id,
                        group=number,
                        repeat=repeat,
                        replicate=self.replicate,
                        seed=self._seed(cell, prompt, repeat),
                        prompt_tokens=len(self.tokens[prompt.id]),
                        text=self.engine.decode(run.tokens),
                        ends=text_ends(run.tokens, self.engine.decode),
                        baseline_text=self.engine.decode(plain.tokens),
                        baseline_alone=methods()[cell.method].baseline_alone,
                        lossless=self.engine.pair.simulated_acceptance is None and is_lossless(cell),
                        simulated_acceptance=self.engine.pair.simulated_acceptance,
                        run=run,
                        baseline=plain,
                        baseline_drift=drift,
                        before=self.before,
                        after=after,
                    )
                )
        write_records(job.path(cell), records)


def _measure_group(group: Sequence[_Block], advance: Advance) -> None:
    """Measure blocks of one engine: block by block where cells alternate, else the blocks of one job; failures go into
    their jobs.
    """
    for block in group:
        block.tell = advance
    if not group[0].engine.paired:
        for block in group:
            block.before = block.machine.probe()
        job = group[0].jobs[group[0].cells[0].method]
        job.failed |= measure_unpaired(group, job.digests, job.folder)
        return
    for block in group:
        for cell, reason in _measure_paired(block, last=block is group[-1]).items():
            block.jobs[cell.method].failed[cell] = reason


def _measure_paired(block: _Block, *, last: bool) -> dict[Cell, str]:
    """Alternate baseline and cells group by group and write the records; returns the reason for each cell that failed.

    last: whether this is the last block, after which the machine is probed in any case.
    """
    running = list(dict.fromkeys([block.baseline, *block.cells]))  # one of the cells may be the baseline itself
    found: dict[Cell, list[list[Run]]] = {cell: [] for cell in running}
    block.before = block.machine.probe()
    for cell in running:
        block.warm_up(cell)
    for repeat, number in block.rounds:
        # Who goes first rotates, so no cell always inherits a warm or a throttled machine.
        turn = (number + repeat) % len(running)
        for cell in running[turn:] + running[:turn]:
            runs = block.attempt(cell, block.groups[number], repeat, block.study.max_new_tokens)
            if runs is not None:
                found[cell].append(runs)
        block.advance()
    block.after = block.machine.probe(anew=last)
    if block.baseline in block.failed:
        reason = block.failed.pop(block.baseline)
        return dict.fromkeys(block.cells, f"the baseline failed: {reason}")
    for cell in block.cells:
        if cell not in block.failed:
            block.write(cell, found[cell], found[block.baseline], [None] * len(block.rounds))
    return block.failed


def is_lossless(cell: Cell) -> bool:
    """Whether the cell's acceptance rule keeps the target's distribution."""
    method = methods()[cell.method]
    return method.lossless(method.Options.model_validate(cell.options))


def seed_of(study_seed: int, task: str, prompt_id: str, repeat: int, replicate: int = 0) -> int:
    """The seed of a prompt. It is the same for the baseline and every method, and another for each repeat and
    replicate.
    """
    text = f"{study_seed}/{task}/{prompt_id}/{repeat}" + (f"/{replicate}" if replicate else "")
    return int.from_bytes(sha256(text.encode()).digest()[:4]) & 0x7FFFFFFF
