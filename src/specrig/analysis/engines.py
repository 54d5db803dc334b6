"""Compare the same cells in several engines, on the prompts that all of them answered: speed, speedup and acceptance.

Acceptance depends on the pair, the prompts and the method, not on the engine. Where engines use one definition and the
same drafts, their τ must agree. The difference in τ has an interval over prompts, paired by prompt. A difference beyond
this interval has a reason: another definition, other text, drafts of another length, or something that the engine does
differently. The table states the reason where the records show it, and says "unexplained" elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis import acceptance, speedup
from specrig.analysis.cells import IDENTITY, by_cell
from specrig.analysis.statistics import LEAST_UNITS, LEVEL, Interval, interval, mean_interval, ratio_difference_interval
from specrig.measurement.records import Record

SETTING = [name for name in IDENTITY if name != "engine"]
"""The columns that must agree for two cells to be the same cell in two engines."""
COLUMNS = [
    *SETTING,
    *["engine", "reference", "lossless", "common_prompts", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"],
    *["relative_speed", "relative_speed_low", "relative_speed_high"],
    *["speedup", "speedup_low", "speedup_high", "acceptance_length", "acceptance_length_low", "acceptance_length_high"],
    *["difference", "difference_low", "difference_high", "relative_difference", "same_output", "disagrees", "reason"],
]
SAME_K = 0.05
"""Two engines draft alike if their drafted tokens per round differ by at most this relative difference."""

NO_PROMPTS = "no prompts in common"
NOT_OFFERED = "acceptance not offered"
FEW_PROMPTS = f"fewer than {LEAST_UNITS} prompts in common: no interval"
OTHER_IDS = "prompts become other token ids"
DEFINITION = "definition: the engine's totals count the last, cut round"
ALL_OTHER_TEXT = "greedy outputs part ways on all {} prompts, so other text is drafted"
OTHER_TEXT = (
    "rounding or ties: greedy outputs part ways on {} of {} prompts, so other text is drafted; on the others τ agrees"
)
SAMPLING = "sampling: the engines draw their own random numbers and wrote other text"
DRAFT_LENGTH = "drafts of another length: {:.2f} tokens a round against {:.2f}"
UNEXPLAINED = "unexplained"


def compare(
    records: Iterable[Record], engines: Sequence[str] = (), differences: Mapping[tuple[str, str], str] | None = None
) -> pd.DataFrame:
    """A table with one row per engine and setting (`SETTING`), for every setting that two or more engines measured.

    engines: names in the study's order. The first of them that measured a setting is that setting's reference; engines
    that are not listed follow by name. differences: (engine, method) -> what the engine is known to do differently.

    The columns are `COLUMNS`; all figures are computed on the prompts that every engine of the setting answered.
    `relative_speed` is tokens/s over the reference's, a geometric mean over prompts with a 95 % interval, paired by
    prompt. `difference` is τ minus the reference's τ with a 95 % interval, paired by prompt, with rounds counted alike
    in both. `disagrees` says that the interval excludes 0 at a level corrected for the number of comparisons
    (Bonferroni): a table of engines that agree contains a false alarm about once in twenty tables. `reason` is empty
    where there is nothing to explain.
    """
    settings: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    cells = by_cell(records)
    for members in cells.values():
        cell = members[0].cell
        settings.setdefault(tuple(getattr(cell, name) for name in SETTING), {})[cell.engine] = members
    level = 1 - (1 - LEVEL) / max(sum(len(found) - 1 for found in settings.values()), 1)
    order = {name: number for number, name in enumerate(engines)}
    rows = []
    for key, found in settings.items():
        if len(found) < 2:
            continue
        names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
        common = set.intersection(*({record.prompt_id for record in members} for members in found.values()))
        kept = {name: [record for record in found[name] if record.prompt_id in common] for name in names}
        for name in names:
            head = {
                **dict(zip(SETTING, key, strict=True)),
                "engine": name,
                "reference": names[0],
                "common_prompts": len(common),
            }
            head["lossless"] = all(record.lossless for record in found[name])
            known = (differences or {}).get((name, head["method"])) or (differences or {}).get(
                (names[0], head["method"]), ""
            )
            rows.append(
                head
                | _figures(kept[name])
                | _relative_speed(kept[name], kept[names[0]])
                | _disagreement(kept[name], kept[names[0]], name == names[0], known, level)
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _figures(records: list[Record]) -> dict[str, Any]:
    names = ["tokens_per_s", "speedup", "acceptance_length"]
    if not records:
        return {f"{name}{end}": float("nan") for name in names for end in ("", "_low", "_high")}
    times = speedup.group_times(records)
    values = (speedup.tokens_per_s(times), speedup.speedup(times), acceptance.acceptance_length(records))
    intervals = (
        interval(speedup.log_tokens_per_s(times), scale=np.exp),
        interval(speedup.log_speedup(times), scale=np.exp),
        interval(acceptance.acceptance_length_estimate(records)),
    )
    found: dict[str, Any] = {}
    for name, value, (low, high) in zip(names, values, intervals, strict=True):
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return found


def _relative_speed(records: list[Record], reference: list[Record]) -> dict[str, float]:
    """How fast the engine decodes over how fast the reference does, prompt by prompt; NaN without prompts in common."""
    names = ("relative_speed", "relative_speed_low", "relative_speed_high")
    if not records:
        return dict.fromkeys(names, float("nan"))
    ours, theirs = (speedup.log_rates(speedup.group_times(side)) for side in (records, reference))
    logs = (ours - theirs).dropna()
    if not len(logs):
        return dict.fromkeys(names, float("nan"))
    return dict(zip(names, np.exp([logs.mean(), *mean_interval(logs)]).tolist(), strict=True))


def _disagreement(
    records: list[Record], reference: list[Record], is_reference: bool, known: str, level: float
) -> dict[str, Any]:
    nothing = {"difference": float("nan"), "difference_low": float("nan"), "difference_high": float("nan")}
    verdict = nothing | {
        "relative_difference": float("nan"),
        "same_output": float("nan"),
        "disagrees": False,
        "reason": "",
    }
    if is_reference:
        return verdict
    if not records:
        return verdict | {"reason": NO_PROMPTS}
    same = same_output(records, reference)
    verdict["same_output"] = len(same) / len({record.prompt_id for record in records})
    if other_ids(records, reference):
        return verdict | {"reason": OTHER_IDS}
    # Totals hold the cut round and cannot do without it; then it counts on both sides.
    totals = any(record.run.counts is not None for record in (*records, *reference))
    value, interval = _difference(records, reference, cut=totals)
    if not np.isfinite(value):
        return verdict | {"reason": NOT_OFFERED}
    base = acceptance.acceptance_length(reference)
    verdict |= {"difference": value, "difference_low": interval[0], "difference_high": interval[1]}
    verdict["relative_difference"] = value / base if base else float("nan")
    if _beyond_noise(records, reference, totals, level):
        verdict |= {"disagrees": True, "reason": _reason(records, reference, same, known, totals, level)}
    elif totals and _beyond_noise(records, reference, False, level):
        verdict |= {"disagrees": True, "reason": DEFINITION}
    elif not np.isfinite(interval[0]):
        verdict["reason"] = FEW_PROMPTS
    return verdict


def _reason(records: list[Record], reference: list[Record], same: set[str], known: str, cut: bool, level: float) -> str:
    """All reasons for a disagreement that the records or the engine's own description give, joined by semicolons."""
    reasons = []
    ours, theirs = drafted_per_round(records), drafted_per_round(reference)
    if np.isfinite(ours) and np.isfinite(theirs) and abs(ours - theirs) > SAME_K * max(theirs, 1e-9):
        reasons.append(DRAFT_LENGTH.format(ours, theirs))
    prompts = {record.prompt_id for record in records}
    if len(same) < len(prompts):
        if records[0].cell.temperature > 0:
            reasons.append(SAMPLING)
        elif not same:
            reasons.append(ALL_OTHER_TEXT.format(len(prompts)))
        elif not _beyond_noise(_only(same, records), _only(same, reference), cut, level):
            reasons.append(OTHER_TEXT.format(len(prompts) - len(same), len(prompts)))
    return "; ".join([*reasons, *([known] if known else [])]) or UNEXPLAINED


def _only(prompts: set[str], records: list[Record]) -> list[Record]:
    return [record for record in records if record.prompt_id in prompts]


def _difference(
    records: list[Record], reference: list[Record], *, cut: bool, level: float = LEVEL
) -> tuple[float, Interval]:
    """(τ minus the reference's τ, its interval). cut: whether cut rounds count, as they do in an engine's totals."""
    ours, theirs = (acceptance.emitted_by_prompt(side, cut=cut) for side in (records, reference))
    prompts = [prompt for prompt in ours if ours[prompt][1] and theirs.get(prompt, (0, 0))[1]]
    if not prompts:
        return float("nan"), (float("nan"), float("nan"))
    first, second = np.array([ours[prompt] for prompt in prompts]), np.array([theirs[prompt] for prompt in prompts])
    value = first[:, 0].sum() / first[:, 1].sum() - second[:, 0].sum() / second[:, 1].sum()
    return float(value), ratio_difference_interval(
        (first[:, 0], first[:, 1]), (second[:, 0], second[:, 1]), level=level
    )


def _beyond_noise(records: list[Record], reference: list[Record], cut: bool, level: float) -> bool:
    low, high = _difference(records, reference, cut=cut, level=level)[1]
    return bool(low > 0 or high < 0)  # False for an interval that is not known


def same_output(records: Iterable[Record], reference: Iterable[Record]) -> set[str]:
    """The ids of the prompts whose outputs have the same token ids in both."""
    theirs = {record.prompt_id: record.run.tokens for record in reference}
    return {record.prompt_id for record in records if theirs.get(record.prompt_id) == record.run.tokens}


def other_ids(records: Iterable[Record], reference: Iterable[Record]) -> bool:
    """Whether any prompt has another number of token ids: the engines tokenized its text differently."""
    theirs = {record.prompt_id: record.prompt_tokens for record in reference}
    return any(theirs.get(record.prompt_id) != record.prompt_tokens for record in records)


def drafted_per_round(records: Iterable[Record]) -> float:
    """Mean draft tokens per target pass, rounds without a draft and cut ones included; NaN if not counted."""
    drafted = passes = 0
    for record in records:
        run = record.run
        if run.rounds.emitted:
            drafted, passes = drafted + sum(run.rounds.drafted), passes + len(run.rounds.drafted)
        elif run.counts is not None and run.counts.drafted is not None:
            drafted, passes = drafted + run.counts.drafted, passes + run.counts.rounds
    return drafted / passes if passes else float("nan")
