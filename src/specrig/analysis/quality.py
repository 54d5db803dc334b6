"""What the outputs are worth, method against baseline: a lossless method must score as its baseline does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specrig.analysis.statistics import LEVEL, UNKNOWN, Interval
from specrig.measurement.records import Record
from specrig.tasks.prompts import Prompt
from specrig.tasks.scorers import Output, Scorer, registry

KEYS = ["engine", "pair", "task", "method", "variant", "temperature", "batch_size"]
COLUMNS = [
    *KEYS,
    *["ks", "scorer", "prompts", "score", "baseline_score", "difference", "difference_low", "difference_high"],
    *["p_value", "identical", "lossless", "same", "note"],
]
RESAMPLES = 1000
FLIPS = 1999
FALSE_ALARM = 1e-3
"""A method that writes as its baseline does is told apart from it once in so many tables' rows."""


def quality_table(
    records: Iterable[Record], prompts: Mapping[str, Mapping[str, Prompt]], scorers: Mapping[str, list[str]], *, run_code: bool
) -> pd.DataFrame:
    """One row a (engine, pair, task, method, variant, temperature, batch size, scorer): `COLUMNS`; the k's are pooled.

    prompts: task -> prompt id -> Prompt, where the references are. scorers: task -> names of its scorers. run_code: whether
    scorers may execute outputs. `difference` is the method's score less the baseline's on the same prompts, with a 95 %
    bootstrap interval over prompts; `p_value` is that of `_randomisation`, `same` whether it is above `FALSE_ALARM`. (The interval of
    a few prompts is too narrow to accuse anyone by.) `note` says why a score is missing.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record.cell, key) for key in KEYS), []).append(record)
    rows = [
        _row(key, members, prompts[members[0].cell.task], registry()[name](), run_code)
        for key, members in groups.items()
        for name in scorers.get(members[0].cell.task, [])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    key: tuple[Any, ...], records: list[Record], prompts: Mapping[str, Prompt], scorer: Scorer, run_code: bool
) -> dict[str, Any]:
    usable = [
        record
        for record in records
        if record.prompt_id in prompts and (prompts[record.prompt_id].reference or not scorer.needs_reference)
    ]
    row: dict[str, Any] = {
        **dict(zip(KEYS, key, strict=True)),
        "ks": ", ".join(str(k) for k in sorted({record.cell.k for record in records})),
        "scorer": scorer.name,
        "prompts": len({record.prompt_id for record in usable}),
        "identical": sum(record.run.tokens == record.baseline.tokens for record in records) / len(records),
        "lossless": all(record.lossless for record in records),
        "note": "",
    }
    missing = scorer.missing()
    if missing is not None:
        return {**row, "note": f"not scored: {missing}"}
    if scorer.runs_code and not run_code:
        return {**row, "note": "not scored: it would run generated code, which needs run_generated_code: true"}
    if not usable:
        return {**row, "note": "not scored: the prompts have no references"}

    @cache
    def statistics(prompt_id: str, text: str) -> tuple[float, ...]:
        prompt = prompts[prompt_id]
        return tuple(scorer.statistics(Output(prompt.text, text, prompt.reference)))

    method: dict[str, list[tuple[float, ...]]] = {}
    baseline: dict[str, list[tuple[float, ...]]] = {}
    for record in usable:
        method.setdefault(record.prompt_id, []).append(statistics(record.prompt_id, record.text))
        baseline.setdefault(record.prompt_id, []).append(statistics(record.prompt_id, record.baseline_text))
    counts = np.array([len(members) for members in method.values()])
    ours, theirs = (np.array([np.sum(each, axis=0) for each in side.values()], dtype=float) for side in (method, baseline))
    score, base = (scorer.combine(totals.sum(0).tolist(), int(counts.sum())) for totals in (ours, theirs))
    low, high = _interval(scorer, ours, theirs, counts)
    return {
        **row,
        "score": score,
        "baseline_score": base,
        "difference": score - base,
        "difference_low": low,
        "difference_high": high,
        "p_value": (p_value := _randomisation(scorer, ours, theirs, counts)),
        "same": p_value > FALSE_ALARM,
    }


def _randomisation(scorer: Scorer, ours: NDArray[np.float64], theirs: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """p-value of the paired approximate randomisation test (Riezler and Maxwell 2005): method and baseline swap prompt by prompt."""
    if np.array_equal(ours, theirs):
        return 1.0
    count = int(counts.sum())

    def difference(swapped: NDArray[np.bool_]) -> float:
        mine, other = np.where(swapped[:, None], theirs, ours), np.where(swapped[:, None], ours, theirs)
        return abs(scorer.combine(mine.sum(0).tolist(), count) - scorer.combine(other.sum(0).tolist(), count))

    observed = difference(np.zeros(len(counts), dtype=bool))
    flips = np.random.default_rng(0).random((FLIPS, len(counts))) < 0.5
    # Rounding must not make a swap of everything smaller than what was observed.
    return float((1 + sum(difference(swapped) >= observed - 1e-9 for swapped in flips)) / (1 + FLIPS))


def _interval(scorer: Scorer, ours: NDArray[np.float64], theirs: NDArray[np.float64], counts: NDArray[np.int64]) -> Interval:
    """95 % percentile bootstrap interval of the difference, prompts redrawn; NaN for fewer than two."""
    if len(counts) < 2:
        return UNKNOWN
    draws = np.random.default_rng(0).integers(0, len(counts), size=(RESAMPLES, len(counts)))
    differences = []
    for drawn in draws:
        count = int(counts[drawn].sum())
        pair = (scorer.combine(totals[drawn].sum(0).tolist(), count) for totals in (ours, theirs))
        differences.append(next(pair) - next(pair))
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
