"""Which k is best, measured and predicted, and what the usual default loses against it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pandas as pd

from specrig.analysis.cells import by_cell, row_dicts
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import mean_interval
from specrig.measurement.records import Record

DEFAULT_K = 4
"""What is drafted a round where nobody has measured."""
KEYS = ["engine", "pair", "method", "variant", "task", "temperature", "batch_size"]
COLUMNS = [
    *KEYS,
    *["ks", "best_k", "speedup", "speedup_low", "speedup_high", "predicted_k", "predicted_speedup"],
    *["default_speedup", "loss", "loss_low", "loss_high"],
]


def optimal_k(cells: pd.DataFrame, records: Iterable[Record]) -> pd.DataFrame:
    """One row a setting of `KEYS` that was measured at two or more k's.

    cells: `cells_table`; records: those behind it. best_k: largest measured speedup; predicted_k: largest `predicted_speedup` (acceptance
    length and pass costs of the same cells), the smallest k of equals. loss: 1 - speedup at `DEFAULT_K` / speedup at best_k, with a
    95 % bootstrap interval over prompts, paired; NaN where the default was not measured. The best k is picked on the prompts it
    is reported for, so the loss is a little flattered.
    """
    logs = {members[0].cell.name: log_speedups(group_times(members)) for members in by_cell(records).values()}
    frame = cells[cells["k"] > 0].assign(variant=cells["variant"].fillna(""))
    rows = []
    for key, members in frame.dropna(subset=["speedup"]).groupby(KEYS, sort=False):
        members = members.sort_values("k").reset_index(drop=True)
        if len(members) < 2:
            continue
        best = max(row_dicts(members), key=lambda found: found["speedup"])
        known = row_dicts(members.dropna(subset=["predicted_speedup"]))
        predicted = max(known, key=lambda found: found["predicted_speedup"], default={"k": np.nan, "predicted_speedup": np.nan})
        usual = members[members["k"] == DEFAULT_K]
        row = dict(zip(KEYS, key, strict=True)) | {name: best[name] for name in ("speedup", "speedup_low", "speedup_high")}
        row |= {
            "ks": ", ".join(str(k) for k in members["k"]),
            "best_k": best["k"],
            "predicted_k": predicted["k"],
            "predicted_speedup": predicted["predicted_speedup"],
        }
        if len(usual):
            default = cast("dict[str, Any]", usual.iloc[0].to_dict())
            gained = (logs[_name(best)] - logs[_name(default)]).dropna()
            low, high = mean_interval(gained)
            row |= {"default_speedup": default["speedup"], "loss": 1 - default["speedup"] / best["speedup"]}
            row |= {"loss_low": float(1 - np.exp(-low)), "loss_high": float(1 - np.exp(-high))}
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _name(row: dict[str, Any]) -> str:
    variant = f"-{row['variant']}" if row["variant"] else ""
    slug = f"{row['task']}-k{row['k']}-t{row['temperature']:g}-b{row['batch_size']}{variant}"
    return "/".join((row["engine"], row["pair"], row["method"], slug))
