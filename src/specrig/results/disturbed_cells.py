"""Which cells are disturbed: a warning with the command that measures them again, notes, a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, identity
from specrig.analysis.disturbance import disturbed, shares
from specrig.analysis.efficiency import explained_efficiency
from specrig.measurement.records import NOT_RECORDED, Record
from specrig.results.grid import Grid, GridEntry, number, percent
from specrig.results.labels import DISTURBED_NOTE, DISTURBED_SIGN, cell_name
from specrig.results.study_data import StudyData

LOST = {
    "OTHERS": "other processes took {} of the processors that the jobs count on",
    "STEAL": "the host of this virtual machine gave {} of their processor time to others",
    "WAITED": "their threads waited for a processor for {} of their time",
    "HELD": "their measuring thread neither ran nor was ready to for {} of the time",
}
"""Name of a share from `analysis.disturbance.shares` -> words for it; {} takes the share."""


def disturbed_cells(study: StudyData) -> list[str]:
    """The names of the disturbed cells, simulated cells included."""
    return [name for name, reasons in study.disturbances.items() if reasons]


def warning(cells: pd.DataFrame, folder: Path) -> str:
    """The warning for readers; empty where no cell is disturbed. folder: the study's results folder."""
    count = int(disturbed(cells).sum())
    return (
        f"{count} of {len(cells)} cells {'were' if count > 1 else 'was'} disturbed: the machine did other things during the measurement, or the "
        f"times do not fit together. Such cells are marked {DISTURBED_SIGN}. They are never called best, fastest or optimal, and no reported speed "
        f"is judged by them. To measure just them again: specrig remeasure {folder / 'study.json'}, then the command that ran the study."
        if count
        else ""
    )


def notes(study: StudyData, cells: pd.DataFrame) -> list[str]:
    """Sentences on what else the machine did while cells were measured, and on what explains efficiencies above 1."""
    found = [shares(own, study.environments.get(own[0].cell.method_key, {})) for own in study.every.values()]
    clauses = []
    for name, text in LOST.items():
        values = sorted(each[name] for each in found if name in each)
        if values:
            clauses.append(text.format(f"{percent(values[len(values) // 2], 1)} (up to {percent(values[-1])})"))
    unknown = int((cells["disturbed"] == NOT_RECORDED).sum()) if len(cells) else 0
    lines = [f"While the median cell (in brackets: the worst) was measured, {'; '.join(clauses)}."] if clauses else []
    if unknown:
        lines.append(
            f"The records of {unknown} cells do not say what else the machine did. Those cells may have been disturbed: only their times were "
            "checked."
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
        f"Efficiency is above 1 in {len(above)} undisturbed cells (up to {number(above['efficiency'].max())}): plain decoding, the denominator, spends "
        f"time outside its passes once a token, the method only once a round. This alone gives {number(low)} to {number(high)} there. The rest, "
        f"at most {percent(left)}, is the difference between a geometric mean over prompts and a ratio of sums."
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
    """The sentence on disturbed cells to append to a figure's caption; empty where no cell is disturbed."""
    count = int(disturbed(cells).sum())
    return (
        f" {count} of the study's {len(cells)} cells {'were' if count > 1 else 'was'} disturbed ({DISTURBED_SIGN} in figures and tables). Do not read them."
        if count
        else ""
    )


def _when(records: Sequence[Record]) -> str:
    first = records[0]
    if first.before is None or first.after is None:
        return "–"
    return f"{first.before.when[:16].replace('T', ' ')} to {first.after.when[11:16]}"
