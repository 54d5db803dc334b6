"""Tokens for money, where the study names the price of an hour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import pandas as pd

from specrig.analysis.speedup import Times, group_times
from specrig.measurement.records import Record

Side = Literal["", "baseline_"]
COLUMNS: dict[str, Side] = {"tokens_per_unit": "", "baseline_tokens_per_unit": "baseline_"}
"""Column -> its side in `speedup.Times`."""


def with_price(table: pd.DataFrame, cells: Iterable[list[Record]], price_per_hour: float | None) -> pd.DataFrame:
    """`table` with `COLUMNS`, the tokens that one unit of currency buys; unchanged without a price.

    table: the `cells_table` of `cells`. The machine is taken as busy throughout at the cell's batch size, prompts
    included, and as paid for by the hour.
    """
    if price_per_hour is None:
        return table
    times = [group_times(records) for records in cells]
    found = {name: [3600 * rate(each, side) / price_per_hour for each in times] for name, side in COLUMNS.items()}
    return table.assign(**found)


def rate(times: Times, side: Side) -> float:
    """All emitted tokens / the seconds of prefill and decoding; NaN where nothing was timed."""
    seconds = float((times[f"{side}prefill_s"] + times[f"{side}decode_s"]).sum())
    return float(times[f"{side}tokens"].sum()) / seconds if seconds > 0 else float("nan")
