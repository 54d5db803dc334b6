"""Finds the best method and k of each task by successive halving, at a fraction of the grid's measurements.

Every round is measured by `measurement.runner.measure`, on a part of the study, into `results/<study>/tune/round-<n>`.
A round that is measured stays, so the same command goes on after an interruption. `replay` does the same with the
records of a finished study instead of a machine, and compares the outcome with the whole grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from specrig.analysis.cells import by_cell, row_dicts, row_identity
from specrig.analysis.halving import Choice, Rung, SuccessiveHalving
from specrig.analysis.replicates import Layout, layout
from specrig.analysis.speedup import group_times, log_ratios, log_speedups
from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.measurement.blocks import baseline_of, is_lossless, with_baselines
from specrig.measurement.plan import Part
from specrig.measurement.records import study_records
from specrig.measurement.runner import measure
from specrig.results.grid import interval, number, percent
from specrig.results.labels import BASELINES, method_name, task_name
from specrig.results.speed_tables import runs_note
from specrig.results.study_results import StudyResults
from specrig.study.study import Study
from specrig.terminal import Column, print_table

SHARE = 0.1
"""Share of the grid's measurements that a race may take, where its rounds are not smaller than possible."""
ORDERS = 100
"""Random orders of the prompts in which `replay` runs each race, besides the study's own."""


class TuneError(ValueError):
    """What must be there before a study can be tuned. The message names it and the command that makes it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the whole grid says of a race's outcome.

    best: the grid's fastest cell; speedup, low, high: of it, with its 95 % interval; chosen: the chosen cell's speedup
    in the grid. Shares of random orders of the prompts: same: the best cell was chosen; within: the chosen cell's
    speedup in the grid lies within the best one's interval; covered: the race's interval holds it. loss: how much slower than the best one the chosen cell
    is in the grid, as a share, in the mean over these orders.
    """

    best: Cell
    speedup: float
    low: float
    high: float
    chosen: float
    same: float
    within: float
    covered: float
    loss: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome for one setting: a task, temperature and batch size of an engine and pair.

    setting: its baseline's cell. measured, grid: generations of the race and of the whole grid, plain ones included.
    reason: why there is no choice. known: see `Known`, for a replay.
    """

    setting: Cell
    choice: Choice | None
    measured: int
    grid: int
    reason: str = ""
    known: Known | None = None


@dataclass
class _Setting:
    """A race and what it has cost. repeats, replicates: of the study."""

    baseline: Cell
    race: SuccessiveHalving
    repeats: int
    replicates: int
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
        grid = self.generations(race.cells, race.units) * self.replicates
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
            race = _race(members, _units(study, members[0]), share * study.replicates)
            settings.append(_Setting(baseline, race, study.repeats, study.replicates))
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
    records = by_cell(study_records(folder / first.engine / first.pair, 1))
    for setting, rung in rungs:
        logs = {cell: log_speedups(group_times(records[cell.name])) for cell in rung.cells if cell.name in records}
        setting.enter(rung, {cell: found.set_axis(found.index + rung.start) for cell, found in logs.items()})


def replay(results: StudyResults, share: float = SHARE, orders: int = ORDERS) -> list[Tuned]:
    """Run the races on the records of a finished study.

    A round takes its measurements from one of the study's replicates, in turn. Cells that are lossy or failed the audit
    do not race, as they may not be advised.
    """
    fair = results.cells[results.cells["lossless"].astype(bool) & ~results.cells["failed"].astype(bool)]
    rows = {row_identity(row): row for row in row_dicts(fair.assign(variant=fair["variant"].fillna("")))}
    logs: dict[Cell, Layout] = {}
    truths: dict[Cell, dict[str, Any]] = {}
    for members in results.study.cells.values():
        cell = members[0].cell
        row = rows.get(row_identity(cell.model_dump()))
        if row is not None and np.isfinite(row["speedup"]) and cell.method not in BASELINES:
            logs[cell], truths[cell] = layout(log_ratios(group_times(members))), row
    repeats, random = int(results.study.config.get("repeats", 1)), np.random.default_rng(0)
    tuned = []
    for baseline, cells in _by_setting(list(logs)).items():
        raced = partial(_raced, baseline, {cell: logs[cell] for cell in cells}, share, repeats)
        units = min(len(logs[cell]) for cell in cells)
        one = raced(range(units)).tuned()
        if one.choice:
            best = max(cells, key=lambda cell: truths[cell]["speedup"])
            others = [choice for _ in range(orders) if (choice := raced(list(random.permutation(units))).race.choice())]
            one = replace(one, known=_known(best, truths, one.choice, others))
        tuned.append(one)
    return tuned


def _raced(baseline: Cell, logs: Mapping[Cell, Layout], share: float, repeats: int, order: Sequence[int]) -> _Setting:
    """A race over the recorded log speedups of a setting's cells, its units in `order`."""
    replicates = min(found.shape[1] for found in logs.values())
    setting = _Setting(baseline, _race(list(logs), len(order), share * replicates), repeats, replicates)
    for done in count():
        if not (rung := setting.race.rung):
            break
        taken, index = order[rung.start : rung.stop], range(rung.start, rung.stop)
        setting.enter(rung, {cell: pd.Series(logs[cell][taken, done % replicates], index) for cell in rung.cells})
    return setting


def _known(best: Cell, truths: Mapping[Cell, dict[str, Any]], choice: Choice, others: Sequence[Choice]) -> Known:
    row = truths[best]

    def share(values: Iterable[float]) -> float:
        return float(np.mean(list(values) or [np.nan]))

    return Known(
        best,
        row["speedup"],
        row["speedup_low"],
        row["speedup_high"],
        truths[choice.cell]["speedup"],
        share(each.cell == best for each in others),
        share(truths[each.cell]["speedup"] >= row["speedup_low"] for each in others),
        share(each.low <= truths[each.cell]["speedup"] <= each.high for each in others),
        share(1 - truths[each.cell]["speedup"] / row["speedup"] for each in others),
    )


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
    """Raise TuneError where models that the study makes, or prompts of its corpus, are not there yet."""
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
    """Print the choice of each setting and, of a replay, what the whole grid says."""
    chosen = [(row, row.choice) for row in rows if row.choice]
    replayed = any(row.known for row in rows)
    titles = ["T", "batch", "method", "k", "speedup", "95 % interval", "measurements"]
    titles += ["the grid's best", "k", "its speedup", "its interval", "chosen one's", "found"] if replayed else []
    text = {"task", "method", "the grid's best", "found"}
    columns = [Column(title, right=title not in text) for title in ("pair", "task", *titles)]
    columns[0] = Column("pair")
    body = []
    for row, choice in chosen:
        cell = choice.cell
        entries = [
            f"{cell.engine}/{cell.pair}",
            task_name(cell.task),
            f"{cell.temperature:g}",
            str(cell.batch_size),
            *_named(cell),
        ]
        entries += [number(choice.speedup), interval(choice.low, choice.high) or "–", f"{row.measured} of {row.grid}"]
        if row.known:
            known = row.known
            verdict = "itself" if known.best == cell else "within" if known.chosen >= known.low else "no"
            entries += [*_named(known.best), number(known.speedup), interval(known.low, known.high) or "–"]
            entries += [number(known.chosen), verdict]
        body.append(entries)
    if body:
        print_table(console, columns, body)
    for row in rows:
        if not row.choice:
            cell = row.setting
            label = (
                f"{cell.engine}/{cell.pair}, {task_name(cell.task)}, T = {cell.temperature:g}, batch {cell.batch_size}"
            )
            console.print(f"{label}: not tuned, {row.reason}.", markup=False)
    for line in sentences(rows):
        console.print(line, markup=False)


def _named(cell: Cell) -> list[str]:
    return [method_name(cell.method, variant=cell.variant), str(cell.k or "–")]


def sentences(rows: Sequence[Tuned]) -> list[str]:
    """What was measured, what the intervals cover and, of a replay, how often the race is right."""
    chosen = [row for row in rows if row.choice]
    if not chosen:
        return []
    measured, grid = sum(row.measured for row in chosen), sum(row.grid for row in chosen)
    known = [row.known for row in chosen if row.known]
    if not known:
        return [
            f"Measured: {measured:,} of the grid's {grid:,} generations, plain ones included ({percent(measured / grid)}).",
            f"Speedups are those of prompts that had no part in the choice. {runs_note(1)} Outputs are not audited.",
        ]
    exact = sum(row.known.best == row.choice.cell for row in chosen if row.known and row.choice)
    near = sum(each.chosen >= each.low for each in known)
    same, within, covered, loss = (
        percent(float(np.nanmean([getattr(each, name) for each in known])))
        for name in ("same", "within", "covered", "loss")
    )
    return [
        f"Measurements: {measured:,} of {grid:,}, plain ones included; {percent(1 - measured / grid)} saved.",
        f"Settings: {len(known)}. The grid's best cell itself was chosen in {exact}, one within its interval in {near}.",
        f"Over random orders of the prompts: the best itself in {same}, within its interval in {within}, "
        f"{loss} slower than the best in the mean; the race's interval holds the chosen cell's speedup in the whole grid in {covered}.",
    ]
