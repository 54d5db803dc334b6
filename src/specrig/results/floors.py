"""Show in tables and report what was measured on the device: energy, tokens for money, and the floor that memory
bandwidth sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from specrig.analysis.floor import COLUMNS, Floor, floor
from specrig.measurement.records import Record
from specrig.results.grid import Column, figure, number, percent, share

Environments = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(engine, pair, method) -> the content of the job's environment.json."""


DEVICE = {
    "energy_per_token_j": "J/token",
    "energy_ratio": "energy / baseline's energy",
    "tokens_per_unit": "tokens per unit of currency",
    "baseline_tokens_per_unit": "baseline tokens per unit of currency",
    "floor_ms": "floor of the baseline's pass, ms",
    "floor_share": "floor / measured pass",
}
"""Column -> its title, for the columns that readers see where the device's counters or its bandwidth were measured, or the study names a price."""


def device_columns(table: pd.DataFrame) -> dict[str, Column]:
    """The columns of `DEVICE` that a table has."""
    return {
        title: share(name) if name == "floor_share" else figure(name, 0 if "per_unit" in name else 3)
        for name, title in DEVICE.items()
        if name in table
    }


def with_floor(table: pd.DataFrame, cells: Iterable[list[Record]], environments: Environments) -> pd.DataFrame:
    """`table` with `floor.COLUMNS` where any floor is known. table: the `cells_table` of `cells`."""
    floors = [floor(records, environments.get(records[0].cell.method_key, {})) for records in cells]
    if not any(floors):
        return table
    nan = float("nan")
    values = [(nan, nan) if found is None else (1000 * found.floor_s, found.share) for found in floors]
    return table.assign(**{name: [value[index] for value in values] for index, name in enumerate(COLUMNS)})


def floor_notes(cells: Iterable[list[Record]], environments: Environments) -> list[str]:
    """For each engine, pair and batch size, sentences that compare the baseline's bare pass with its floor."""
    found: dict[tuple[str, str, int], list[tuple[Floor, Mapping[str, Any]]]] = {}
    for records in cells:
        cell, environment = records[0].cell, environments.get(records[0].cell.method_key, {})
        known = floor(records, environment)
        if known is not None and known.pass_s > 0:
            batch = 1 if records[0].baseline_alone else cell.batch_size
            found.setdefault((cell.engine, cell.pair, batch), []).append((known, environment))
    return [_sentence(key, members) for key, members in found.items()]


def _sentence(key: tuple[str, str, int], members: list[tuple[Floor, Mapping[str, Any]]]) -> str:
    engine, pair, batch = key
    memories = [environment["memory"] for _, environment in members]
    speeds = sorted({memory["copy_gb_s"] for memory in memories})
    spread = number(speeds[0], 1) if speeds[0] == speeds[-1] else f"{number(speeds[0], 1)} to {number(speeds[-1], 1)}"
    mean = {
        name: sum(getattr(each, name) for each, _ in members) / len(members)
        for name in ("read_bytes", "floor_s", "pass_s")
    }
    shares = sorted(each.share for each, _ in members)
    size = "" if batch == 1 else f", batches of {batch}"
    text = (
        f"Baseline of {pair} in {engine}{size}: a bare one-token pass takes {number(1000 * mean['pass_s'])} ms. It "
        f"must read {number(mean['read_bytes'] / 1e6, 1)} MB (weights once, keys and values), and the device copies "
        f"{spread} GB/s: floor {number(1000 * mean['floor_s'])} ms, {percent(shares[len(shares) // 2])} of it reached "
        f"(cells from {percent(shares[0])} to {percent(shares[-1])})."
    )
    weights = members[0][0].weight_bytes
    cache = max((memory.get("last_level_cache") or 0 for memory in memories), default=0)
    if cache and weights < cache:
        text += (
            f" The weights ({number(weights / 1e6, 1)} MB) are smaller than the processor's last-level cache "
            f"({number(cache / 1e6, 1)} MB) and may stay there from pass to pass. Then the memory's bandwidth is no "
            "bound, and a share above 100 % is no error."
        )
    return text
