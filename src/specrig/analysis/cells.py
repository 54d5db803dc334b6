"""The table of cells, with one row per cell. Every other table and every figure is made from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from specrig.analysis import acceptance, cost_model, energy, repetition, speedup, statistics
from specrig.analysis.statistics import Estimate, moderated
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
    *["target_pass_ms", "repeated_4grams", "baseline_repeated_4grams", "distinct_2grams"],
    *["freedom", "timing", "settled", "notes", "digest"],
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


@dataclass(frozen=True, slots=True)
class Measure:
    """A column with an interval: how it is estimated from a cell's records, on which scale, and its bounds."""

    estimate: Callable[[list[Record], speedup.Times], Estimate]
    scale: Callable[[Any], Any] = np.asarray
    least: float = -math.inf
    most: float = math.inf

    def ends(self, estimate: Estimate) -> statistics.Interval:
        """(low, high), cut to the values that the measure can have."""
        low, high = statistics.interval(estimate, scale=self.scale)
        # A pass emits a token at least, but for an engine that counts passes in its own way.
        return max(low, min(self.least, float(self.scale(estimate.value)))), min(high, self.most)


MEASURES = {
    "speedup": Measure(lambda _, times: speedup.log_speedup(times), np.exp),
    "end_to_end": Measure(lambda _, times: speedup.log_speedup(times, "end_to_end"), np.exp),
    "tokens_per_s": Measure(lambda _, times: speedup.log_tokens_per_s(times), np.exp),
    "ms_per_token": Measure(lambda _, times: speedup.log_s_per_token(times), lambda log: 1000 * np.exp(log)),
    "acceptance_rate": Measure(lambda records, _: acceptance.acceptance_rate_estimate(records), least=0, most=1),
    "acceptance_length": Measure(lambda records, _: acceptance.acceptance_length_estimate(records), least=1),
    "alpha": Measure(lambda records, _: acceptance.alpha_estimate(records), least=0, most=1),
}
"""Measure -> how its interval comes about, in the columns `<measure>_low` and `<measure>_high`."""


def cells_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per cell with the columns `COLUMNS`, then `EXTRAS`. A table without rows has the same columns.

    NaN means undefined, never zero. `acceptance_rate`, `alpha` and `draft_cost` are undefined where nothing was drafted
    (the baseline, n-gram without a match), costs where the engine does not time bare passes, intervals for fewer than
    three prompts. The spread of a task's prompts is moderated by that of the same setting's other tasks
    (`statistics.moderated`); `freedom` is the degrees of freedom of the speedup's interval. `settled` is the share of
    the prompts whose times settled; `timing` says how they follow from the repeats.
    """
    cells = by_cell(records)
    times = {name: speedup.group_times(members) for name, members in cells.items()}
    ends = intervals(cells, times)
    rows = [_row(members, times[name]) | ends[name] for name, members in cells.items()]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *EXTRAS, *energy.COLUMNS])
    return frame.drop(columns=[name for name in energy.COLUMNS if frame[name].isna().all()])


def intervals(cells: Mapping[str, list[Record]], times: Mapping[str, speedup.Times]) -> dict[str, dict[str, float]]:
    """Cell's name -> `<measure>_low` and `<measure>_high` of each of `MEASURES`, and `freedom`."""
    found: dict[str, dict[str, float]] = {name: {} for name in cells}
    settings: dict[Cell, list[str]] = {}
    for name, members in cells.items():
        settings.setdefault(members[0].cell.model_copy(update={"task": ""}), []).append(name)
    for names in settings.values():
        for measure, how in MEASURES.items():
            for name, estimate in zip(
                names, moderated([how.estimate(cells[name], times[name]) for name in names]), strict=True
            ):
                found[name] |= dict(zip((f"{measure}_low", f"{measure}_high"), how.ends(estimate), strict=True))
                if measure == "speedup":
                    found[name]["freedom"] = float(estimate.freedom)
    return found


def _row(records: list[Record], times: speedup.Times) -> dict[str, Any]:
    cell, runs = records[0].cell, [run for record in records for run in (record.run, record.baseline)]
    measured = speedup.speedup(times)
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
        "baseline_tokens_per_s": speedup.tokens_per_s(times, "baseline_"),
        "speedup": measured,
        "end_to_end_speedup": speedup.speedup(times, "end_to_end"),
        "ttft_ms": 1000 * times["ttft_s"].mean(),
        "baseline_ttft_ms": 1000 * times["baseline_ttft_s"].mean(),
        "ms_per_token": speedup.ms_per_token(times),
        "prompts_needed": statistics.prompts_needed(speedup.log_speedups(times)),
        "baseline_ms_per_token": speedup.ms_per_token(times, "baseline_"),
        "acceptance_rate": acceptance.acceptance_rate(records),
        "depth_acceptance_rate": acceptance.depth_acceptance_rate(records),
        "acceptance_length": length,
        "alpha": acceptance.alpha(records),
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
        "repeats": max(len(run.repeats) for run in runs),
        "timing": ", ".join(dict.fromkeys(run.timing for run in runs)),
        "settled": sum(record.settled for record in records) / len(records),
        "rounds": acceptance.rounds(records),
        "cut_rounds": acceptance.cut_rounds(records),
        "repeated_4grams": repetition.repeated_ngrams(record.run.tokens for record in records),
        "baseline_repeated_4grams": repetition.repeated_ngrams(record.baseline.tokens for record in records),
        "distinct_2grams": repetition.distinct_ngrams(record.run.tokens for record in records),
        "notes": "; ".join(dict.fromkeys(note for run in runs for note in run.fallbacks)),
        "digest": records[0].digest,
        **energy.energy(times, records),
    }


def row_dicts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries that map a column's name to its value."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))
