"""The table of pairs whose acceptance was declared. It is separate because nothing in it was accepted by a target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import cells_table, row_dicts
from specrig.analysis.claims import differing, related
from specrig.analysis.cost_model import expected_tokens
from specrig.analysis.disturbance import disturbed
from specrig.measurement.records import Record
from specrig.results import grid
from specrig.results.claim_tables import reported_claims, with_conditions
from specrig.results.floors import device_entries, device_titles
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import DISTURBED_NOTE, method_name, task_name
from specrig.results.study_data import StudyData
from specrig.study.claims import Claim

LABEL = "simulated acceptance"
CAPTION = (
    "SIMULATED ACCEPTANCE. The passes are real, if need be with random weights, which cost the same; the share of "
    "drafted tokens that is accepted was declared, not measured. Speeds hold if a pair accepts as declared; lossless or "
    "not does not apply. Reported: what a source states of the pair, method and k, under its own "
    "conditions; it stands beside, without a verdict."
)


def simulated_table(study: StudyData) -> pd.DataFrame:
    """`cells_table` of the simulated cells, with additional columns.

    In front: `acceptance` (always "simulated acceptance"), `declared_alpha`, and `expected_length`, the tokens per pass
    that this α implies for the depths that were drafted (Leviathan eq. 1). At the end: `reported_speedup`, what sources
    state for the same pair, method, k and batch, and `reported_conditions`, in which conditions the sources differ from
    the cell.
    """
    members = list(study.simulated.values())
    table = study.with_machine_state(cells_table(record for records in members for record in records), study.simulated)
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
    engine = ["engine"] if len(set(table["engine"])) > 1 else []
    rows = [
        [
            *(GridEntry(str(row[name])) for name in [*engine, "pair"]),
            GridEntry(method_name(row["method"], variant=row["variant"], disturbed=marked)),
            GridEntry(task_name(row["task"])),
            GridEntry(f"{row['temperature']:g}"),
            GridEntry(str(row["k"]) if row["k"] else "–"),
            GridEntry(str(row["batch_size"])),
            GridEntry(f"{row['declared_alpha']:g}"),
            grid.measured(row, "acceptance_length"),
            GridEntry(grid.number(row["expected_length"])),
            GridEntry(grid.number(row["tokens_per_s"], 1)),
            GridEntry(grid.number(row["baseline_tokens_per_s"], 1)),
            grid.measured(row, "speedup"),
            GridEntry(grid.number(row["predicted_speedup"])),
            GridEntry(str(row["reported_speedup"]) or "–"),
            *device_entries(row),
        ]
        for row, marked in zip(row_dicts(table), disturbed(table), strict=True)
    ]
    header = "pair, method, task, T, k, batch, declared α, τ, expected τ, tokens/s, baseline tokens/s".split(", ")
    header = [*engine, *header, "speedup", "predicted", "reported", *device_titles(table)]
    notes = [DISTURBED_NOTE] if disturbed(table).any() else []
    return Grid(
        header=header, rows=rows, labels=6 + len(engine), caption=CAPTION, label=f"tab:{study}-simulated", notes=notes
    )
