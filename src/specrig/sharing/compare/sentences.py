"""What a comparison says in words. No number is written in this file: all follow from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from specrig.analysis.statistics import LEVEL as INTERVAL
from specrig.analysis.statistics import student
from specrig.results.grid import interval, number, percent
from specrig.sharing.compare.comparison import LEVEL, Comparison, Row
from specrig.sharing.compare.setup_differences import unrecorded

NOTES = (
    "A and B are the speedups as each study's report has them. B / A is the whole change; the own change is what it is beyond that of the median cell, "
    "because a slower day moves all cells alike. Own changes are tested.",
    "Prompts are compared one by one where the smaller study's prompts are all in the larger one (the same id and length in tokens); else all prompts "
    "of A with all of B, as independent samples (Welch).",
    "τ: tokens that a pass of the target emits. Its change is what acceptance did; what the speedup changed beyond it is the time of a round.",
)


def headline(comparison: Comparison) -> list[str]:
    """What to know first: agreement, the shift of all cells, changes beyond chance, acceptance, and what the intervals
    can tell.
    """
    said = [
        _same(comparison),
        _contained(comparison),
        _shift(comparison),
        _changes(comparison.rows),
        _acceptance(comparison),
        _reach(comparison),
        _marked(comparison.rows),
        _only(comparison),
        _unrecorded(comparison),
    ]
    return [sentence for sentence in said if sentence]


def _same(comparison: Comparison) -> str:
    same, common = len(comparison.same), len(comparison.common)
    if not same:
        return ""
    if same == common:
        return f"Both hold the very same records of all {common} common cells, times included: they are one measurement, and that they agree says nothing."
    return (
        f"Of {common} common cells {same} hold the very same records in both, times included: these were measured once, so that they agree says nothing, "
        f"neither below nor of the machine. The other {common - same} were measured anew."
    )


def _contained(comparison: Comparison) -> str:
    (ours, of_ours), (theirs, of_theirs) = comparison.contained
    if not of_ours and not of_theirs:
        return "There are no intervals to compare: a cell needs two prompts."
    # Two measurements of the same thing with errors alike differ by a normal variable of √2 times their error.
    expected = 2 * ndtr(student(math.inf, INTERVAL) / math.sqrt(2)) - 1
    once = [name for name, side in (("A", comparison.a), ("B", comparison.b)) if side.study.replicates == 1]
    narrow = (
        f" The intervals of {' and '.join(once)}, whose jobs ran once, leave out what whole runs differ, so fewer may."
        if once
        else ""
    )
    return (
        f"{ours} of {of_ours} of A's {percent(INTERVAL)} intervals of speedup hold what B measured ({percent(_share(ours, of_ours))}), and {theirs} of "
        f"{of_theirs} of B's hold what A measured. Where nothing changed, {percent(expected)} are to be expected on other prompts, and more on the "
        f"same.{narrow}"
    )


def _shift(comparison: Comparison) -> str:
    ratios = np.array([row.change.speedup.ratio for row in comparison.rows])
    shift = comparison.changes.shift
    if not math.isfinite(shift.ratio):
        return ""
    low, high = np.nanquantile(ratios, [0.25, 0.75])
    if not math.isfinite(shift.interval[0]):
        chance = "neither study ran its jobs twice, so nothing tells how much whole runs differ"
    else:
        chance = f"{interval(*shift.interval)} with what whole runs differ, {'more than' if shift.excludes_one else 'no more than'} chance explains"
    plain = (
        f" Plain decoding ran at {number(comparison.plain)} times A's tokens/s."
        if math.isfinite(comparison.plain)
        else ""
    )
    return (
        f"The median cell's speedup in B is {number(shift.ratio)} times A's ({chance}); half of the cells lie between {number(float(low))} and "
        f"{number(float(high))}.{plain}"
    )


def _changes(rows: Sequence[Row]) -> str:
    changed = [row.change.own.ratio for row in rows if row.speed]
    tested = sum(math.isfinite(row.change.own.p_value) for row in rows)
    alone = sum(row.change.own.excludes_one for row in rows)
    up = sum(ratio > 1 for ratio in changed)
    how = (
        f"{len(changed)} of {tested} cells changed their speedup otherwise than the median cell and beyond chance ({up} up, {len(changed) - up} down)"
        if changed
        else f"None of {tested} cells changed its speedup otherwise than the median cell beyond chance"
    )
    return (
        f"{how}, all judged together (Holm, {percent(LEVEL)} for even one false alarm). Judged one by one {alone} would have; about "
        f"{number((1 - INTERVAL) * tested, 0)} are to be expected by chance alone."
    )


def _acceptance(comparison: Comparison) -> str:
    rows = comparison.rows
    pairs = sum(row.change.agreement.pairs for row in rows)
    plain, rounds = (sum(getattr(row.change.agreement, name) for row in rows) for name in ("plain", "rounds"))
    changed, alone = sum(row.acceptance for row in rows), sum(row.change.length.excludes_one for row in rows)
    count = f"{changed} of {len(rows)} cells changed their" if changed else "no cell changed its"
    cells = f"{count} acceptance length beyond chance, all judged together (one by one {alone} would have)"
    if not pairs:
        return f"Acceptance: {cells}; the two have no prompt in common."
    if rounds == pairs:
        return (
            f"Acceptance is the same, not only on average: in all {pairs:,} generations that both made of the same prompts, every token and every round is "
            "the same. Models and prompts explain no change; what is left is the machine, the code's own time, and chance."
        )
    said = f"Acceptance: {cells}. Of {pairs:,} generations of the same prompts, plain decoding gave the same tokens in {plain:,}, the methods the same rounds in {rounds:,}."
    if any(each.effect == "acceptance and speed" and each.what != "code" for each in comparison.differences):
        return f"{said} The models, prompts or settings differ (see below), which can explain it."
    return f"{said} The models' digests, the prompts and the settings are the same, so the code or rounding (another processor, another torch) decided otherwise."


def _reach(comparison: Comparison) -> str:
    own = [row.change.own for row in comparison.rows]
    known = [reach for each in own if math.isfinite(reach := each.interval[1] / each.ratio - 1)]
    runs = [side.study.replicates for side in (comparison.a, comparison.b)]
    if max(runs) == 1:
        about = "Both ran their jobs once: what a run does to a single cell is not known, and the intervals, which leave it out, are too narrow."
    elif min(runs) == 1:
        about = f"What a run does to a single cell is known from {'AB'[runs.index(max(runs))]} alone, and taken to hold for both."
    else:
        about = "What a run does to a single cell is estimated from the runs of both."
    return (
        f"The interval of the median cell's own change reaches {percent(float(np.median(known)))} up: smaller changes do not show. {about}"
        if known
        else about
    )


def _marked(rows: Sequence[Row]) -> str:
    counts = [sum(row.marked[side] for row in rows) for side in (0, 1)]
    return (
        f"Disturbed while they were measured (‡): {counts[0]} of these cells in A, {counts[1]} in B; a change of their speed means little."
        if any(counts)
        else ""
    )


def _only(comparison: Comparison) -> str:
    ours, theirs = (len(names) for names in comparison.only)
    return f"Cells in A alone: {ours}; in B alone: {theirs}. They are not compared." if ours or theirs else ""


def _unrecorded(comparison: Comparison) -> str:
    sides = zip("AB", unrecorded(comparison.a.study, comparison.b.study), strict=True)
    return " ".join(
        f"{name} did not record {', '.join(what)}: whether that differs is not known." for name, what in sides if what
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
