"""Write `reports/<study>/report.html`, by default a single file. All its numbers come from the study's records."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specrig.analysis.acceptance import positions
from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.analysis.disturbance import undisturbed
from specrig.analysis.optimal_k import optimal_k
from specrig.measurement.records import write_atomically
from specrig.reporting import disturbance, engines, grid, quality, reproduction, simulated, verdicts
from specrig.reporting import environment as surroundings
from specrig.reporting.attachments import Attachments, Embedded
from specrig.reporting.device import floor_notes
from specrig.reporting.figures import FIGURES, base_setting, training_curves, write_figures
from specrig.reporting.grid import Entry, Grid
from specrig.reporting.narrative import conclusion, drift_sentence, repetition_warnings
from specrig.reporting.optimum import optimal_k_grid, optimal_k_sentence, power_sentence
from specrig.reporting.samples import Sample, sample
from specrig.reporting.study_data import StudyData, read_study
from specrig.reporting.style import method_name, method_order, task_name
from specrig.reporting.summary import MEAN, acceptance_summary, audit_failures, best_rows, speedup_summary
from specrig.reporting.tables import acceptance_grid, cells_grid, speedup_grid

SMALL_MODEL = 100_000_000
"""For targets with fewer parameters the report says what a target this small cannot show."""


TIMED = ("k_sweep", "heatmap", "speedup_bars", "predicted", "engines", "batching", "latency", "reported")
"""The figures of speeds. Their captions mention disturbed cells."""


def write_report(study_dir: Path, out: Path, attachments: Attachments | None = None) -> Path:
    """Write the report of `results/<study>` to the file `out`, completely or not at all, and return `out`.

    attachments: how the page carries pictures and tables; None puts them inside the page.

    Figures are taken from `figures/` and drawn anew where one is missing. Tables are computed from the records, so the report
    agrees with the records even if `tables/` is older. Raises RecordError for an unreadable record.
    """
    study = read_study(study_dir)
    template = Environment(
        loader=PackageLoader("specrig.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html.j2")
    write_atomically(out, template.render(_context(study, attachments or Embedded())))
    return out


def _context(study: StudyData, attachments: Attachments) -> dict[str, Any]:
    audit = study.audit()
    cells = study.table.assign(failed=audit_failures(study.table, audit))
    best = best_rows(cells)
    speedups = speedup_summary(cells, study.records, study.tasks, audit)
    first = next((job.environment for job in study.jobs if job.environment), {})
    acceptance = acceptance_summary(cells, study.records, study.tasks, audit)
    compared = engines.comparison(study)
    optimal = optimal_k(undisturbed(cells), study.records)
    return {
        "study": study,
        "version": version("specrig"),
        "conclusions": conclusion(speedups, best, study.tasks),
        "machine": surroundings.machine(first),
        "commit": surroundings.commit(first),
        "captured": sorted({str(job.environment["captured"]) for job in study.jobs if job.environment.get("captured")}),
        "environment": surroundings.environment_rows(study.jobs),
        "differing": surroundings.differing(study.jobs),
        "notes": [
            *surroundings.engine_notes(study.jobs, cells),
            *floor_notes([*study.cells.values(), *study.simulated.values()], study.environments),
            *filter(None, [surroundings.energy_note(study.jobs)]),
            *disturbance.notes(study, cells),
        ],
        "models": surroundings.model_rows(study.folder),
        "figures": _figures(study, attachments),
        "captions": {name: text + (disturbance.caption_note(cells) if name in TIMED else "") for name, text in FIGURES.items()},
        "disturbed": (
            disturbance.warning(cells, Path(study.config.get("results", "results"), study.name)),
            disturbance.disturbed_grid(study),
        ),
        "speedup": speedup_grid(speedups, study.tasks, study.name, study.replicates),
        "acceptance": acceptance_grid(acceptance, study.tasks, study.name),
        "positions": _positions_grid(study, best),
        "engines": engines.section(study, compared),
        "untested": engines.untested(study),
        "efficiency": _efficiency_grid(cells),
        "low_efficiency": bool(cells["efficiency"].median() < 0.85),
        "cells": cells_grid(cells, study),
        "downloads": {
            name: attachments.table(name, frame, shown)
            for name, frame, shown in (
                ("speedup", speedups, speedup_grid(speedups, study.tasks, study.name, study.replicates)),
                ("acceptance", acceptance, acceptance_grid(acceptance, study.tasks, study.name)),
                ("engines", compared, engines.engines_grid(compared, study)),
                ("cells", cells, cells_grid(cells, study)),
                ("optimal_k", optimal, optimal_k_grid(optimal, study.name)),
            )
        },
        "optimal": (optimal_k_sentence(optimal), optimal_k_grid(optimal, study.name)),
        "power": power_sentence(cells),
        "reproduction": reproduction.context(study, attachments.table),
        "config_link": attachments.config(study.config),
        "records": attachments.records(study.name),
        "picture_sources": attachments.picture_sources,
        "samples": _samples(study, speedups),
        "quality": quality.read_quality(study.folder, study.name),
        "simulated": simulated.simulated_grid(simulated.simulated_table(study), study.name) if study.simulated else None,
        "repetition": _repetition_grid(cells, study.tasks),
        "repetition_warnings": repetition_warnings(cells),
        "audit": None if audit is None else (verdicts.sentence(audit), verdicts.verdict_grid(audit), verdicts.RULE),
        "failed": [(job.name, slug, why) for job in study.jobs for slug, why in job.failed.items()],
        "skipped": _skipped(study),
        "prompts_per_cell": sorted({int(count) for count in cells["prompts"]}),
        "repeats": sorted({int(count) for count in cells["repeats"]}),
        "replicates": study.replicates,
        "drift": drift_sentence(cells),
        "remote": any("latency_ms" in members[0].cell.options for members in study.cells.values()),
        "training": not training_curves(study.folder / "models").empty,
        "small_model": SMALL_MODEL,
        "task_name": task_name,
    }


def _figures(study: StudyData, attachments: Attachments) -> dict[str, list[tuple[str, Markup]]]:
    """Name of a figure -> its (setting, drawing) pairs, first setting first; the setting is empty where there is only one."""
    folder = study.folder / "figures"
    with tempfile.TemporaryDirectory() as scratch:
        if not all((folder / f"{name}.svg").is_file() for name in FIGURES):
            write_figures(study.folder, Path(scratch))
            folder = Path(scratch)
        found = {}
        for name in FIGURES:
            others = sorted(folder.glob(f"{name}-*.svg"))
            first = f"{study.jobs[0].engine}-{study.jobs[0].pair}" if others else ""
            settings = [(first, folder / f"{name}.svg"), *((path.stem.removeprefix(f"{name}-"), path) for path in others)]
            found[name] = [(setting, attachments.picture(path)) for setting, path in settings]
        return found


def _positions_grid(study: StudyData, best: pd.DataFrame) -> Grid:
    """Acceptance by draft position at each method's best k, over all tasks, with one row per method of the base setting."""
    best = base_setting(best) if not best.empty else best
    wanted = set(best[IDENTITY].itertuples(index=False, name=None))
    pooled: dict[tuple[str, ...], list[Any]] = {}
    for members in study.cells.values():
        cell = members[0].cell
        if tuple(getattr(cell, name) for name in IDENTITY) in wanted and cell.k:
            label = method_name(cell.method, variant=cell.variant, lossless=members[0].lossless)
            pooled.setdefault((cell.engine, cell.pair, cell.method, label, str(cell.k)), []).extend(members)
    frames = {key: positions(records) for key, records in pooled.items()}
    deepest = max((len(frame) for frame in frames.values()), default=0)
    order = method_order(key[2] for key in frames)
    several = {index: len({key[index] for key in frames}) > 1 for index in (0, 1)}
    rows = []
    for key in sorted(frames, key=lambda key: (key[0], key[1], order.index(key[2]))):
        labels = [Entry(key[index]) for index in (0, 1) if several[index]] + [Entry(key[3]), Entry(key[4])]
        shares = row_dicts(frames[key])
        values = [Entry(grid.percent(row["conditional"]), f"({grid.percent(row['unconditional'])})") for row in shares]
        rows.append([*labels, *values, *[Entry("")] * (deepest - len(values))])
    head = [name for index, name in enumerate(("engine", "pair")) if several[index]] + ["method", "k"]
    return Grid(
        header=[*head, *(f"position {number}" for number in range(1, deepest + 1))],
        rows=rows,
        labels=len(head),
        groups=len(head) - 2,
        caption=(
            "Acceptance by draft position, tasks pooled: given that all positions before were accepted and, in brackets, of all rounds."
        ),
    )


def _efficiency_grid(cells: pd.DataFrame) -> Grid:
    """One row per engine, pair and method: the efficiency over its cells, and where its decode time went."""
    frame = cells.dropna(subset=["efficiency"])
    keys = [key for key in ("engine", "pair") if len(frame[key].unique()) > 1] + ["method"]
    order = method_order(frame["method"])
    rows = []
    groups = cast("list[tuple[tuple[str, ...], pd.DataFrame]]", list(frame.groupby(keys, sort=False)))
    for labels, members in sorted(groups, key=lambda item: (*item[0][:-1], order.index(item[0][-1]))):
        low, middle, high = members["efficiency"].quantile([0, 0.5, 1])
        method = method_name(labels[-1], lossless=bool(members["lossless"].all()))
        rows.append(
            [
                *(Entry(str(label)) for label in (*labels[:-1], method)),
                Entry(str(len(members))),
                Entry(grid.number(middle), grid.interval(low, high)),
                Entry(grid.number(members["draft_cost"].median(), 3)),
                Entry(grid.number(members["verify_cost"].median())),
                *(Entry(grid.percent(members[share].median())) for share in ("target_share", "draft_share", "loop_share")),
            ]
        )
    header = [*keys, "cells", "efficiency", "draft cost c", "verification cost v"]
    return Grid(
        header=[*header, "in target passes", "in draft passes", "elsewhere"],
        rows=rows,
        labels=len(keys),
        groups=len(keys) - 1,
        caption="Efficiency (median and range over cells), median costs in units of a one-token target pass, and where decode time goes.",
    )


def _repetition_grid(cells: pd.DataFrame, tasks: list[str]) -> Grid:
    """The share of repeated 4-grams in plain outputs by pair and task. A lossless method at temperature 0 has the same."""
    rows = []
    for (pair, temperature), members in cells.groupby(["pair", "temperature"], sort=False):
        shares = members.groupby("task")["baseline_repeated_4grams"].mean()
        rows.append(
            [Entry(str(pair)), Entry(f"{temperature:g}"), *(Entry(grid.percent(shares.get(task, np.nan))) for task in tasks)]
        )
    return Grid(
        header=["pair", "temperature", *map(task_name, tasks)],
        rows=rows,
        labels=2,
        caption="Share of 4-grams that occurred before in the same output, autoregressive decoding.",
    )


def _samples(study: StudyData, summary: pd.DataFrame) -> list[tuple[str, str, Sample]]:
    """(task, method and k, sample) for each task: the first prompt of the fastest lossless method that uses a draft."""
    fair = summary[summary["lossless"].astype(bool) & (summary["k"] > 0)].dropna(subset=[MEAN])
    fair = base_setting(fair) if not fair.empty else fair
    if fair.empty:
        return []
    top = fair.sort_values(MEAN).iloc[-1]
    keys = [key for key in IDENTITY if key != "task"]
    found: dict[str, tuple[str, str, Sample]] = {}
    for members in study.cells.values():
        cell = members[0].cell
        if all(getattr(cell, key) == top[key] for key in keys) and cell.task not in found:
            label = f"{method_name(cell.method, variant=cell.variant)}, k = {cell.k}, {cell.pair} ({cell.engine})"
            found[cell.task] = (cell.task, label, sample(members[0], study.folder, study.config))
    return [found[task] for task in study.tasks if task in found]


def _skipped(study: StudyData) -> list[tuple[str, str, str]]:
    """(job, cell, reason) for each cell that its engine cannot run."""
    from specrig.study.load import load_study
    from specrig.study.problems import StudyError

    try:
        refusals = load_study(study.folder / "study.json").grid.refusals
    except StudyError:
        return []  # a study of another version: its records still make a report
    return [("/".join(refusal.cell.job), refusal.cell.slug, refusal.reason) for refusal in refusals]
