"""Cells that share task, temperature, batch size and baseline: runs their prompts and writes their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines.base import Engine
from specrig.files import write_atomically
from specrig.measurement.blocks import WARMUP_TOKENS, baseline_of, is_lossless, seed_of
from specrig.measurement.energy import Meter
from specrig.measurement.plan import MeasurementPlan
from specrig.measurement.progress import Advance
from specrig.measurement.recording import as_runs, reported, text_ends
from specrig.measurement.records import Record, Run, write_records
from specrig.measurement.repeats import pooled
from specrig.runtime.types import FALLBACKS

Repeats = list[list[Run]]
"""What was measured of a cell's group of prompts: for each repeat a Run a prompt."""
_GROUPS = TypeAdapter(list[Repeats])
PARTS = "parts"
"""Folder beside the records with what a job has measured of cells that are not settled yet."""


class Block:
    """Cells that share task, temperature, batch size and baseline, and what was measured of them so far.

    A group of prompts is done where its times settled or it ran the most repeats, for each cell and for the baseline by
    itself, never by their ratio: so the rule cannot favour a method.
    """

    def __init__(self, plan: MeasurementPlan, engine: Engine, meter: Meter, cells: list[Cell]) -> None:
        self.plan, self.engine, self.meter, self.cells = plan, engine, meter, cells
        self.baseline = baseline_of(cells[0])
        self.running = list(dict.fromkeys([self.baseline, *cells]))  # one of the cells may be the baseline itself
        prompts, size = plan.prompts[cells[0]], cells[0].batch_size
        self.groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        self.tokens = {prompt.id: engine.encode(prompt.text) for prompt in prompts}
        self.failed: dict[Cell, str] = {}
        self.measured: dict[Cell, list[Repeats]] = {cell: [[] for _ in self.groups] for cell in self.running}
        self._warm: set[Cell] = set()
        self._written: set[Cell] = set()
        self._walks = 0
        self._resume()
        self._open = {cell: {n for n in range(len(self.groups)) if not self._done(cell, n)} for cell in self.running}

    def is_open(self, cell: Cell) -> bool:
        """Whether a cell needs another repeat of some of its prompts."""
        return cell not in self.failed and bool(self._open[cell])

    def is_unfinished(self) -> bool:
        """Whether a cell that did not fail, or the baseline for its sake, needs another repeat."""
        standing = [cell for cell in self.cells if cell not in self.failed]
        return bool(standing) and any(map(self.is_open, [self.baseline, *standing]))

    def walk(self, cells: Sequence[Cell], advance: Advance) -> None:
        """Repeat the prompts that are not done once more, prompt by prompt, with all of `cells` in turn."""
        for cell in filter(self.is_open, cells):
            self._warm_up(cell)
        for number in range(len(self.groups)):
            if self.baseline in self.failed:  # without a baseline nothing is a result
                break
            # Who goes first rotates, so no cell always inherits a warm or a throttled machine.
            turn = (number + self._walks) % len(cells)
            ordered = (*cells[turn:], *cells[:turn])
            running = [cell for cell in ordered if cell not in self.failed and number in self._open[cell]]
            for cell in running:
                self._attempt(cell, number)
            if running:
                cell = self.cells[0]
                repeats = max(len(self.measured[cell][number]) for cell in running)
                advance(f"{cell.task} T={cell.temperature:g} b={cell.batch_size} repeat {repeats}")
        self._walks += 1
        if self.baseline in self.failed:
            self.failed |= dict.fromkeys(self.cells, f"the baseline failed: {self.failed[self.baseline]}")

    def finish(self) -> None:
        """Write the records of each cell that is done, and keep what was measured of each other one for a next run."""
        for cell in self.cells:
            if cell in self._written:
                continue
            if cell in self.failed and self.baseline not in self.failed:
                self._part(cell).unlink(missing_ok=True)
            elif cell in self.failed or self.is_open(cell) or self.is_open(self.baseline):
                content = {name: _GROUPS.dump_python(self.measured[of], mode="json") for name, of in self._sides(cell)}
                write_atomically(self._part(cell), json.dumps({"digest": self.plan.digests[cell]} | content))
            else:
                write_records(self.plan.records(cell), self._records(cell))
                self._part(cell).unlink(missing_ok=True)
                self._written.add(cell)
        for folder in {self._part(cell).parent for cell in self.cells}:
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _sides(self, cell: Cell) -> list[tuple[str, Cell]]:
        return [("runs", cell), ("baseline", self.baseline)]

    def _part(self, cell: Cell) -> Path:
        return self.plan.folders[cell.method] / PARTS / f"{cell.slug}.json"

    def _resume(self) -> None:
        """Take what an interrupted job measured of these cells."""
        for cell in self.cells:
            with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):  # none, or damaged
                content = json.loads(self._part(cell).read_text(encoding="utf-8"))
                if content["digest"] == self.plan.digests[cell]:
                    for name, of in self._sides(cell):
                        self.measured[of] = _GROUPS.validate_python(content[name])

    def _done(self, cell: Cell, number: int) -> bool:
        """Whether a group of prompts needs no further repeat."""
        count, repeats = len(self.measured[cell][number]), self.plan.repeats
        if count < repeats.least or count >= repeats.most:
            return count >= repeats.most
        return all(run.settled for run in self._pooled(cell, number))

    def _pooled(self, cell: Cell, number: int) -> list[Run]:
        """A Run a prompt of a group from its repeats; prompts that ran one by one are judged one by one."""
        repeats, size = self.measured[cell][number], cell.batch_size
        batches = (
            [rows[start : start + size] for rows in repeats] for start in range(0, len(self.groups[number]), size)
        )
        return [run for batch in batches for run in pooled(batch, self.plan.repeats.agree)]

    def _warm_up(self, cell: Cell) -> None:
        """Run the first group of prompts `warmup` times without recording it, if the cell has not run yet."""
        if cell in self._warm:
            return
        self._warm.add(cell)
        try:
            for _ in range(self.plan.warmup):
                self._run(cell, 0, min(WARMUP_TOKENS, self.plan.max_new_tokens))
        except Exception as error:
            self.failed[cell] = reported(cell.name, error)

    def _attempt(self, cell: Cell, number: int) -> None:
        """Run one group of prompts once more, or note why the cell fails."""
        try:
            self.measured[cell][number].append(self._run(cell, number, self.plan.max_new_tokens))
        except Exception as error:
            self.failed[cell] = reported(cell.name, error)
        else:
            if self._done(cell, number):
                self._open[cell].discard(number)

    def _run(self, cell: Cell, number: int, limit: int) -> list[Run]:
        self.engine.ready(cell)
        group, runs = self.groups[number], []
        for start in range(0, len(group), cell.batch_size):  # one batch, but for a baseline that runs alone
            batch = group[start : start + cell.batch_size]
            seeds = [seed_of(self.plan.seed, cell.task, prompt.id) for prompt in batch]
            prompts = [self.tokens[prompt.id] for prompt in batch]
            self.engine.reset_peak_memory()
            before = self.meter.joules()
            generations = self.engine.generate(cell, prompts, max_new_tokens=limit, seeds=seeds)
            measured: dict[str, Any] = {
                "device": self.meter.state(),
                "peak_memory_mb": self.engine.peak_memory_mb(),
                "fallbacks": [*FALLBACKS, *dict.fromkeys(note for row in generations for note in row.notes)],
            }
            runs += [run.model_copy(update=measured) for run in as_runs(generations, self.meter.since(before))]
        return runs

    def _records(self, cell: Cell) -> list[Record]:
        records = []
        for number, group in enumerate(self.groups):
            sides = self._pooled(cell, number), self._pooled(self.baseline, number)
            for prompt, run, plain in zip(group, *sides, strict=True):
                records.append(
                    Record(
                        cell=cell,
                        digest=self.plan.digests[cell],
                        prompt_id=prompt.id,
                        group=number,
                        seed=seed_of(self.plan.seed, cell.task, prompt.id),
                        prompt_tokens=len(self.tokens[prompt.id]),
                        text=self.engine.decode(run.tokens),
                        ends=text_ends(run.tokens, self.engine.decode),
                        baseline_text=self.engine.decode(plain.tokens),
                        baseline_alone=methods()[cell.method].baseline_alone,
                        lossless=self.engine.pair.simulated_acceptance is None and is_lossless(cell),
                        simulated_acceptance=self.engine.pair.simulated_acceptance,
                        chosen=self.engine.chosen(cell),
                        run=run,
                        baseline=plain,
                        when=datetime.now(UTC).isoformat(timespec="seconds"),
                    )
                )
        return records
