"""Compare reported with measured figures: the table of verdicts and a sentence on it."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.claims import TOLERANCE, VERDICTS, judge, judgements_table
from specrig.analysis.commands import Catalogue, KnownPair
from specrig.analysis.theory import ABOVE, BELOW
from specrig.checkout import here_or_shipped
from specrig.decoding.drafters import registry as methods
from specrig.report import grid
from specrig.report.citations import with_paper
from specrig.report.grid import Column, Grid, GridEntry
from specrig.report.study_data import MeasuredJob, StudyData
from specrig.study.claims import Claim, read_claims
from specrig.study.problems import Positions, Problems
from specrig.study.rows import Pair, Task, dialect, read_rows

DECIDED = ("reproduced", "higher", "lower", "impossible", "inconsistent with theory")
"""Verdicts that say something of the figure itself; they come first in tables."""
FOUND = (*DECIDED, "consistent with theory")
"""Verdicts by measurement or theory: those of the other figures say only why there is none."""
RULES = (
    "Measured: the 95 % interval overlaps the reported figure widened by "
    f"{TOLERANCE:.0%}. Theory: the figure lies between {1 - BELOW:.0%} and {1 + ABOVE:.0%} of what acceptance and the "
    f"roofline of the passes predict (calculations: ± {ABOVE:.0%})."
)


def reproduction(study: StudyData, cells: pd.DataFrame | None = None) -> pd.DataFrame:
    """`claims.judgements_table` for the study's file of reported figures; empty where the study names no such file.

    cells: the study's, with `failed`; None: without an audit. What it failed reproduces nothing. Raises StudyError for
    rows that cannot be read; it states the place of each.
    """
    sound = study.table if cells is None else cells[~cells["failed"].astype(bool)]
    return judgements_table(judge(reported_claims(study), with_conditions(study, sound), _catalogue(study)))


def reported_claims(study: StudyData) -> list[Claim]:
    """The claims in the study's file, if it names one. Raises StudyError like `reproduction`."""
    problems = Problems(Positions([]))
    tables = study.config.get("tables") or {}
    claims = read_claims(here_or_shipped(Path(tables["reported"])), problems) if tables.get("reported") else []
    problems.stop()
    return claims


def counts(judged: pd.DataFrame) -> dict[str, int]:
    """Verdict -> the number of claims with it, in the order of `VERDICTS`, without verdicts that no claim has."""
    found = judged["verdict"].value_counts()
    return {verdict: int(found[verdict]) for verdict in VERDICTS if verdict in found}


def sentence(judged: pd.DataFrame) -> str:
    """A sentence that states the number of claims with each verdict."""
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts(judged).items())
    return f"Of {len(judged)} reported figures: {summary}."


def reproduction_grid(judged: pd.DataFrame, study: str) -> Grid:
    """The verdicts in `FOUND` as a table for readers, those of `DECIDED` first, and where the others stand."""
    order = {verdict: number for number, verdict in enumerate(DECIDED)}
    rank = judged["verdict"].map(lambda verdict: order.get(verdict, len(order)))
    columns: dict[str, Column] = {
        "id": grid.text("id"),
        "verdict": grid.text("verdict"),
        "target": grid.text("target"),
        "method and task": lambda row: " ".join(str(row[name]) for name in ("method", "task") if row[name]),
        "k": lambda row: str(row["k"]) or "–",
        "hardware": lambda row: str(row["hardware"]) or "–",
        "metric": _metric,
        **FIGURES,
    }
    found = judged.assign(rank=rank)[judged["verdict"].isin(FOUND)].sort_values("rank", kind="stable")
    others = len(judged) - len(found)
    return Grid.of(
        row_dicts(found),
        columns,
        labels=7,
        trailing=1,
        caption=f"The reported figures that were measured here, or that theory judges. {RULES}",
        label=f"tab:{study}-reproduction",
        notes=[
            f"{others} other reported figure{'s' if others > 1 else ''}, without such a verdict, "
            f"{'are' if others > 1 else 'is'} listed in reproduction.csv."
        ]
        if others
        else [],
    )


def decided_grid(judged: pd.DataFrame, study: str) -> Grid:
    """The claims with a verdict in `DECIDED`, in columns that fit on a page. judged: the rows of these claims."""
    columns: dict[str, Column] = {"id": grid.text("id"), "verdict": grid.text("verdict"), "claim": _claim, **FIGURES}
    caption = "Reported figures that were measured, cannot be true of their pair, or contradict the theory."
    label = f"tab:{study}-decided"
    return Grid.of(row_dicts(judged), columns, labels=3, trailing=1, caption=caption, label=label)


def sources_grid(judged: pd.DataFrame, study: str) -> Grid:
    """The number of claims by source and verdict, a table that fits on a page of a paper."""
    verdicts = list(counts(judged))
    crossed = pd.crosstab(judged["source"], judged["verdict"]).reindex(judged["source"].unique())
    rows = [
        [GridEntry(with_paper(str(source))), *(GridEntry(str(row[verdict] or "")) for verdict in verdicts)]
        for source, row in crossed.iterrows()
    ]
    return Grid(
        ["source", *verdicts],
        rows,
        caption=f"Reported figures by source and verdict. {RULES}",
        label=f"tab:{study}-sources",
    )


def with_conditions(study: StudyData, cells: pd.DataFrame) -> pd.DataFrame:
    """`cells` with the columns on which claims are matched: `target` and `draft` (hub ids), `dtype`, `hardware`."""
    rows = study.config.get("rows") or {}
    pairs = rows.get("pairs") or {}
    hardware = {(job.engine, job.pair, job.method): _machine(job) for job in study.jobs}
    jobs = list(zip(cells["engine"], cells["pair"], cells["method"], strict=True))
    return cells.assign(
        target=[pairs.get(pair, {}).get("target") or "" for pair in cells["pair"]],
        draft=[pairs.get(pair, {}).get("draft") or "" for pair in cells["pair"]],
        dtype=[pairs.get(pair, {}).get("dtype") or "float32" for pair in cells["pair"]],
        hardware=[hardware[job] for job in jobs],
    )


def _catalogue(study: StudyData) -> Catalogue:
    """All pairs and tasks of the study's tables (or of the study itself), and all registered methods."""
    rows = study.config.get("rows") or {}
    tables = study.config.get("tables") or {}
    problems = Problems(Positions([]))  # rows that the study does not use may be wrong: planning says so
    pairs = {name: row.model_dump() for name, row in read_rows(Path(tables.get("pairs", "")), Pair, problems).items()}
    real = {name: row for name, row in (pairs or rows.get("pairs") or {}).items() if row.get("weights") != "random"}
    tasks = read_rows(Path(tables.get("tasks", "")), Task, problems) or rows.get("tasks") or {}
    file = Path(tables.get("pairs", ""))
    return Catalogue(
        pair_columns=_header(file) if file.is_file() else list(Pair.model_fields),
        pairs={name: KnownPair(row["target"], row["draft"] or "", _heads(row)) for name, row in real.items()},
        tasks=list(tasks),
        methods={name: method.needs for name, method in methods().items()},
    )


def _header(file: Path) -> list[str]:
    with file.open(encoding="utf-8", newline="") as lines:
        return next(csv.reader(lines, **dialect(file)), [])


def _heads(row: dict[str, Any]) -> list[str]:
    return [entry.partition("=")[0] for entry in str(row.get("heads", "")).split()]


def _machine(job: MeasuredJob) -> str:
    gpus = job.environment.get("gpus") or []
    return str(gpus[0]["name"]) if gpus else "CPU"


def _metric(row: dict[str, Any]) -> str:
    return str(row["metric"]).replace("_", " ")


def _claim(row: dict[str, Any]) -> str:
    k = f", k = {row['k']}" if row["k"] else ""
    return f"{row['method']}{k}, {' '.join(filter(None, (row['target'], row['task'])))}: {_metric(row)}"


def _range(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if pd.isna(low) and not pd.isna(high):
        return f"at most {grid.number(high)}"
    return grid.number(low) if grid.number(low) == grid.number(high) else f"{grid.number(low)}–{grid.number(high)}"


FIGURES: dict[str, Column] = {
    "reported": partial(_range, name="reported"),
    "measured": grid.range_of("measured", "measured_low", "measured_high"),
    "predicted": partial(_range, name="predicted"),
    "reason": grid.text("reason"),
}
"""What every table of claims shows of them."""
