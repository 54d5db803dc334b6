"""Compare reported figures with measured ones: every claim gets exactly one verdict and its reason.

The first of these rules that applies decides:

1. The claim's pair cannot run in any engine: *impossible*.
2. All conditions of the claim were measured: *reproduced*, *higher* or *lower* (*not comparable* if the cell lacks the
   metric). A calculation is never compared with cells.
3. The theory can decide: *consistent with theory* or *inconsistent with theory*.
4. Some conditions were measured: *not comparable*.
5. Otherwise: *not measured*, with the command that would measure the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specrig.analysis import theory
from specrig.analysis.aggregates import means, parts
from specrig.analysis.cells import row_dicts
from specrig.analysis.commands import DTYPES, Catalogue, command
from specrig.analysis.cost_model import model_facts
from specrig.analysis.task_names import matches_task
from specrig.analysis.theory import Theory
from specrig.models import facts
from specrig.models.facts.devices import find_device
from specrig.study.claims import TIMED, Claim

TOLERANCE = 0.05
"""Reported figures come without intervals. Each is taken as known to 5 % on either side."""
VERDICTS = (
    *("reproduced", "higher", "lower", "consistent with theory", "inconsistent with theory"),
    *("not comparable", "not measured", "impossible"),
)
COLUMNS = [
    *["id", "verdict", "reason", "source", "target", "draft", "method", "k", "task"],
    *["temperature", "hardware", "precision", "batch"],
    *["metric", "reported_low", "reported_high", "measured", "measured_low", "measured_high", "ratio"],
    *["predicted_low", "predicted_high", "cell", "command"],
]
ByMethod = dict[str, list[dict[str, Any]]]
"""Method -> rows of the table of cells, so that no claim looks through the cells of all methods."""
COMPARABLE = {"acceptance_rate_alpha": "alpha"}
"""Name of a claim's metric -> column of the cells that holds it, where the two names differ."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one claim, with its reason.

    measured, low, high: the measured value and its 95 % interval, NaN without a comparable cell. ratio: measured / the
    nearer end of the reported range, 1 inside the range. predicted: (low, high) by theory. cell: the name of the cell
    that was compared.
    command: measures the claim, empty where none is needed or known.
    """

    claim: Claim
    verdict: str
    reason: str
    measured: float = NAN
    low: float = NAN
    high: float = NAN
    ratio: float = NAN
    predicted: tuple[float, float] = (NAN, NAN)
    cell: str = ""
    command: str = ""


def judge(claims: Sequence[Claim], cells: pd.DataFrame, catalogue: Catalogue) -> list[Judgement]:
    """Judge every claim; returns one judgement per claim, in the order of the claims.

    cells: the result of `analysis.cells.cells_table` with the additional columns `target` and `draft` (hub ids),
    `hardware` (the driver's name of the GPU, or `CPU`) and `dtype`.
    """
    rows = _by_method(row_dicts(cells))
    return [_judge(claim, claims, rows, catalogue) for claim in claims]


def judgements_table(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """A table with one row per claim and the columns `COLUMNS`."""
    rows = []
    for found in judgements:
        claim = found.claim
        low, high = claim.interval or (NAN, NAN)
        rows.append(
            {
                **claim.model_dump(include=set(COLUMNS)),
                **{"verdict": found.verdict, "reason": found.reason, "reported_low": low, "reported_high": high},
                **{
                    "measured": found.measured,
                    "measured_low": found.low,
                    "measured_high": found.high,
                    "ratio": found.ratio,
                },
                **{"predicted_low": found.predicted[0], "predicted_high": found.predicted[1]},
                **{"cell": found.cell, "command": found.command},
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _judge(claim: Claim, claims: Sequence[Claim], rows: ByMethod, catalogue: Catalogue) -> Judgement:
    reason = impossible(claim)
    if reason is not None:
        return Judgement(claim, "impossible", reason)
    model = theory.check(claim, claims)
    predicted = model.low, model.high
    tasks = parts(claim, claims) if claim.aggregate else []
    near = _near(claim, tasks, rows.get(claim.base_method, []))
    matching = [row for row, conditions in near if not conditions]
    if matching:
        return _compare(claim, matching, model)
    if model.consistent is not None:
        verdict = "consistent with theory" if model.consistent else "inconsistent with theory"
        return Judgement(claim, verdict, model.reason, predicted=predicted)
    if near:
        row, conditions = min(near, key=lambda item: len(item[1]))
        return Judgement(
            claim,
            "not comparable",
            f"nearest cell differs in {'; '.join(conditions)}",
            cell=_name(row),
            predicted=predicted,
        )
    run, obstacle = command(claim, catalogue, tasks)
    return Judgement(
        claim,
        "not measured",
        f"{obstacle or 'no such cell in this study'}; theory alone cannot tell: {model.reason}",
        command=run,
    )


def _by_method(rows: list[dict[str, Any]]) -> ByMethod:
    found: ByMethod = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def _near(claim: Claim, tasks: list[str], rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """The rows that run the claim's method on its pair, each with the conditions in which it differs from the claim.

    Where the claim is a mean over `tasks`, the same means of the rows take their place.
    """
    measured = [] if claim.analytic else [row for row in rows if related(claim, row)]
    measured = means(claim, tasks, measured, _column(claim)) if tasks else measured
    return [(row, differing(claim, row)) for row in measured]


def impossible(claim: Claim) -> str | None:
    """The reason why no engine can run the claim's pair; None where no reason is known."""
    for name in (claim.target, *claim.drafts):
        found = model_facts(name)
        reason = facts.no_decoder(found.name, found.config) if found else None
        if reason is not None:
            return reason
    found = model_facts(claim.target)
    drafts = [model_facts(name) for name in claim.drafts]
    reasons = [facts.impossible(found.name, draft.name) for draft in drafts if found and draft]
    return reasons[0] if reasons and all(reasons) else None


def differing(claim: Claim, row: dict[str, Any]) -> list[str]:
    """The conditions, in words, in which a cell or mean differs from the claim. What is omitted agrees."""
    found = []
    if claim.ks is not None and row["k"] not in claim.ks and row["k"] != 0:
        found.append(f"k ({claim.k} reported, {row['k']} measured)")
    if "lacks" in row:
        found += [row["lacks"]] if row["lacks"] else []
    elif claim.aggregate:
        found.append(
            f"task ({claim.task} reported, over which tasks its source's rows do not say, {row['task']} measured)"
        )
    elif claim.task and not matches_task(claim, row["task"]):
        found.append(f"task ({claim.task} reported, {row['task']} measured)")
    if claim.nucleus:
        found.append(f"sampling ({claim.temperature} reported, the whole distribution measured)")
    elif claim.sampling_temperature is not None and claim.sampling_temperature != row["temperature"]:
        found.append(f"temperature ({claim.sampling_temperature:g} reported, {row['temperature']:g} measured)")
    if claim.batch and int(claim.batch) != row["batch_size"]:
        found.append(f"batch ({claim.batch} reported, {row['batch_size']} measured)")
    if claim.metric in TIMED:
        ours, theirs = _hardware(row["hardware"]), _hardware(claim.hardware or "a GPU")
        if ours != theirs and not (theirs == "a GPU" and ours != "CPU"):
            found.append(f"hardware ({theirs} reported, {ours} measured)")
        if claim.precision and _width(claim.precision) != _width(row["dtype"]):
            found.append(f"precision ({claim.precision} reported, {row['dtype']} measured)")
    return found


def related(claim: Claim, row: dict[str, Any]) -> bool:
    """Whether a cell runs the claim's method on the claim's pair."""
    if row["method"] != claim.base_method or not (claim.general or row["target"] == claim.target):
        return False
    return not claim.drafts or claim.general or row["draft"] in claim.drafts


def _compare(claim: Claim, rows: list[dict[str, Any]], model: Theory) -> Judgement:
    """Judge a claim by the fastest of the cells that match it (several match where the source states no k or task)."""
    column = _column(claim)
    row = max(rows, key=lambda row: row["speedup"] if math.isfinite(row["speedup"]) else 0.0)
    value = row[column]
    low, high = (row[f"{column}_{end}"] for end in ("low", "high"))
    if claim.interval is None or not math.isfinite(value):
        return Judgement(claim, "not comparable", f"{_name(row)} has no {claim.metric}", cell=_name(row))
    spread = "95 % interval" if math.isfinite(low) else "too few prompts, no interval"
    low, high = (low, high) if math.isfinite(low) else (value, value)
    least, most = claim.interval[0] * (1 - TOLERANCE), claim.interval[1] * (1 + TOLERANCE)
    end = claim.interval[0] if value < claim.interval[0] else claim.interval[1] if value > claim.interval[1] else value
    ratio = value / end
    verdict = "lower" if high < least else "higher" if low > most else "reproduced"
    apart = (
        "inside the reported range"
        if ratio == 1
        else f"{abs(ratio - 1):.0%} {'above' if ratio > 1 else 'below'} the reported figure"
    )
    what = f"{row['task']}, " if "lacks" in row else ""
    what += f"the fastest of {len(rows)} cells that match, " if len(rows) > 1 else ""
    reason = f"{what}measured {value:.2f} [{low:.2f}, {high:.2f}] ({spread}), {apart}; tolerance {TOLERANCE:.0%}"
    return Judgement(
        claim,
        verdict,
        reason,
        value,
        row[f"{column}_low"],
        row[f"{column}_high"],
        ratio,
        (model.low, model.high),
        _name(row),
    )


def _column(claim: Claim) -> str:
    return COMPARABLE.get(claim.metric, claim.metric)


def _hardware(text: str) -> str:
    device = find_device(text)
    return device.device if device else text


def _width(precision: str) -> str:
    """The name of a precision's speed class: all 16-bit formats are in one."""
    name = DTYPES.get(precision.lower(), precision.lower())
    return "16 bits" if name in ("float16", "bfloat16") else name


def _name(row: dict[str, Any]) -> str:
    return "{engine}/{pair}/{method} k={k} {task} T={temperature:g} batch {batch_size}".format(**row)
