"""Write `reports/<study>/report.html`, by default a single file. All its numbers come from the study's records."""

from __future__ import annotations

import os
import tempfile
from base64 import b64encode
from dataclasses import replace
from gzip import compress
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.measurement.records import write_atomically
from specrig.reporting.documents.attachments import Attachments, Embedded, mlflow_runs
from specrig.reporting.documents.inline_svg import inline_svg
from specrig.reporting.documents.samples import Sample, sample
from specrig.reporting.figures.drawings import FILES, write_figures
from specrig.reporting.figures.panels import PHONE
from specrig.results import audit_tables as verdicts
from specrig.results import claim_tables as reproduction
from specrig.results import disturbed_cells as disturbance
from specrig.results import engine_table as engines
from specrig.results import machine as surroundings
from specrig.results import order_tables as order
from specrig.results import prose
from specrig.results import quality_table as quality
from specrig.results.advice import advice_grid
from specrig.results.conclusions import conclusion, drift_sentence, repetition_warnings
from specrig.results.floors import floor_notes
from specrig.results.grid import Grid, GridEntry, unbroken
from specrig.results.labels import cell_name, method_name, task_name
from specrig.results.names import FIGURES
from specrig.results.optimal_k_table import optimal_k_sentence
from specrig.results.study_data import StudyData, read_study, training_curves
from specrig.results.study_results import StudyResults
from specrig.results.summary import MEAN, base_setting

TIMED = ("k_sweep", "heatmap", "speedup_bars", "predicted", "engines", "batching", "latency", "reported", "order")
"""The figures of speeds. Their captions mention disturbed cells."""


def write_report(study_dir: Path, out: Path, attachments: Attachments | None = None) -> Path:
    """Write the report of `results/<study>` to the file `out`, completely or not at all, and return `out`.

    attachments: how the page carries its tables' files; None puts them inside the page.

    Figures are taken from `figures/` and drawn anew where one is missing. Tables are computed from the records, so the
    report agrees with the records even if `tables/` is older. Raises RecordError for an unreadable record.
    """
    results = StudyResults(read_study(study_dir))
    template = Environment(
        loader=PackageLoader("specrig.reporting.documents"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            unbroken(value) if type(value) is str else value
        ),  # what was escaped by hand (outputs) stays as it is
    ).get_template("report.html.j2")
    if attachments is None:
        study = results.study
        folder = Path(os.path.relpath(study.folder, out.parent)).as_posix()
        attachments = Embedded(folder, mlflow_runs(study.folder, study.name))
    write_atomically(out, template.render(_context(results, attachments)))
    return out


def _context(results: StudyResults, attachments: Attachments) -> dict[str, Any]:
    study, cells, tables = results.study, results.cells, results.tables
    first = next((job.environment for job in study.jobs if job.environment), {})
    trained = not training_curves(study.folder / "models").empty
    cell_of = {identity(members[0].cell): members[0].cell for members in study.cells.values()}

    def places(row: dict[str, Any]) -> list[GridEntry]:
        return attachments.places(cell_of[row_identity(row)])

    script = (files("specrig.reporting.documents") / "templates" / "report.js").read_text(encoding="utf-8")
    return {
        "script": Markup(script),
        "script_hash": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        "study": study,
        "version": version("specrig"),
        "conclusions": conclusion(results.speedups, results.best, study.tasks),
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
        "figures": _figures(study),
        "captions": {
            name: text + (disturbance.caption_note(cells) if name in TIMED else "") for name, text in FIGURES.items()
        },
        "disturbed": (
            disturbance.warning(cells, Path(study.config.get("results", "results"), study.name)),
            disturbance.disturbed_grid(study),
        ),
        "prose": prose,
        "results": results,
        "speedup": tables["speedup"].shown,
        "acceptance": tables["acceptance"].shown,
        "advice": advice_grid(results.advised, cells, places),
        "cells": _with_places(tables["cells"].shown, [places(row) for row in row_dicts(cells)]),
        "engines": engines.section(study, results.compared),
        "untested": engines.untested(study),
        "low_efficiency": prose.low_efficiency(results),
        "downloads": {name: attachments.table(name, table.frame, table.shown) for name, table in tables.items()},
        "optimal": (optimal_k_sentence(results.optimal), tables["optimal_k"].shown),
        "order": _order(results),
        "reproduction": reproduction.context(results.judged, tables["reproduction"].shown, study.name),
        "config_link": attachments.config(study.config),
        "records": attachments.records(study.name),
        "samples": _samples(study, results.speedups),
        "quality": quality.read_quality(study.folder, study.name),
        "simulated": tables["simulated"].shown if study.simulated else None,
        "repetition_warnings": repetition_warnings(cells),
        "audit": None if results.audit is None else (verdicts.sentence(results.audit), results.verdicts),
        "failed": [(job.name, slug, why) for job in study.jobs for slug, why in job.failed.items()],
        "skipped": _skipped(study),
        "prompts_per_cell": sorted({int(count) for count in cells["prompts"]}),
        "repeats": sorted({int(count) for count in cells["repeats"]}),
        "drift": drift_sentence(cells),
        "remote": any("latency_ms" in members[0].cell.options for members in study.cells.values()),
        "training": trained,
        "limits": prose.limits(results, trained=trained),
        "task_name": task_name,
    }


def _order(results: StudyResults) -> dict[str, Any] | None:
    """The sentences and tables of the section on the order of methods; None where no source ranks what was measured."""
    if not results.orders:
        return None
    orders, changes = results.tables["order"], results.tables["order_changes"]
    return {
        "sentence": order.sentence(orders.frame),
        "reasons": order.reasons_sentence(changes.frame),
        "grid": orders.shown,
        "changes": changes.shown,
    }


def _with_places(shown: Grid, places: list[list[GridEntry]]) -> Grid:
    """`shown` with the entries `places` of each row in columns of their own, which files of the table do not have."""
    titles = [entry.text for entry in places[0]] if places else []
    rows = [[*row, *entries] for row, entries in zip(shown.rows, places, strict=True)]
    return replace(shown, header=[*shown.header, *titles], rows=rows, trailing=shown.trailing + len(titles))


def _figures(study: StudyData) -> dict[str, list[tuple[str, Markup, str]]]:
    """Name of a figure -> its settings, first one first, each with its `_drawings`.

    The setting is empty where there is only one. A figure without data is one paragraph that says so.
    """
    folder, numbers = study.folder / "figures", count()
    with tempfile.TemporaryDirectory() as scratch:
        if not all((folder / name).is_file() for name in FILES if name.endswith(".svg")):
            write_figures(study.folder, Path(scratch))
            folder = Path(scratch)
        found = {}
        for name in FIGURES:
            others = sorted(folder.glob(f"{name}-*.svg"))
            first = f"{study.jobs[0].engine}-{study.jobs[0].pair}" if others else ""
            settings = [
                (first, folder / f"{name}.svg"),
                *((path.stem.removeprefix(f"{name}-"), path) for path in others),
            ]
            found[name] = [(setting, *_drawings(path, next(numbers))) for setting, path in settings]
        return found


def _drawings(path: Path, number: int) -> tuple[Markup, str]:
    """A figure as an element for screens, and packed (gzip, base64) for phones: unpacked, each would cost as much
    again.
    """
    drawn = inline_svg(path, "screen", f"s{number}")
    phone = inline_svg(path.parent / PHONE.name / path.name, "phone", f"p{number}")
    return drawn, "" if phone == drawn else b64encode(
        compress(phone.encode(), mtime=0)
    ).decode()  # without data both say so


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
    return [("/".join(refusal.cell.method_key[:2]), cell_name(refusal.cell), refusal.reason) for refusal in refusals]
