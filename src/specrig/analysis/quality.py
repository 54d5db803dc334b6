"""Score the outputs of each method and of its baseline. A lossless method must score like its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from specrig.analysis.statistics import UNKNOWN, Interval, interval, jackknife
from specrig.measurement.records import Record
from specrig.tasks.prompts import Prompt
from specrig.tasks.scorers import Output, Scorer, registry

KEYS = ["engine", "pair", "task", "method", "variant", "temperature", "batch_size"]
COLUMNS = [
    *KEYS,
    *["ks", "scorer", "prompts", "score", "baseline_score", "difference", "difference_low", "difference_high"],
    *["p_value", "identical", "lossless", "same", "note"],
]
FLIPS = 1999
FALSE_ALARM = 1e-3
"""The chance that a method is reported to differ from its baseline, per row of the table, although it does not."""


class Score(BaseModel):
    """One scorer's statistics of the method's and the baseline's output in one record. They add up over prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    pair: str
    task: str
    method: str
    variant: str
    temperature: float
    batch_size: int
    k: int
    scorer: str
    prompt_id: str
    identical: bool
    """Whether the two outputs have the same token ids."""
    lossless: bool
    usable: bool
    """Whether the prompt is known and has the reference that the scorer may need."""
    statistics: tuple[float, ...] = ()
    baseline_statistics: tuple[float, ...] = ()
    """`statistics` are those of the method's output. Both are empty where the record is not usable or was not scored.
    """
    note: str = ""
    """The reason why the record was not scored; empty where it was."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies a row of `quality_table`: the values of `KEYS`, then the scorer."""
        return (*(getattr(self, name) for name in KEYS), self.scorer)


def scores(
    records: Iterable[Record],
    prompts: Mapping[str, Mapping[str, Prompt]],
    scorers: Mapping[str, list[str]],
    *,
    run_code: bool,
) -> list[Score]:
    """One Score for each record and each scorer of the record's task.

    prompts: task -> prompt id -> Prompt, which holds the reference. scorers: task -> names of its scorers. run_code:
    whether scorers may execute generated code.
    """
    known = {name: registry()[name]() for names in scorers.values() for name in names}
    notes = {name: _unscored(scorer, run_code) for name, scorer in known.items()}

    @cache
    def statistics(name: str, task: str, prompt_id: str, text: str) -> tuple[float, ...]:
        prompt = prompts[task][prompt_id]
        return tuple(known[name].statistics(Output(prompt.text, text, prompt.reference)))

    found = []
    for record in records:
        task, prompt = record.cell.task, prompts[record.cell.task].get(record.prompt_id)
        for name in scorers.get(task, []):
            usable = prompt is not None and bool(prompt.reference or not known[name].needs_reference)
            texts = (record.text, record.baseline_text) if usable and not notes[name] else ()
            counted = [statistics(name, task, record.prompt_id, text) for text in texts] or [(), ()]
            found.append(
                Score(
                    **{key: getattr(record.cell, key) for key in [*KEYS, "k"]},
                    scorer=name,
                    prompt_id=record.prompt_id,
                    identical=record.run.tokens == record.baseline.tokens,
                    lossless=record.lossless,
                    usable=usable,
                    statistics=counted[0],
                    baseline_statistics=counted[1],
                    note=notes[name],
                )
            )
    return found


def quality_table(found: Iterable[Score]) -> pd.DataFrame:
    """A table with one row per setting (`KEYS`) and scorer, and the columns `COLUMNS`. All k's of a setting are pooled.

    `difference` is the method's score minus the baseline's on the same prompts, with a 95 % interval over prompts.
    `p_value` comes from a paired randomisation test; `same` says whether it is above `FALSE_ALARM`. The interval does
    not serve for this decision, because it excludes 0 in one of twenty rows where nothing differs. `note` says why a
    score is missing.
    """
    groups: dict[tuple[Any, ...], dict[str, list[Score]]] = {}
    for score in found:  # the scorers of a group stay together
        groups.setdefault(score.key[:-1], {}).setdefault(score.scorer, []).append(score)
    rows = [_row(members, registry()[name]()) for each in groups.values() for name, members in each.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


def loss_against_speed(quality: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """The scored rows of `quality` (a `quality_table`) with what a method gains for what it loses: `k`, `speedup` with
    its interval, as `best` has them (rows of the table of cells, each method at one k).
    """
    gained = best[[*KEYS, "k", "speedup", "speedup_low", "speedup_high"]]
    return quality.dropna(subset=["difference"]).merge(gained, on=KEYS)


def _unscored(scorer: Scorer, run_code: bool) -> str:
    """The reason why a scorer cannot be used here; empty if it can."""
    missing = scorer.missing()
    if missing is not None:
        return f"not scored: {missing}"
    if scorer.runs_code and not run_code:
        return "not scored: it would run generated code, which needs run_generated_code: true"
    return ""


def _row(members: list[Score], scorer: Scorer) -> dict[str, Any]:
    usable = [score for score in members if score.usable]
    row: dict[str, Any] = {
        **dict(zip(KEYS, members[0].key, strict=False)),
        "ks": ", ".join(str(k) for k in sorted({score.k for score in members})),
        "scorer": scorer.name,
        "prompts": len({score.prompt_id for score in usable}),
        "identical": sum(score.identical for score in members) / len(members),
        "lossless": all(score.lossless for score in members),
        "note": members[0].note,
    }
    if members[0].note:
        return row
    if not usable:
        return {**row, "note": "not scored: the prompts have no references"}
    method: dict[str, list[tuple[float, ...]]] = {}
    baseline: dict[str, list[tuple[float, ...]]] = {}
    for score in usable:
        method.setdefault(score.prompt_id, []).append(score.statistics)
        baseline.setdefault(score.prompt_id, []).append(score.baseline_statistics)
    counts = np.array([len(each) for each in method.values()])
    ours, theirs = (
        np.array([np.sum(each, axis=0) for each in side.values()], dtype=float) for side in (method, baseline)
    )
    value, base = (scorer.combine(totals.sum(0).tolist(), int(counts.sum())) for totals in (ours, theirs))
    low, high = _interval(scorer, ours, theirs, counts)
    return {
        **row,
        "score": value,
        "baseline_score": base,
        "difference": value - base,
        "difference_low": low,
        "difference_high": high,
        "p_value": (p_value := _randomisation(scorer, ours, theirs, counts)),
        "same": p_value > FALSE_ALARM,
    }


def _randomisation(
    scorer: Scorer, ours: NDArray[np.float64], theirs: NDArray[np.float64], counts: NDArray[np.int64]
) -> float:
    """p-value of the paired approximate randomisation test (Riezler and Maxwell 2005).

    Each random swap exchanges method and baseline on half of the prompts, on average.
    """
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


def _interval(
    scorer: Scorer, ours: NDArray[np.float64], theirs: NDArray[np.float64], counts: NDArray[np.int64]
) -> Interval:
    """95 % interval of the difference, by the jackknife over prompts."""
    if len(counts) < 2:
        return UNKNOWN

    def difference(mine: NDArray[np.float64], other: NDArray[np.float64], count: int) -> float:
        return scorer.combine(mine.tolist(), count) - scorer.combine(other.tolist(), count)

    sums, count = (ours.sum(0), theirs.sum(0)), int(counts.sum())
    without = [
        difference(sums[0] - mine, sums[1] - other, count - int(own))
        for mine, other, own in zip(ours, theirs, counts, strict=True)
    ]
    return interval(jackknife(difference(*sums, count), without))
