"""Compare engines in a table, for studies with more than one engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.engines import SETTING, compare
from specrig.analysis.statistics import LEAST_UNITS
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import LOSSY_NOTE, method_order, named, task_name
from specrig.report.machine import precisions
from specrig.report.study_data import StudyData

MEASURES = {"tokens_per_s": "tokens/s (decoding)", "speedup": "speedup", "acceptance_length": "acceptance length τ"}

ALONE = "No cell of this study ran in more than one engine."


def comparison(study: StudyData) -> pd.DataFrame:
    """`analysis.engines.compare` of a study, with the differences that its engines report."""
    differences = {
        (job.engine, method): str(text)
        for job in study.jobs
        for method, text in (_engine_record(job.environment).get("differences") or {}).items()
    }
    return study.labelled(
        compare(study.records, [str(name) for name in study.config.get("engines") or []], differences)
    )


def untested(study: StudyData) -> dict[str, str]:
    """Engine -> the part of it that was never tried on real hardware, where the engine reports one."""
    found = {job.engine: _engine_record(job.environment).get("untested") for job in study.jobs}
    return {engine: str(reason) for engine, reason in found.items() if reason}


def _engine_record(environment: dict[str, Any]) -> dict[str, Any]:
    record = environment.get("engine")
    return record if isinstance(record, dict) else {}


def sentence(compared: pd.DataFrame) -> str:
    """A sentence on how many comparisons of acceptance agree, and how many disagree without a known reason."""
    against = compared[compared["engine"] != compared["reference"]]
    judged = int(np.isfinite(against["difference_low"].astype(float)).sum())
    odd = against[against["disagrees"].astype(bool)]
    if not judged:
        return f"Acceptance could not be compared: no two engines offer it on {LEAST_UNITS} or more common prompts."
    text = (
        f"Acceptance length agrees within sampling noise in {judged - len(odd)} of {judged} comparisons with the first "
        "engine."
    )
    unexplained = int((odd["reason"] == "unexplained").sum())
    return f"{text} {unexplained} of the others are unexplained." if unexplained else text


def engines_grid(compared: pd.DataFrame, study: StudyData) -> Grid:
    """`comparison` as a table for readers. Reasons of disagreements and gaps become notes, marked by letters."""
    varying = [
        name
        for name in SETTING
        if name == "task" or (name not in ("method", "k", "variant") and _varies(compared, name))
    ]
    order = {method: number for number, method in enumerate(method_order(compared["method"]))}
    found = sorted(row_dicts(compared), key=lambda row: order[row["method"]])  # stable: engines stay together
    letters: dict[str, str] = {}
    rows = []
    for row in found:
        mark = ""
        if row["reason"]:
            mark = letters.setdefault(row["reason"], grid.letter(len(letters)))
        unlike = row["relative_difference"]
        spread = grid.interval(
            row["difference_low"], row["difference_high"], units=grid.units_of(row) if np.isfinite(unlike) else None
        )
        difference = f"{row['difference']:+.2f} ({100 * unlike:+.1f} %)" if np.isfinite(unlike) else "–"
        reference = row["engine"] == row["reference"]
        labels = [
            *(task_name(str(row[name])) if name == "task" else _formatted(row[name]) for name in varying),
            named(row, lossless=row["lossless"]),
            str(row["k"]) if row["k"] else "–",
            row["engine"],
        ]
        rows.append(
            [
                *map(GridEntry, labels),
                GridEntry(str(row["common_prompts"])),
                GridEntry(grid.number(row["tokens_per_s"], 1)),
                GridEntry(
                    "1" if reference else grid.number(row["relative_speed"]),
                    _spread(row, "relative_speed", reference),
                ),
                grid.measured(row, "speedup"),
                GridEntry(grid.number(row["acceptance_length"])),
                GridEntry(
                    "" if reference else difference, " ".join(filter(None, (spread, mark))), bold=bool(row["disagrees"])
                ),
            ]
        )
    notes = [f"{letter}: {reason}." for reason, letter in letters.items()]
    notes += [f"Untested on hardware: {engine} ({reason})." for engine, reason in untested(study).items()]
    notes += [
        f"{engine} runs {pair}'s target in {kind}."
        for engine, pairs in precisions(study.jobs).items()
        for pair, kind in pairs.items()
        if len({found.get(pair) for found in precisions(study.jobs).values()} - {None}) > 1
    ]
    notes += [ALONE] if compared.empty else []
    notes += [] if compared["lossless"].astype(bool).all() else [LOSSY_NOTE]
    return Grid(
        header=[
            *(name.replace("_", " ") for name in varying),
            *["method", "k", "engine", "prompts", "tokens/s", "relative speed", "speedup", "τ", "difference in τ"],
        ],
        rows=rows,
        labels=len(varying) + 3,
        caption=(
            "The same cells in several engines, on the prompts that all of them answered. Relative speed: tokens/s / "
            "tokens/s of the cell's first engine, prompt by prompt, in separate jobs. The difference in τ is "
            "against that engine, with a 95 % interval over prompts, paired; bold where an interval corrected for the "
            "number of rows excludes 0."
        ),
        label=f"tab:{study.name}-engines",
        notes=notes,
    )


def _spread(row: dict[str, Any], name: str, reference: bool) -> str:
    """A column's interval; none for the engine that the others are held against."""
    return "" if reference else grid.interval(row[f"{name}_low"], row[f"{name}_high"])


def _varies(frame: pd.DataFrame, name: str) -> bool:
    return len(frame[name].unique()) > 1


def _formatted(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
