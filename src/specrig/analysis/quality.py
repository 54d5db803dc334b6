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
    *["identical", "lossless", "same", "note"],
]
RESAMPLES = 1000


def quality_table(
    records: Iterable[Record], prompts: Mapping[str, Mapping[str, Prompt]], scorers: Mapping[str, list[str]], *, run_code: bool
) -> pd.DataFrame:
    """One row a (engine, pair, task, method, variant, temperature, batch size, scorer): `COLUMNS`; the k's are pooled.

    prompts: task -> prompt id -> Prompt, where the references are. scorers: task -> names of its scorers. run_code: whether
    scorers may execute outputs. `difference` is the method's score less the baseline's on the same prompts, with a 95 %
    bootstrap interval over prompts; `same`: the interval holds 0, or every output is the baseline's. `note` says why a
    score is missing.
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
        "same": bool(row["identical"] == 1 or score == base or low <= 0 <= high),
    }


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
