"""The table of pairs whose acceptance was declared. It is separate because nothing in it was accepted by a target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import cells_table, row_dicts
from specrig.analysis.claims import differing, related
from specrig.analysis.cost_model import expected_tokens
from specrig.measurement.records import Record
from specrig.report import grid
from specrig.report.claim_tables import reported_claims, with_conditions
from specrig.report.grid import Column, Grid
from specrig.report.labels import named, task_name
from specrig.report.speed_tables import RATES, device_columns
from specrig.report.study_data import StudyData
from specrig.study.claims import Claim

LABEL = "simulated acceptance"
CAPTION = (
    "SIMULATED ACCEPTANCE. The passes are real; some pairs have random weights, whose passes cost the same. The share "
    "of drafted tokens that is accepted was declared, not measured. Speeds hold only for a pair with the declared "
    "acceptance. Whether a method is lossless was not tested. Reported: the figure of a source for the pair, method and k, under its own "
    "conditions, without a verdict."
)


def simulated_table(study: StudyData) -> pd.DataFrame:
    """`cells_table` of the simulated cells, with additional columns.

    In front: `acceptance` (always "simulated acceptance"), `declared_alpha`, and `expected_length`, the tokens per pass
    that this α implies for the depths that were drafted (Leviathan eq. 1). At the end: `reported_speedup`, what sources
    state for the same pair, method, k and batch, and `reported_conditions`, in which conditions the sources differ from
    the cell.
    """
    members = list(study.simulated.values())
    table = study.with_floor(cells_table(record for records in members for record in records), study.simulated)
    table.insert(0, "acceptance", LABEL)
    table.insert(1, "declared_alpha", [records[0].simulated_acceptance for records in members])
    table.insert(2, "expected_length", [_expected(records) for records in members])
    claims = [claim for claim in reported_claims(study) if claim.metric == "speedup"] if members else []
    rows = row_dicts(with_conditions(study, table))
    found = [[claim for claim in claims if _beside(claim, row)] for row in rows]
    table["reported_speedup"] = ["; ".join(f"{_figure(claim)} ({claim.id})" for claim in own) for own in found]
    table["reported_conditions"] = [
        " | ".join(f"{claim.id}: {'; '.join(differing(claim, row)) or 'the same'}" for claim in own)
        for own, row in zip(found, rows, strict=True)
    ]
    return table


def _beside(claim: Claim, row: dict[str, Any]) -> bool:
    """Whether the claim is about the cell's pair and method, at the cell's k and batch size."""
    same_pair = not claim.general and related(claim, row)
    return same_pair and row["k"] in (claim.ks or ()) and int(claim.batch or 1) == row["batch_size"]


def _figure(claim: Claim) -> str:
    low, high = claim.interval or (float("nan"), float("nan"))
    return grid.number(low) if low == high else f"{grid.number(low)}–{grid.number(high)}"


def _expected(records: list[Record]) -> float:
    lengths = [
        expected_tokens(record.simulated_acceptance or 0.0, depth)
        for record in records
        for depth in record.run.rounds.depth[: -1 if record.run.rounds.cut else None]
    ]
    return float(np.mean(lengths)) if lengths else float("nan")


def simulated_grid(table: pd.DataFrame, study: str) -> Grid:
    """`simulated_table` as a table for readers."""
    engine = {"engine": grid.text("engine")} if len(set(table["engine"])) > 1 else {}
    columns: dict[str, Column] = {
        **engine,
        "pair": grid.text("pair"),
        "method": lambda row: named(row),
        "task": lambda row: task_name(row["task"]),
        "T": lambda row: f"{row['temperature']:g}",
        "k": lambda row: str(row["k"]) if row["k"] else "–",
        "batch": grid.text("batch_size"),
        "declared α": lambda row: f"{row['declared_alpha']:g}",
        "τ": grid.estimate("acceptance_length"),
        "expected τ": grid.figure("expected_length"),
        **RATES,
        "speedup": grid.estimate("speedup"),
        "predicted": grid.figure("predicted_speedup"),
        "reported": lambda row: str(row["reported_speedup"]) or "–",
        **device_columns(table),
    }
    labels, label = 6 + len(engine), f"tab:{study}-simulated"
    return Grid.of(row_dicts(table), columns, labels=labels, caption=CAPTION, label=label)
