"""Which cells are disturbed: a warning with the command that measures them again, notes, a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, identity
from specrig.analysis.disturbance import disturbed
from specrig.analysis.efficiency import explained_efficiency
from specrig.measurement.records import NOT_RECORDED, Record
from specrig.measurement.signs import TEXTS, loads, signs
from specrig.results.grid import Grid, GridEntry, number, percent
from specrig.results.labels import DISTURBED_NOTE, DISTURBED_SIGN, cell_name
from specrig.results.study_data import StudyData

LOST = {
    "OTHERS": "other processes took {} of the processors that the jobs count on",
    "STEAL": "the host of this virtual machine gave {} of their processor time to others",
    "WAITED": "their threads waited for a processor for {} of their time",
    "HELD": "for {} of the time their measuring thread neither ran nor was ready to run",
}
"""Name of a share from `measurement.signs.signs` -> words for it; {} takes the share."""

THROUGHOUT = 0.9
"""From this share of cells with a sign of the machine against them the machine was busy throughout."""


def disturbed_cells(study: StudyData) -> list[str]:
    """The names of the disturbed cells, simulated cells included."""
    return [name for name, reasons in study.disturbances.items() if reasons]


def warning(cells: pd.DataFrame, folder: Path) -> str:
    """The warning for readers; empty where no cell is disturbed. folder: the study's results folder."""
    count = int(disturbed(cells).sum())
    again = f"specrig remeasure {folder / 'study.json'}, then the command that ran the study."
    if busy_throughout(cells):
        return (
            f"The machine was busy with other work throughout: {count} of {len(cells)} cells are marked "
            f"{DISTURBED_SIGN}, and all are shown. On a quiet machine speedups and their order may differ. To measure "
            f"them again there: {again}"
        )
    return (
        f"{count} of {len(cells)} cells {'were' if count > 1 else 'was'} disturbed: the machine did other things "
        f"during the measurement, or the times do not fit together. Such cells are marked {DISTURBED_SIGN}. A disturbed "
        "cell is called the fastest only where no undisturbed one was measured, and reported speeds are not compared with "
        "it. To measure only these cells again: "
        f"{again}"
        if count
        else ""
    )


def busy_throughout(cells: pd.DataFrame) -> bool:
    """Whether nearly all cells have a sign of the machine among their reasons, not only times that do not fit."""
    signs_of_machine = "|".join(re.escape(text.partition("{")[0]) for text in TEXTS.values())
    found = cells["disturbed"].fillna("").astype(str).str.contains(signs_of_machine)
    return len(cells) > 0 and float(found.mean()) >= THROUGHOUT


def notes(study: StudyData, cells: pd.DataFrame) -> list[str]:
    """Sentences on what else the machine did while cells were measured, and on what explains efficiencies above 1."""
    found = [signs(loads(own), study.environments.get(own[0].cell.method_key, {})) for own in study.every.values()]
    clauses = []
    for name, text in LOST.items():
        values = sorted(each[name] for each in found if name in each)
        if values:
            clauses.append(text.format(f"{percent(values[len(values) // 2], 1)} (up to {percent(values[-1])})"))
    unknown = int((cells["disturbed"] == NOT_RECORDED).sum()) if len(cells) else 0
    lines = [f"While the median cell (in brackets: the worst) was measured, {'; '.join(clauses)}."] if clauses else []
    if count := len(study.again):
        lines.append(
            f"{count} cell{'s were' if count > 1 else ' was'} measured again, because the machine was busy "
            "with other work. The least disturbed attempt counts, chosen by what the system counted and never by "
            "speed. The others are kept beside the records."
        )
    if unknown:
        lines.append(
            f"The records of {unknown} cells do not say what else the machine did. Those cells may have been "
            "disturbed: only their times were checked."
        )
    return [*lines, *filter(None, [efficiency_note(study, cells)])]


def efficiency_note(study: StudyData, cells: pd.DataFrame) -> str:
    """Why efficiencies are above 1, which loops without cost would not allow; empty where none are."""
    above = cells[(cells["efficiency"] > 1) & ~disturbed(cells)]
    if above.empty:
        return ""
    names = dict(zip(above[IDENTITY].itertuples(index=False, name=None), above["efficiency"], strict=True))
    parts = [
        (names[identity(records[0].cell)], explained_efficiency(records))
        for records in study.cells.values()
        if identity(records[0].cell) in names
    ]
    known = [(found, explained) for found, explained in parts if np.isfinite(explained)]
    if not known:
        return ""
    left = max(abs(found / explained - 1) for found, explained in known)
    low, high = min(explained for _, explained in known), max(explained for _, explained in known)
    return (
        f"Efficiency is above 1 in {len(above)} undisturbed cells (up to {number(above['efficiency'].max())}): plain "
        "decoding, the denominator, spends time outside its passes once a token, the method only once a round. This "
        f"alone gives {number(low)} to {number(high)} there. The rest, at most {percent(left)}, is the difference "
        "between a geometric mean over prompts and a ratio of sums."
    )


def disturbed_grid(study: StudyData) -> Grid | None:
    """Disturbed cells, one row per cell and replicate, with time and reasons. None without any."""
    rows = []
    for name in disturbed_cells(study):
        for replicate in dict.fromkeys(reason.replicate for reason in study.disturbances[name]):
            records = [record for record in study.every[name] if record.replicate == replicate]
            texts = [reason.text for reason in study.disturbances[name] if reason.replicate == replicate]
            cell = records[0].cell
            rows.append(
                [
                    GridEntry("/".join(cell.method_key[:2])),
                    GridEntry(cell_name(cell)),
                    GridEntry(str(replicate)),
                    GridEntry(_when(records)),
                    GridEntry("; ".join(texts)),
                ]
            )
    if not rows:
        return None
    return Grid(
        ["pair", "cell", "replicate", "when (UTC)", "reasons"],
        rows,
        labels=5,
        caption=f"{DISTURBED_NOTE} When: the probes around its block.",
    )


def caption_note(cells: pd.DataFrame) -> str:
    """The sentence on disturbed cells to append to a figure's caption; empty where no cell is disturbed.

    Empty too where the machine was busy throughout, which the report says once.
    """
    count = 0 if busy_throughout(cells) else int(disturbed(cells).sum())
    return (
        f" {count} of the study's {len(cells)} cells {'were' if count > 1 else 'was'} disturbed ({DISTURBED_SIGN} in "
        "figures and tables). Do not rely on them."
        if count
        else ""
    )


def _when(records: Sequence[Record]) -> str:
    first = records[0]
    if first.before is None or first.after is None:
        return "–"
    return f"{first.before.when[:16].replace('T', ' ')} to {first.after.when[11:16]}"
