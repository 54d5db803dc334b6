"""Measures cells: baseline and methods alternate prompt by prompt in one process, and finished cells are kept.

`unpaired` does the same for engines that cannot alternate.

One process loads the models once and measures cells of one or more methods. Cells with the same task, temperature and
batch size form blocks, whatever their method. They share prompts, seeds and the baseline and run interleaved, so that a
drift of the machine's clock affects all of them alike. When all cells are measured, those that the machine's signs call
disturbed are measured again (`attempts`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines.base import Engine
from specrig.files import write_atomically
from specrig.measurement.attempts import least_disturbed, write_attempts
from specrig.measurement.blocks import WARMUP_TOKENS, baseline_of, in_turn, is_lossless, seed_of
from specrig.measurement.energy import Meter, metered
from specrig.measurement.machine_state import MachineState
from specrig.measurement.plan import MeasurementPlan, Part, gpus_used, resolve
from specrig.measurement.progress import Advance, progress
from specrig.measurement.recording import as_run, reported, text_ends, write_index
from specrig.measurement.records import Probe, Record, Run
from specrig.measurement.signs import disturbance, loads, reasons
from specrig.measurement.unpaired import measure_unpaired
from specrig.provenance.bandwidth import memory
from specrig.provenance.environment import capture
from specrig.runtime.types import FALLBACKS
from specrig.tasks import Prompt

if TYPE_CHECKING:
    from specrig.study.study import Study


def measure(
    study: Study,
    engine: str,
    pair: str,
    method_names: Sequence[str],
    replicate: int = 0,
    part: Part | None = None,
    again: bool = False,
) -> None:
    """Measure the cells of some methods on one engine and pair, in one replicate, that are not measured yet.

    part: measure only this; None: all cells on all prompts. again: measure also what is measured.

    Writes the record file of each cell below the study's results folder as soon as its block is done, in the end
    `environment.json` and `index.json` of each method. A cell that fails is listed in the index with the reason and
    does not stop the others. Raises EngineError and ModelError if the target cannot be loaded, EngineError for what the
    study does not have.
    """
    plan = resolve(study, engine, pair, method_names, replicate, part, again)
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
        engine = open_things.enter_context(plan.engine(plan.pair, device=plan.device, threads=plan.threads))
        meter = open_things.enter_context(_metered(engine))
        machine = MachineState(plan.device, here=engine.loads_pairs, in_process=engine.in_process)
        environment = capture(plan.pair, device=plan.device, threads=plan.threads)
        environment |= engine.environment() | {"energy": meter.source}
        _describe(plan, environment)
        groups = in_turn(chain.from_iterable(plan.pending.values()), paired=engine.paired)
        made = [[_Block(plan, engine, meter, machine, cells) for cells in group] for group in groups]
        with progress(title, sum(block.units for group in made for block in group)) as advance:
            for group in made:
                failed |= _measure_group(group, advance, environment)
        # Last: heads are loaded by now, and what memory is read with is in no cell's peak memory.
        if engine.loads_pairs:
            _describe(plan, environment | engine.environment() | {"memory": memory(plan.device)})
    return failed


def _describe(plan: MeasurementPlan, environment: Mapping[str, Any]) -> None:
    """Write the description of the machine beside the records of each method that is measured."""
    for method in plan.pending:
        write_atomically(plan.folders[method] / "environment.json", json.dumps(environment, indent=1))


def _metered(engine: Engine) -> AbstractContextManager[Meter]:
    """The meter of an engine's devices: all GPUs over which it splits the target; none for servers elsewhere."""
    if not engine.loads_pairs:
        return nullcontext(Meter())
    return metered(engine.device, gpus_used(type(engine), engine.pair.tensor_parallel))


class _Block:
    """Cells that share task, temperature, batch size and baseline: runs their prompts and writes their records."""

    def __init__(
        self, plan: MeasurementPlan, engine: Engine, meter: Meter, machine: MachineState, cells: list[Cell]
    ) -> None:
        self.plan, self.engine, self.meter, self.machine, self.cells = plan, engine, meter, machine, cells
        self.baseline = baseline_of(cells[0])
        prompts, size = plan.prompts[cells[0]], cells[0].batch_size
        self.groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        self.tokens = {prompt.id: engine.encode(prompt.text) for prompt in prompts}
        self.failed: dict[Cell, str] = {}
        self.rounds = [(repeat, number) for repeat in range(plan.repeats) for number in range(len(self.groups))]
        self.before: Probe | None = None
        self.after: Probe | None = None
        self.on_advance: Advance = lambda description="": None

    @property
    def units(self) -> int:
        """Units of progress: groups of prompts, times (cells + two baseline runs) if cells cannot alternate."""
        return len(self.rounds) if self.engine.paired else len(self.rounds) * (len(self.cells) + 2)

    @property
    def generations(self) -> int:
        """How often it generates for a group of prompts, by which the time of several blocks is compared."""
        return len(self.rounds) * (len(self.cells) + 1)

    def again(self, cells: list[Cell]) -> _Block:
        """A block of some of its cells, to measure them again."""
        return _Block(self.plan, self.engine, self.meter, self.machine, cells)

    def advance(self) -> None:
        """Show that one more group of prompts is done."""
        cell = self.cells[0]
        self.on_advance(f"{cell.task} T={cell.temperature:g} b={cell.batch_size}")

    def warm_up(self, cell: Cell) -> None:
        """Run the first group of prompts `warmup` times without recording it."""
        for _ in range(self.plan.warmup):
            self.attempt(cell, self.groups[0], 0, min(WARMUP_TOKENS, self.plan.max_new_tokens))

    def run_alone(self, cell: Cell) -> list[list[Run]] | None:
        """Run all prompts of a cell, group by group; returns the runs of each group, or None if the cell fails."""
        self.failed.pop(cell, None)
        self.warm_up(cell)
        found = []
        for repeat, number in self.rounds:
            runs = self.attempt(cell, self.groups[number], repeat, self.plan.max_new_tokens)
            self.advance()
            if runs is not None:
                found.append(runs)
        return found if len(found) == len(self.rounds) else None

    def attempt(self, cell: Cell, group: Sequence[Prompt], repeat: int, limit: int) -> list[Run] | None:
        """Run one group of prompts; returns a run for each, or None if the cell fails or failed before."""
        if cell in self.failed:
            return None
        try:
            return self._run(cell, group, repeat, limit)
        except Exception as error:
            self.failed[cell] = reported(cell.name, error)
            return None

    def _run(self, cell: Cell, group: Sequence[Prompt], repeat: int, limit: int) -> list[Run]:
        self.engine.ready(cell)
        found: list[Run] = []
        for start in range(0, len(group), cell.batch_size):  # one batch, but for a baseline that runs alone
            batch = group[start : start + cell.batch_size]
            seeds = [self._seed(cell, prompt, repeat) for prompt in batch]
            prompts = [self.tokens[prompt.id] for prompt in batch]
            self.engine.reset_peak_memory()
            before, begun = self.meter.joules(), self.machine.begin()
            generations = self.engine.generate(cell, prompts, max_new_tokens=limit, seeds=seeds)
            load = self.machine.since(begun)
            measured: dict[str, Any] = {
                "energy_j": self.meter.since(before),
                "device": self.meter.state(),
                "load": load,
                "peak_memory_mb": self.engine.peak_memory_mb(),
                "fallbacks": list(FALLBACKS),
            }
            found += [as_run(generation).model_copy(update=measured) for generation in generations]
        return found

    def _seed(self, cell: Cell, prompt: Prompt, repeat: int) -> int:
        return seed_of(self.plan.seed, cell.task, prompt.id, repeat, self.plan.replicate)

    def write(
        self, cell: Cell, runs: list[list[Run]], baseline: list[list[Run]], drifts: Sequence[float | None]
    ) -> None:
        """Write the cell's record file from its runs and the baseline's, both with one list for each of `rounds`."""
        write_attempts(self.plan.records(cell), [self.records(cell, runs, baseline, drifts)], 0)

    def records(
        self, cell: Cell, runs: list[list[Run]], baseline: list[list[Run]], drifts: Sequence[float | None]
    ) -> list[Record]:
        """The cell's records from its runs and the baseline's."""
        records, after = [], self.after or self.machine.probe()
        for (repeat, number), found, base, drift in zip(self.rounds, runs, baseline, drifts, strict=True):
            for prompt, run, plain in zip(self.groups[number], found, base, strict=True):
                records.append(
                    Record(
                        cell=cell,
                        digest=self.plan.digests[cell],
                        prompt_id=prompt.id,
                        group=number,
                        repeat=repeat,
                        replicate=self.plan.replicate,
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
        return records


def _measure_group(group: Sequence[_Block], advance: Advance, environment: Mapping[str, Any]) -> dict[Cell, str]:
    """Measure blocks of one engine: block by block where cells alternate, else the blocks of one method.

    Returns the reason for each cell that failed. environment: what the machine's signs are judged by.
    """
    for block in group:
        block.on_advance = advance
    plan = group[0].plan
    if not group[0].engine.paired:
        for block in group:
            block.before = block.machine.probe()
        return measure_unpaired(group, plan.digests, plan.folders[group[0].cells[0].method])
    _measure_again([_measure_once(block, environment, last=block is group[-1]) for block in group], environment)
    return {cell: reason for block in group for cell, reason in block.failed.items()}


@dataclass(slots=True)
class _Measured:
    """A block that was measured: how long that took, and the attempts at its disturbed cells."""

    block: _Block
    seconds: float
    attempts: dict[Cell, list[list[Record]]]

    def disturbed(self, environment: Mapping[str, Any]) -> list[Cell]:
        """The cells that are disturbed in each attempt so far."""
        return [cell for cell, found in self.attempts.items() if _quietest(found, environment)[1] > 1]


def _measure_once(block: _Block, environment: Mapping[str, Any], *, last: bool) -> _Measured:
    """Measure a block and write its records. last: see `_attempt`."""
    started = time.monotonic()
    found = _attempt(block, last=last)
    seconds = time.monotonic() - started
    for cell, records in found.items():
        write_attempts(block.plan.records(cell), [records], 0)
    attempts = {cell: [records] for cell, records in found.items() if _quietest([records], environment)[1] > 1}
    return _Measured(block, seconds, attempts)


def _measure_again(measured: Sequence[_Measured], environment: Mapping[str, Any]) -> None:
    """Measure the disturbed cells of a job's blocks again, each time when the machine is quiet, and write the records.

    It takes at most `remeasure.share` of the seconds of all first attempts, and waiting takes at most as long.
    """
    remeasure, machine = measured[0].block.plan.remeasure, measured[0].block.machine
    left = patience = remeasure.share * sum(each.seconds for each in measured)
    for _ in range(remeasure.times):
        for each in measured:
            cells = each.disturbed(environment)
            if not cells:
                continue
            block = each.block.again(cells)
            if each.seconds * block.generations / each.block.generations > left:
                continue
            why = "; ".join(reasons(loads(each.attempts[cells[0]][-1]), environment))
            print(
                f"disturbed: {len(cells)} of {len(each.block.cells)} cells like {cells[0].name}: {why}", file=sys.stderr
            )
            started = time.monotonic()
            if not machine.wait_until_quiet(environment, patience):
                print("The machine stayed busy; they are not measured again.", file=sys.stderr)
                return
            begun = time.monotonic()
            # A cell that fails now keeps the attempts that it has.
            for cell, records in _attempt(block, last=True).items():
                each.attempts[cell].append(records)
                found = each.attempts[cell]
                write_attempts(block.plan.records(cell), found, _quietest(found, environment)[0])
            patience -= begun - started
            left -= time.monotonic() - begun


def _quietest(attempts: Sequence[Sequence[Record]], environment: Mapping[str, Any]) -> tuple[int, float]:
    """The index of the attempt that counts, and its disturbance: above 1 the machine was not quiet."""
    counted = least_disturbed([loads(records) for records in attempts], environment)
    return counted, disturbance(loads(attempts[counted]), environment)


def _attempt(block: _Block, *, last: bool) -> dict[Cell, list[Record]]:
    """Alternate baseline and cells group by group; returns the records of each cell that did not fail.

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
            runs = block.attempt(cell, block.groups[number], repeat, block.plan.max_new_tokens)
            if runs is not None:
                found[cell].append(runs)
        block.advance()
        if block.baseline in block.failed:  # without a baseline nothing is a result
            break
    block.after = block.machine.probe(renew=last)
    if block.baseline in block.failed:
        block.failed = dict.fromkeys(block.cells, f"the baseline failed: {block.failed[block.baseline]}")
    drifts = [None] * len(block.rounds)
    return {
        cell: block.records(cell, found[cell], found[block.baseline], drifts)
        for cell in block.cells
        if cell not in block.failed
    }
