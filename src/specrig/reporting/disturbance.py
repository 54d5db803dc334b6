"""Disturbed cells as people see them: a warning, a sign, a table of reasons, and the command that measures them again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from specrig.analysis.disturbance import disturbed, shares
from specrig.analysis.efficiency import explained_efficiency
from specrig.measurement.records import NOT_RECORDED, Record
from specrig.reporting.grid import Entry, Grid, interval, number, percent
from specrig.reporting.study_data import StudyData
from specrig.reporting.style import DISTURBED_NOTE, DISTURBED_SIGN

LOST = {
    "OTHERS": "other processes took {} of the processors that the jobs count on",
    "STEAL": "the host of this virtual machine gave {} of their processor time to others",
    "WAITED": "their threads waited for a processor for {} of their time",
    "HELD": "their measuring thread neither ran nor was ready to for {} of the time",
}
"""Names of `analysis.disturbance.shares`, in words."""


def disturbed_cells(study: StudyData) -> list[str]:
    """Names of the disturbed cells, simulated ones included."""
    return [name for name, reasons in study.disturbances.items() if reasons]


def warning(cells: pd.DataFrame, folder: Path) -> str:
    """A sentence or two for whoever reads the results of the study in `folder`; empty where no cell is disturbed."""
    count = int(disturbed(cells).sum())
    what = f"{count} of {len(cells)} cells were" if count > 1 else f"1 of {len(cells)} cells was"
    return (
        f"{what} disturbed while they were measured: the machine did other things, or their times do not fit each other. They are marked "
        f"{DISTURBED_SIGN} and left out of what is called best, fastest or optimal, and of verdicts on reported speeds. To measure just those "
        f"again: specrig remeasure --study {folder / 'study.json'}, then what ran the study."
        if count
        else ""
    )


def notes(study: StudyData, cells: pd.DataFrame) -> list[str]:
    """What the machine was seen to do beside the cells, and what efficiencies far from 1 are made of."""
    found = [shares(own, study.environments.get(own[0].cell.job, {})) for own in study.every.values()]
    said = []
    for name, text in LOST.items():
        values = sorted(each[name] for each in found if name in each)
        if values:
            said.append(text.format(f"{percent(values[len(values) // 2], 1)} (up to {percent(values[-1])})"))
    unknown = int((cells["disturbed"] == NOT_RECORDED).sum()) if len(cells) else 0
    lines = [f"While the median cell (the worst in brackets) was measured, {'; '.join(said)}."] if said else []
    if unknown:
        lines.append(
            f"Of {unknown} cells it was not recorded what else the machine did while they ran: they may have been disturbed, and only "
            "their times were checked."
        )
    return [*lines, *filter(None, [efficiency_note(study, cells)])]


def efficiency_note(study: StudyData, cells: pd.DataFrame) -> str:
    """What explains the efficiencies above 1, of which there should be none if loops cost nothing."""
    above = cells[(cells["efficiency"] > 1) & ~disturbed(cells)]
    if above.empty:
        return ""
    names = set(
        above[["engine", "pair", "method", "variant", "task", "k", "temperature", "batch_size"]].itertuples(
            index=False, name=None
        )
    )
    explained = [explained_efficiency(_first(records)) for records in study.cells.values() if _identity(records[0]) in names]
    low, high = np.nanmin([*explained, np.inf]), np.nanmax([*explained, -np.inf])
    if not np.isfinite(low):
        return ""
    return (
        f"Efficiency is above 1 in {len(above)} undisturbed cells (up to {number(above['efficiency'].max())}): plain decoding, the denominator, spends "
        f"more of its own time outside its passes than the method does, once a token instead of once a round. That alone gives "
        f"{interval(float(low), float(high))} there."
    )


def disturbed_grid(study: StudyData) -> Grid | None:
    """The disturbed cells by replicate, with the time of measuring and the reasons; None where there are none."""
    rows = []
    for name in disturbed_cells(study):
        for replicate in dict.fromkeys(reason.replicate for reason in study.disturbances[name]):
            records = [record for record in study.every[name] if record.replicate == replicate]
            texts = [reason.text for reason in study.disturbances[name] if reason.replicate == replicate]
            job, _, cell = name.rpartition("/")
            rows.append([Entry(job), Entry(cell), Entry(str(replicate)), Entry(_when(records)), Entry("; ".join(texts))])
    if not rows:
        return None
    return Grid(
        ["job", "cell", "replicate", "when (UTC)", "reasons"],
        rows,
        labels=5,
        caption=f"{DISTURBED_NOTE} When: the probes around its block.",
    )


def caption_note(cells: pd.DataFrame) -> str:
    """What the caption of a figure of these cells adds."""
    count = int(disturbed(cells).sum())
    return (
        f" {count} of the study's {len(cells)} cells are disturbed ({DISTURBED_SIGN} in figures and tables) and should not be read."
        if count
        else ""
    )


def _when(records: Sequence[Record]) -> str:
    first = records[0]
    if first.before is None or first.after is None:
        return "–"
    return f"{first.before.when[:16].replace('T', ' ')} to {first.after.when[11:16]}"


def _first(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.replicate == records[0].replicate]


def _identity(record: Record) -> tuple[object, ...]:
    cell = record.cell
    return cell.engine, cell.pair, cell.method, cell.variant, cell.task, cell.k, cell.temperature, cell.batch_size
