"""The audit as the report shows it: a sentence, and a table of verdicts with failures first."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.audit.multiple_testing import (
    BASELINE_TESTS,
    EXACT,
    FAMILY_WISE,
    IDENTITY,
    LOSSY,
    UNDER_LOAD,
    UNIFORMITY,
)
from specrig.report import grid
from specrig.report.grid import Column, Grid, GridEntry
from specrig.report.labels import method_name, method_order, named, task_name

SMALLEST = 1e-12
"""Smaller p-values are shown as "< 1e-12": neither readers nor double precision can tell them apart."""
TESTS = {EXACT: 0, **dict.fromkeys(BASELINE_TESTS, 1), IDENTITY: 2, UNDER_LOAD: 3, UNIFORMITY: 4}

RULE = (
    "All p-values are judged together (Holm's procedure). If all methods are correct, the probability that any test "
    f"fails is at most {100 * FAMILY_WISE:g} %."
)
CAPTION = (
    "Verdicts of the audit. p-value: how often a correct method deviates as far as this one or farther. Among many "
    f"tests some p-values are small. {RULE}"
)


def sentence(audit: pd.DataFrame) -> str:
    """Sentences that say what the audit found. audit: see `verdict_grid`."""
    lossy = _lossy_rows(audit)
    baseline = audit["test"].isin(list(BASELINE_TESTS))
    claimed = audit[~lossy & ~baseline & audit["passed"].notna()]
    failed = claimed[~claimed["passed"].astype(bool)]
    methods = claimed["method"].nunique()
    of_them = f"of the {methods} methods that claim" if methods > 1 else "of the method that claims"
    if claimed.empty:
        text = "No test of a method that claims to be lossless was judged."
    elif failed.empty and len(claimed) == 1:
        text = f"The test {of_them} to be lossless passed."
    elif failed.empty:
        text = f"All {len(claimed)} tests {of_them} to be lossless passed."
    else:
        warm = failed["temperature"].fillna(0.0) if "temperature" in failed else [0.0] * len(failed)
        names = {
            method_name(name) + (f" at temperature {temperature:g}" if temperature else "")
            for name, temperature in zip(failed["method"], warm, strict=True)
        }
        text = (
            f"{len(failed)} of {len(claimed)} tests failed ({', '.join(sorted(names))}). Speedups that were measured "
            "where a test failed are struck through in the tables."
        )
    sentence = identity(claimed)
    text += f" {sentence}" if sentence else ""
    text += (
        f" Tests of cells that are lossy by design, shown and not judged: {int(lossy.sum())}." if lossy.any() else ""
    )
    return text + _baselines(audit[baseline])


def identity(audit: pd.DataFrame) -> str:
    """How many greedy outputs of lossless methods equal plain decoding's: of those that draft, and of those that do not.

    Empty where none were compared. audit: see `verdict_grid`.
    """
    if "identical" not in audit:
        return ""
    lossy = _lossy_rows(audit)
    compared = audit[audit["identical"].notna() & ~lossy]
    plain = compared["ks"].astype(str) == "0"
    return " ".join(filter(None, [_speculative(compared[~plain]), _batched(compared[plain])]))


def _speculative(compared: pd.DataFrame) -> str:
    if compared.empty:
        return ""
    same, of = int(compared["identical"].sum()), int(compared["samples"].sum())
    share = f"all {of:,} outputs" if same == of else f"{same:,} of {of:,} outputs ({_percent(same, of)})"
    text = f"At temperature 0 {share} of speculative methods equal plain decoding's, token by token."
    if same == of:
        return text
    tied = compared["passed"].astype(bool).all()
    return text + (
        " The others differ first at a numerical tie."
        if tied
        else " A test passes where the other outputs differ first at a numerical tie."
    )


def _batched(compared: pd.DataFrame) -> str:
    """The same of methods that draft nothing: only batches tell their passes from the baseline's."""
    if compared.empty:
        return ""
    of = int(compared["samples"].sum())
    differing = of - int(compared["identical"].sum())
    if not differing:
        return f"All {of:,} batched outputs without speculation equal plain decoding's."
    tied = compared["passed"].astype(bool).all()
    reason = " at a numerical tie: a batch adds numbers in another order" if tied else ""
    return f"{differing:,} of {of:,} batched outputs without speculation differ from plain decoding's{reason}."


def _percent(part: int, whole: int) -> str:
    """A share that is rounded down, so that only all is 100 %."""
    return f"{100 * part // whole} %"


def _verdict(row: dict[str, Any]) -> str:
    """The verdict in words, with the share of identical outputs where outputs were compared."""
    if _lossy(row):
        text = "lossy"
    else:
        text = "not judged" if pd.isna(row["passed"]) else "passed" if row["passed"] else "FAILED"
    identical = row.get("identical")
    return (
        text
        if identical is None or pd.isna(identical)
        else f"{text}, {_percent(int(identical), int(row['samples']))} identical"
    )


def baseline_warning(audit: pd.DataFrame) -> str:
    """The sentence that stands before all others where plain decoding itself failed; empty where it did not."""
    wrong = audit[audit["test"].isin(list(BASELINE_TESTS)) & audit["passed"].notna()]
    wrong = wrong[~wrong["passed"].astype(bool)]
    if wrong.empty:
        return ""
    return (
        f"Plain decoding itself failed the audit: it differs from {_references(wrong)} ({_places(wrong)}). What was "
        "measured against it does not count: it is struck through, and no method is named the fastest there."
    )


def _baselines(audit: pd.DataFrame) -> str:
    """Sentences about the audit of plain decoding itself, with a space before them; empty without such tests."""
    made = audit[audit["passed"].notna()]
    wrong = made[~made["passed"].astype(bool)]
    judged = set(zip(made["engine"], made["pair"], strict=True))
    unjudged = audit[[place not in judged for place in zip(audit["engine"], audit["pair"], strict=True)]]
    text = ""
    if len(wrong):
        text = (
            f" Plain decoding itself differs from {_references(wrong)} ({_places(wrong)}). All that was measured against "
            "it is struck through."
        )
    elif len(made):
        tie = " up to a numerical tie" if made["finding"].astype(str).str.startswith("numerical tie").any() else ""
        text = f" Plain decoding, the baseline of all speedups, gives the same output{tie} as {_references(made)}."
    if len(unjudged):
        text += f" Plain decoding has no independent reference ({_places(unjudged)}). The table says why."
    elif len(made) < len(audit):
        text += f" Not compared with it: {len(audit) - len(made)} of {len(audit)} prompts. The table says why."
    return text


def _references(rows: pd.DataFrame) -> str:
    return " and ".join(title for test, title in BASELINE_TESTS.items() if test in set(rows["test"]))


def _places(rows: pd.DataFrame) -> str:
    """Engines and pairs of tests of plain decoding."""
    return ", ".join(sorted({f"{row['engine']}/{row['pair']}" for row in row_dicts(rows)}))


def verdict_grid(audit: pd.DataFrame) -> Grid:
    """The table of verdicts, one row per test. audit: the stacked `audit/*.csv` (see `specrig.audit.run.COLUMNS`)."""
    texts = ["pair", "variant", "task"]  # a column without a single entry is read as numbers
    frame = audit.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, ""))
    frame = frame.assign(order=frame["test"].map(TESTS).fillna(9))
    frame = frame.sort_values(["passed", "order", "engine", "method", "variant", "temperature", "task"], kind="stable")
    several = [name for name in ("engine", "pair") if len(set(frame[name]) - {""}) > 1]
    columns: dict[str, Column] = {
        **{name: partial(_named, name=name) for name in several},
        "method": lambda row: named(row, lossless=not _lossy(row)),
        "task": lambda row: task_name(row["task"]) if row["task"] else "small vocabulary",
        "T": lambda row: f"{row['temperature']:g}",
        "k": lambda row: "–" if str(row["ks"]) == "0" else str(row["ks"]),
        "test": grid.text("test"),
        "p-value": _p_value,
        "verdict": lambda row: GridEntry(_verdict(row), bold=not pd.isna(row["passed"]) and not row["passed"]),
        "finding": lambda row: str(row["finding"]).removeprefix(LOSSY),
    }
    labels, groups = len(columns), len(several)
    return Grid.of(row_dicts(frame), columns, labels=labels, caption=CAPTION, label="tab:verdicts", groups=groups)


def _named(row: dict[str, Any], name: str) -> str:
    return str(row[name]) or "the toy pair"


def _lossy(row: dict[str, Any]) -> bool:
    return str(row["finding"]).startswith(LOSSY)


def _lossy_rows(audit: pd.DataFrame) -> pd.Series:
    return audit["finding"].astype(str).str.startswith(LOSSY)


def _p_value(row: dict[str, Any]) -> str:
    if pd.isna(row["p_value"]):
        return ""
    return f"{row['p_value']:.2g}" if row["p_value"] > SMALLEST else f"< {SMALLEST:g}"


def _outcome(lossy: bool, passed: int, judged: int) -> str:
    if lossy:
        return "lossy by design, not judged"
    if not judged:
        return "not judged"
    return "all passed" if passed == judged else "FAILED"


def summary_grid(audit: pd.DataFrame) -> Grid:
    """One row per method and test: how many cells were tested and passed, and the smallest p-value."""
    frame = audit.assign(lossy=_lossy_rows(audit))
    order = {name: rank for rank, name in enumerate(method_order(frame["method"]))}
    rows = []
    found = cast(
        "list[tuple[tuple[str, bool, str], pd.DataFrame]]", list(frame.groupby(["method", "lossy", "test"], sort=False))
    )
    groups = sorted(found, key=lambda item: (order[item[0][0]], TESTS.get(item[0][2], 9)))
    for (method, lossy, test), members in groups:
        judged = members[members["passed"].notna()]
        passed = int(judged["passed"].astype(bool).sum())
        least = members["p_value"].min()
        rows.append(
            [
                GridEntry(method_name(str(method), lossless=not lossy)),
                GridEntry(str(test)),
                GridEntry(
                    _outcome(lossy, passed, len(judged)),
                    bold=passed < len(judged) and not lossy,
                ),
                GridEntry(str(len(members))),
                GridEntry("–" if lossy else str(passed)),
                GridEntry(_p_value({"p_value": least}) or "–"),
            ]
        )
    header = ["method", "test", "verdict", "tests", "passed", "smallest p-value"]
    caption = (
        f"The audit by method and kind of test. p-value: how often a correct method deviates as far or farther. {RULE}"
    )
    return Grid(header=header, rows=rows, labels=3, caption=caption, label="tab:audit")
