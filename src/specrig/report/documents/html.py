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
from markupsafe import Markup

from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.files import write_atomically
from specrig.report import machine
from specrig.report.documents.attachments import Attachments, Embedded, mlflow_runs
from specrig.report.documents.contents import Paragraph, ReadySection, ReadyTable, contents
from specrig.report.documents.html_templates import html_template
from specrig.report.documents.inline_svg import has_data, inline_svg
from specrig.report.documents.samples import Sample, sample
from specrig.report.figures.drawings import file_names, write_figures
from specrig.report.figures.panels import PHONE
from specrig.report.grid import Grid, GridEntry
from specrig.report.items import Figure
from specrig.report.labels import task_name
from specrig.report.outline import figures
from specrig.report.study_data import StudyData, read_study
from specrig.report.study_results import StudyResults
from specrig.report.summary import MEAN, base_setting


def write_report(study_dir: Path, out: Path, attachments: Attachments | None = None) -> Path:
    """Write the report of `results/<study>` to the file `out`, completely or not at all, and return `out`.

    attachments: how the page carries its tables' files; None puts them inside the page.

    Figures are taken from `figures/` and drawn anew where one is missing. Tables are computed from the records, so the
    report agrees with the records even if `tables/` is older. Raises RecordError for an unreadable record.
    """
    results = StudyResults(read_study(study_dir))
    if attachments is None:
        folder = Path(os.path.relpath(study_dir, out.parent)).as_posix()
        attachments = Embedded(folder, mlflow_runs(study_dir, results.name))
    write_atomically(out, html_template("report.html.j2").render(_context(results, attachments)))
    return out


def _context(results: StudyResults, attachments: Attachments) -> dict[str, Any]:
    study = results.study
    cell_of = {identity(members[0].cell): members[0].cell for members in study.cells.values()}

    def links(row: dict[str, Any]) -> list[GridEntry]:
        return attachments.links(cell_of[row_identity(row)])

    script = (files("specrig.report.documents") / "templates" / "report.js").read_text(encoding="utf-8")
    drawings = _drawings_of(study)
    ready = contents(results, "html", drawings)
    return {
        "script": Markup(script),
        "script_hash": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        "version": version("specrig"),
        "results": results,
        "contents": ready,
        "sections": [_section(section, results, attachments, links) for section in ready.sections],
        "commit": machine.commit(study.environment),
        "drawings": drawings,
        "captions": {name: item.caption for name, item in figures().items()},
        "config_link": attachments.config(study.config),
        "records": attachments.records(results.folder),
        "samples": _samples(study, results.speedups),
        "commands": [(row["id"], row["command"]) for row in row_dicts(results.judged) if row["command"]],
        "task_name": task_name,
    }


def _section(section: ReadySection, results: StudyResults, attachments: Attachments, links: Any) -> dict[str, Any]:
    """A section as the template reads it."""
    items: list[dict[str, Any]] = []
    for item in section.items:
        if isinstance(item, Paragraph):
            items.append({"kind": "text", "text": item.text, "warning": item.warning})
        elif isinstance(item, ReadyTable):
            entry, data = item.item, item.data
            grid = item.grid
            if entry.linked:
                linked = _with_links(grid, [links(row) for row in row_dicts(results.cells)])
                grid = _with_note(linked, attachments)
            downloads = attachments.table(entry.name, data.frame, data.formatted) if data and entry.file else []
            items.append({"kind": "table", "table": entry, "grid": grid, "links": downloads})
        else:
            items.append({"kind": "figure" if isinstance(item, Figure) else "block", "name": item.name})
    return {"name": section.section.name, "title": section.title, "first": section.section.first, "entries": items}


def _with_links(formatted: Grid, links: list[list[GridEntry]]) -> Grid:
    """`formatted` with the entries `links` of each row in columns of their own, which files of the table do not have."""
    titles = [entry.text for entry in links[0]] if links else []
    rows = [[*row, *entries] for row, entries in zip(formatted.rows, links, strict=True)]
    return replace(formatted, header=[*formatted.header, *titles], rows=rows, trailing=formatted.trailing + len(titles))


def _with_note(linked: Grid, attachments: Attachments) -> Grid:
    """A grid with links, and what a reader must know of them."""
    return replace(linked, notes=[*linked.notes, *filter(None, [attachments.links_note])])


def _drawings_of(study: StudyData) -> dict[str, list[tuple[str, Markup, str]]]:
    """Name of a figure with data -> its settings that have any, first one first, each with its `_drawings`.

    The setting is empty where there is only one.
    """
    folder, numbers = study.folder / "figures", count()
    with tempfile.TemporaryDirectory() as scratch:
        if not all((folder / name).is_file() for name in file_names() if name.endswith(".svg")):
            write_figures(study.folder, Path(scratch))
            folder = Path(scratch)
        found = {}
        for name in figures():
            others = sorted(folder.glob(f"{name}-*.svg"))
            first = f"{study.jobs[0].engine}-{study.jobs[0].pair}" if others else ""
            settings = [(first, folder / f"{name}.svg")]
            settings += [(path.stem.removeprefix(f"{name}-"), path) for path in others]
            drawn = [(setting, *_drawings(path, next(numbers))) for setting, path in settings if has_data(path)]
            if drawn:
                found[name] = drawn
        return found


def _drawings(path: Path, number: int) -> tuple[Markup, str]:
    """A figure as an element for screens, and packed (gzip, base64) for phones."""
    drawn = inline_svg(path, "screen", f"s{number}")
    phone = inline_svg(path.parent / PHONE.name / path.name, "phone", f"p{number}")
    return drawn, b64encode(compress(phone.encode(), mtime=0)).decode()


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
            name = study.labels[cell.method, cell.variant]
            label = f"{name}, k {cell.k}, {cell.pair} ({cell.engine})"
            found[cell.task] = (cell.task, label, sample(members[0], study.folder, study.config))
    return [found[task] for task in study.tasks if task in found]
