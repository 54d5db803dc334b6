"""The table of cells, with one row per cell. Every other table and every figure is made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import pandas as pd

from specrig.analysis import acceptance, cost_model, energy, repetition, replicates, speedup, statistics
from specrig.analysis.statistics import UNKNOWN
from specrig.cell import Cell
from specrig.measurement.records import Record

IDENTITY = ["engine", "pair", "method", "k", "task", "temperature", "batch_size", "variant"]
"""The columns that together identify a cell."""

Identity = tuple[Any, ...]
"""The values of `IDENTITY`."""

COLUMNS = [
    *["engine", "pair", "method", "k", "task", "temperature", "batch_size", "prompts", "tokens"],
    *["tokens_per_s", "baseline_tokens_per_s", "speedup", "speedup_low", "speedup_high", "end_to_end_speedup"],
    *["ttft_ms", "acceptance_rate", "acceptance_length", "alpha", "draft_cost", "verify_cost"],
    *["predicted_speedup", "efficiency", "peak_memory_mb"],
]
"""The published columns, in order."""

EXTRAS = [
    *["variant", "lossless", "repeats", "ms_per_token", "baseline_ms_per_token", "baseline_ttft_ms"],
    *"end_to_end_low end_to_end_high tokens_per_s_low tokens_per_s_high ms_per_token_low ms_per_token_high".split(),
    *["alpha_low", "alpha_high", "prompts_needed"],
    *["acceptance_rate_low", "acceptance_rate_high", "acceptance_length_low", "acceptance_length_high"],
    *["depth_acceptance_rate", "rounds", "cut_rounds", "target_share", "draft_share", "loop_share"],
    *["target_pass_ms", "repeated_4grams", "baseline_repeated_4grams", "distinct_2grams", "baseline_drift"],
    *["replicates", "drift", "drift_low", "drift_high", "digest"],
]
"""The columns after `COLUMNS`. Later versions may add more, so read them by name. `energy.COLUMNS` follow where known.
"""


def identity(cell: Cell) -> Identity:
    """What identifies a cell."""
    return tuple(getattr(cell, name) for name in IDENTITY)


def row_identity(row: Mapping[str, Any]) -> Identity:
    """What identifies the cell of a table's row."""
    return tuple(row[name] for name in IDENTITY)


def by_cell(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Map each `Cell.name` to the records of that cell; cells come in order of first appearance."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell.name, []).append(record)
    return cells


def cells_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per cell with the columns `COLUMNS`, then `EXTRAS`. A table without rows has the same columns.

    NaN means undefined, never zero. `acceptance_rate`, `alpha` and `draft_cost` are undefined where nothing was drafted
    (the baseline, n-gram without a match), costs where the engine does not time bare passes, intervals for fewer than
    three prompts. `drift` is the speedup in the last replicate / the speedup in the first. Where a pair has replicates,
    the intervals of speeds and times include how much whole runs differ (see `analysis.replicates`).
    """
    cells = by_cell(records)
    measures: dict[str, Callable[[speedup.Times], pd.Series]] = {
        "speedup": speedup.log_ratios,
        "end_to_end": partial(speedup.log_ratios, scope="end_to_end"),
        "rate": speedup.log_rates,
    }
    pools = {name: replicates.between(cells, measure) for name, measure in measures.items()}
    rows = [_row(members, pools) for members in cells.values()]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *EXTRAS, *energy.COLUMNS])
    return frame.drop(columns=[name for name in energy.COLUMNS if frame[name].isna().all()])


def _row(
    records: list[Record], pools: Mapping[str, Mapping[tuple[str, str], replicates.BetweenRuns]]
) -> dict[str, Any]:
    cell = records[0].cell
    times = speedup.group_times(records)
    measured = speedup.speedup(times)
    count = replicates.count(records)
    found = {name: pool.get((cell.engine, cell.pair)) for name, pool in pools.items()}
    runs = {name: pool.of_mean(count) if pool else None for name, pool in found.items()}
    low, high = speedup.speedup_interval(times, runs=runs["speedup"])
    whole_low, whole_high = speedup.speedup_interval(times, "end_to_end", runs["end_to_end"])
    rate_low, rate_high = speedup.tokens_per_s_interval(times, runs["rate"])
    drift, drift_ends = (
        replicates.drift(replicates.layout(speedup.log_ratios(times))) if count > 1 else (float("nan"), UNKNOWN)
    )
    taken_low, taken_high = acceptance.acceptance_rate_interval(records)
    length_low, length_high = acceptance.acceptance_length_interval(records)
    length = acceptance.acceptance_length(records)
    costs = cost_model.pass_costs(records)
    predicted = cost_model.predicted_speedup(length, costs)
    decode_s = times["decode_s"].sum()
    timed = decode_s > 0 and costs.target_s > 0
    return {
        **cell.model_dump(include=set(IDENTITY)),
        "prompts": len({record.prompt_id for record in records}),
        "tokens": int(times["tokens"].sum()),
        "tokens_per_s": speedup.tokens_per_s(times),
        "tokens_per_s_low": rate_low,
        "tokens_per_s_high": rate_high,
        "baseline_tokens_per_s": speedup.tokens_per_s(times, "baseline_"),
        "speedup": measured,
        "speedup_low": low,
        "speedup_high": high,
        "end_to_end_speedup": speedup.speedup(times, "end_to_end"),
        "end_to_end_low": whole_low,
        "end_to_end_high": whole_high,
        "ttft_ms": 1000 * times["ttft_s"].mean(),
        "baseline_ttft_ms": 1000 * times["baseline_ttft_s"].mean(),
        "ms_per_token": speedup.ms_per_token(times),
        **dict(
            zip(
                ("ms_per_token_low", "ms_per_token_high"),
                speedup.ms_per_token_interval(times, runs["rate"]),
                strict=True,
            )
        ),
        "prompts_needed": statistics.prompts_needed(speedup.log_speedups(times)),
        "baseline_ms_per_token": speedup.ms_per_token(times, "baseline_"),
        "acceptance_rate": acceptance.acceptance_rate(records),
        "acceptance_rate_low": taken_low,
        "acceptance_rate_high": taken_high,
        "depth_acceptance_rate": acceptance.depth_acceptance_rate(records),
        "acceptance_length": length,
        "acceptance_length_low": length_low,
        "acceptance_length_high": length_high,
        "alpha": acceptance.alpha(records),
        **dict(zip(("alpha_low", "alpha_high"), acceptance.alpha_interval(records), strict=True)),
        "draft_cost": costs.draft_cost,
        "verify_cost": costs.verify_cost,
        "target_pass_ms": 1000 * costs.target_pass_s,
        "predicted_speedup": predicted,
        "efficiency": cost_model.efficiency(measured, predicted),
        "target_share": costs.target_s / decode_s if timed else float("nan"),
        "draft_share": costs.draft_s / decode_s if timed else float("nan"),
        "loop_share": 1 - (costs.target_s + costs.draft_s) / decode_s if timed else float("nan"),
        "peak_memory_mb": max(record.run.peak_memory_mb for record in records) or float("nan"),
        "lossless": all(record.lossless for record in records),
        "repeats": len({record.repeat for record in records}),
        "rounds": acceptance.rounds(records),
        "cut_rounds": acceptance.cut_rounds(records),
        "repeated_4grams": repetition.repeated_ngrams(record.run.tokens for record in records),
        "baseline_repeated_4grams": repetition.repeated_ngrams(record.baseline.tokens for record in records),
        "distinct_2grams": repetition.distinct_in_each(records),
        "baseline_drift": speedup.baseline_drift(records),
        "replicates": count,
        "drift": drift,
        **dict(zip(("drift_low", "drift_high"), drift_ends, strict=True)),
        "digest": records[0].digest,
        **energy.energy(times, records),
    }


def row_dicts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries that map a column's name to its value."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))
