"""Measures a job: baseline and methods alternate prompt by prompt in one process, and finished cells are kept.

`unpaired` does the same for engines that cannot alternate.

A job (engine, pair, method) loads its models once. Its cells with the same task, temperature and batch size form a block: they
share prompts, seeds and the baseline, and run interleaved, so that a drift of the machine's clock affects all of them alike.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import Engine, EngineError
from specrig.measurement.energy import Meter, metered
from specrig.measurement.freshness import baseline_of, cell_digests, measured
from specrig.measurement.progress import Advance, progress
from specrig.measurement.prompts import prepared
from specrig.measurement.recording import as_run, write_index
from specrig.measurement.records import Probe, Record, Run, replicate_folder, write_atomically, write_records
from specrig.measurement.surroundings import Surroundings
from specrig.measurement.unpaired import measure_unpaired
from specrig.models.hub import at_commits
from specrig.provenance.bandwidth import memory
from specrig.provenance.environment import capture
from specrig.provenance.trained_for import check_trained_for
from specrig.tasks import Prompt, PromptError

if TYPE_CHECKING:
    from specrig.study.study import Study

WARMUP_TOKENS = 16


def measure(study: Study, engine_name: str, pair_name: str, method: str, root: Path, replicate: int = 0) -> None:
    """Measure the cells of one job's replicate that are not measured yet, below `root` (the study's results folder).

    Writes the record file of each cell as soon as its block is done, then `environment.json` and `index.json`. A cell that fails
    is listed in the index with the reason and does not stop the others. Raises EngineError if the pair cannot be loaded, and for
    a replicate that the study does not have.
    """
    job = (engine_name, pair_name, method)
    cells = [cell for cell in study.grid.cells if cell.job == job]
    if not cells:
        raise EngineError(f"study {study.study} has no cells of {'/'.join(job)}")
    if not 0 <= replicate < study.replicates:
        raise EngineError(
            f"study {study.study} has {study.replicates} replicates, counted from 0: there is no replicate {replicate}"
        )
    folder = replicate_folder(root / "records" / engine_name / pair_name / method, replicate)
    pair = study.paths.pair_files(pair_name, root).only(methods()[method].needs)
    prompts: dict[str, list[Prompt]] = {}
    failed: dict[str, str] = {}
    for task in dict.fromkeys(cell.task for cell in cells):
        try:
            prompts[task] = prepared(study, task, pair, root)
        except PromptError as error:
            print(f"task {task}: {error}", file=sys.stderr)
            failed |= {cell.slug: str(error) for cell in cells if cell.task == task}
    usable = [cell for cell in cells if cell.task in prompts]
    digests = cell_digests(study, usable, pair, prompts, replicate)
    pending = [cell for cell in usable if not measured(folder / f"{cell.slug}.jsonl", digests[cell])]
    if pending:
        check_trained_for(pair)
        device, pair = study.resolved_device(), at_commits(pair)
        with ExitStack() as open_things:
            engine = open_things.enter_context(engines()[engine_name](pair, device=device, threads=study.threads))
            meter = open_things.enter_context(_metered(engine))
            machine = Surroundings(device, here=engine.loads_pairs, in_process=engine.paired)
            environment = capture(pair, device=device, threads=study.threads) | engine.environment() | {"energy": meter.source}
            write_atomically(folder / "environment.json", json.dumps(environment, indent=1))
            grouped = [
                (block, prompts[block[0].task][: study.grid.prompt_count(block[0].batch_size)]) for block in _blocks(pending)
            ]
            total = sum(_units(study, engine, block, len(own)) for block, own in grouped)
            with progress("/".join(job), total) as advance:
                blocks = [
                    _Block(study, replicate, engine, meter, machine, block, own, digests, folder, advance)
                    for block, own in grouped
                ]
                if engine.paired:
                    for block in blocks:
                        failed |= _measure_paired(block, last=block is blocks[-1])
                else:
                    failed |= measure_unpaired(blocks, digests, folder)
            if engine.loads_pairs:  # last, so that its buffers are in no cell's peak memory
                write_atomically(folder / "environment.json", json.dumps(environment | {"memory": memory(device)}, indent=1))
    write_index(folder, cells, digests, failed)


def _metered(engine: Engine) -> AbstractContextManager[Meter]:
    """The meter of the devices that an engine uses: all GPUs over which it splits the target; none for servers elsewhere."""
    if not engine.loads_pairs:
        return nullcontext(Meter())
    return metered(engine.device, 1 if engine.paired else engine.pair.tensor_parallel)


def _blocks(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    # Cells of different batch sizes group their prompts differently, even where they share a baseline that runs alone.
    blocks: dict[tuple[Cell, int], list[Cell]] = {}
    for cell in cells:
        blocks.setdefault((baseline_of(cell), cell.batch_size), []).append(cell)
    yield from blocks.values()


def _units(study: Study, engine: Engine, block: list[Cell], prompts: int) -> int:
    """Units of progress of a block: its groups of prompts, times (cells + two baseline runs) if cells cannot alternate."""
    groups = -(-prompts // block[0].batch_size) * study.repeats
    return groups if engine.paired else groups * (len(block) + 2)


def _groups(prompts: list[Prompt], batch_size: int) -> list[list[Prompt]]:
    return [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]


class _Block:
    """Cells that share task, temperature, batch size and baseline, with their prompts. It runs them and writes their records."""

    def __init__(
        self, study: Study, replicate: int, engine: Engine, meter: Meter, machine: Surroundings, cells: list[Cell],
        prompts: list[Prompt], digests: dict[Cell, str], folder: Path, advance: Advance,
    ) -> None:  # fmt: skip
        self.study, self.replicate, self.engine, self.meter, self.machine = study, replicate, engine, meter, machine
        self.cells, self.digests, self.folder = cells, digests, folder
        self.baseline = baseline_of(cells[0])
        self.groups = _groups(prompts, cells[0].batch_size)
        self.tokens = {prompt.id: engine.encode(prompt.text) for prompt in prompts}
        self.failed: dict[str, str] = {}
        self.rounds = [(repeat, number) for repeat in range(study.repeats) for number in range(len(self.groups))]
        self.before: Probe | None = machine.probe()
        self.after: Probe | None = None
        self._advance = advance

    def advance(self) -> None:
        """Show that one more group of prompts is done."""
        cell = self.cells[0]
        self._advance(f"{cell.task} T={cell.temperature:g} b={cell.batch_size}")

    def warm_up(self, cell: Cell) -> None:
        """Run the first group of prompts `study.warmup` times without recording it."""
        for _ in range(self.study.warmup):
            self.attempt(cell, self.groups[0], 0, min(WARMUP_TOKENS, self.study.max_new_tokens))

    def run_alone(self, cell: Cell) -> list[list[Run]] | None:
        """Run all prompts of a cell, group by group; returns the runs of each group, or None if the cell fails."""
        self.failed.pop(cell.slug, None)
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
        if cell.slug in self.failed:
            return None
        try:
            return self._run(cell, group, repeat, limit)
        except Exception as error:
            self.failed[cell.slug] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            print(f"{cell.name} failed: {self.failed[cell.slug]}", file=sys.stderr)
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

    def write(self, cell: Cell, runs: list[list[Run]], baseline: list[list[Run]], drifts: Sequence[float | None]) -> None:
        """Write the cell's record file from its runs and the baseline's, both with one list for each of `rounds`."""
        records, after = [], self.after or self.machine.probe()
        for (repeat, number), found, base, drift in zip(self.rounds, runs, baseline, drifts, strict=True):
            for prompt, run, plain in zip(self.groups[number], found, base, strict=True):
                records.append(
                    Record(
                        cell=cell,
                        digest=self.digests[cell],
                        prompt_id=prompt.id,
                        group=number,
                        repeat=repeat,
                        replicate=self.replicate,
                        seed=self._seed(cell, prompt, repeat),
                        prompt_tokens=len(self.tokens[prompt.id]),
                        text=self.engine.decode(run.tokens),
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
        write_records(self.folder / f"{cell.slug}.jsonl", records)


def _measure_paired(block: _Block, *, last: bool) -> dict[str, str]:
    """Alternate baseline and cells group by group and write the records; returns slug -> reason for each cell that failed.

    last: whether this is the job's last block, after which the machine is probed in any case.
    """
    block.before = block.machine.probe()
    running = list(dict.fromkeys([block.baseline, *block.cells]))  # one of the cells may be the baseline itself
    found: dict[Cell, list[list[Run]]] = {cell: [] for cell in running}
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
    if block.baseline.slug in block.failed:
        reason = block.failed.pop(block.baseline.slug)
        return {cell.slug: f"the baseline failed: {reason}" for cell in block.cells}
    for cell in block.cells:
        if cell.slug not in block.failed:
            block.write(cell, found[cell], found[block.baseline], [None] * len(block.rounds))
    return block.failed


def is_lossless(cell: Cell) -> bool:
    """Whether the cell's acceptance rule keeps the target's distribution."""
    method = methods()[cell.method]
    return method.lossless(method.Options.model_validate(cell.options))


def seed_of(study_seed: int, task: str, prompt_id: str, repeat: int, replicate: int = 0) -> int:
    """The seed of a prompt. It is the same for the baseline and every method, and another for each repeat and replicate."""
    text = f"{study_seed}/{task}/{prompt_id}/{repeat}" + (f"/{replicate}" if replicate else "")
    return int.from_bytes(sha256(text.encode()).digest()[:4]) & 0x7FFFFFFF
