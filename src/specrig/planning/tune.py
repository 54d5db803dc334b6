"""Finds the best method and k of each task by successive halving, at a fraction of the grid's measurements.

Every round is measured by `measurement.runner.measure`, on a part of the study, into `results/<study>/tune/round-<n>`.
A round that is measured stays, so the same command goes on after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pandas as pd
from rich.console import Console

from specrig.analysis.cells import by_cell
from specrig.analysis.halving import Choice, Rung, SuccessiveHalving
from specrig.analysis.speedup import group_times, log_speedups
from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.measurement.blocks import baseline_of, is_lossless, with_baselines
from specrig.measurement.plan import Part
from specrig.measurement.records import study_records
from specrig.measurement.runner import measure
from specrig.report.grid import interval, number, percent
from specrig.report.labels import BASELINES, method_name, task_name
from specrig.study.study import Study
from specrig.terminal import Column, print_table

SHARE = 0.1
"""Share of the grid's measurements that a race may take, where its rounds are not smaller than possible."""


class TuneError(ValueError):
    """What must be there before a study can be tuned. The message names it and the command that makes it."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome for one setting: a task, temperature and batch size of an engine and pair.

    setting: its baseline's cell. measured, grid: generations of the race and of the whole grid, plain ones included.
    reason: why there is no choice.
    """

    setting: Cell
    choice: Choice | None
    measured: int
    grid: int
    reason: str = ""


@dataclass
class _Setting:
    """A race and what it has cost. repeats: the least of the study."""

    baseline: Cell
    race: SuccessiveHalving
    repeats: int
    measured: int = 0

    def enter(self, rung: Rung, logs: Mapping[Cell, pd.Series]) -> None:
        """Take a rung's log speedups, by unit."""
        self.measured += self.generations(rung.cells, rung.stop - rung.start)
        self.race.enter(logs)

    def generations(self, cells: Sequence[Cell], units: int) -> int:
        """Generations of some cells and the baselines that their blocks run, on so many units."""
        paired = engines()[self.baseline.engine].paired
        return sum(map(len, with_baselines(cells, paired=paired))) * units * self.repeats

    def tuned(self) -> Tuned:
        """The outcome, when the race is over."""
        race = self.race
        reason = (
            "a single cell: nothing to choose"
            if len(race.cells) < 2
            else f"{race.units} prompts or batches: too few to choose and to judge"
        )
        grid = self.generations(race.cells, race.units)
        if not race.possible:
            return Tuned(self.baseline, None, 0, grid, reason)
        choice = race.choice()
        return Tuned(self.baseline, choice, self.measured, grid, "" if choice else "every cell failed")


def tune(study: Study, share: float = SHARE) -> list[Tuned]:
    """Choose the best lossless cell of each setting of a study by measuring, engine by engine and pair by pair.

    share: of the grid's measurements. Raises TuneError where models or prompts are not made yet, and what `measure`
    raises.
    """
    found = []
    for engine, pair in dict.fromkeys(key[:2] for key in study.grid.by_method):
        cells = [cell for cell in study.grid.cells if (cell.engine, cell.pair) == (engine, pair)]
        cells = [cell for cell in cells if is_lossless(cell) and cell.method not in BASELINES]
        if study.rows.pairs[pair].simulated_acceptance is not None or not cells:
            continue
        _check_made(study, pair, {cell.task for cell in cells})
        settings = []
        for baseline, members in _by_setting(cells).items():
            race = _race(members, _units(study, members[0]), share)
            settings.append(_Setting(baseline, race, study.repeats.least))
        for done in count():
            rungs = [(setting, rung) for setting in settings if (rung := setting.race.rung)]
            if not rungs:
                break
            _measure_round(study, rungs, study.root / "tune" / f"round-{done}")
        found += [setting.tuned() for setting in settings]
    return found


def _measure_round(study: Study, rungs: Sequence[tuple[_Setting, Rung]], folder: Path) -> None:
    """Measure the rungs of one engine and pair together."""
    prompts = {
        cell: slice(rung.start * cell.batch_size, rung.stop * cell.batch_size)
        for _, rung in rungs
        for cell in rung.cells
    }
    methods = list(dict.fromkeys(cell.method for cell in prompts))
    first = next(iter(prompts))
    measure(study, first.engine, first.pair, methods, part=Part(folder, prompts))
    records = by_cell(study_records(folder / first.engine / first.pair))
    for setting, rung in rungs:
        logs = {cell: log_speedups(group_times(records[cell.name])) for cell in rung.cells if cell.name in records}
        setting.enter(rung, {cell: found.set_axis(found.index + rung.start) for cell, found in logs.items()})


def _by_setting(cells: Sequence[Cell]) -> dict[Cell, list[Cell]]:
    """Baseline's cell -> the cells that compete."""
    found: dict[Cell, list[Cell]] = {}
    for cell in cells:
        found.setdefault(baseline_of(cell), []).append(cell)
    return found


def _race(cells: Sequence[Cell], units: int, passes: float) -> SuccessiveHalving:
    """A race that may measure `passes` times every cell and unit; `passes` is mostly well below 1."""
    return SuccessiveHalving(cells, units, passes * len(cells) * units)


def _units(study: Study, cell: Cell) -> int:
    """How many prompts, or whole batches of them, the grid has for a cell."""
    count = min(study.grid.prompt_count(cell.batch_size), len(study.prompts_of(cell.task, study.root)))
    return count // cell.batch_size


def _check_made(study: Study, pair: str, tasks: Iterable[str]) -> None:
    """Raise TuneError where models that the study makes, or prompts that it fetches, are not there yet."""
    files = [study.paths.prompt_file(task, study.root) for task in sorted(tasks)]
    sources = study.paths.pair_files(pair, study.root).sources.values()
    made = [Path(source, "config.json") for source in sources] + files
    lacking = [path for path in made if path.is_relative_to(study.root) and not path.is_file()]
    if lacking:
        raise TuneError(
            f"{lacking[0]} is not there yet\n    → `specrig run <config> -O measure audit_exact` makes "
            "models and prompts, and measures nothing"
        )


def show_tuned(rows: Sequence[Tuned], console: Console) -> None:
    """Print the choice of each setting, why others have none, and what was measured."""
    titles = ["T", "batch", "method", "k", "speedup", "95 % interval", "measurements"]
    body = []
    for row in rows:
        if not (choice := row.choice):
            continue
        cell = choice.cell
        body.append(
            [
                f"{cell.engine}/{cell.pair}",
                task_name(cell.task),
                f"{cell.temperature:g}",
                str(cell.batch_size),
                method_name(cell.method, variant=cell.variant),
                str(cell.k or "–"),
                number(choice.speedup),
                interval(choice.low, choice.high) or "–",
                f"{row.measured} of {row.grid}",
            ]
        )
    if body:
        columns = [Column("pair"), Column("task"), *(Column(title, right=title != "method") for title in titles)]
        print_table(console, columns, body)
    for row in rows:
        if not row.choice:
            cell = row.setting
            label = (
                f"{cell.engine}/{cell.pair}, {task_name(cell.task)}, T = {cell.temperature:g}, batch {cell.batch_size}"
            )
            console.print(f"{label}: not tuned, {row.reason}.", markup=False)
    if body:
        measured, grid = (sum(getattr(row, name) for row in rows if row.choice) for name in ("measured", "grid"))
        console.print(
            f"Measured: {measured:,} of the grid's {grid:,} generations, plain ones included "
            f"({percent(measured / grid)}).\nSpeedups are those of prompts that had no part in the choice. "
            "Outputs are not audited.",
            markup=False,
        )
