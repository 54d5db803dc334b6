"""What a comparison says in words. No number is written in this file: all follow from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from specrig.analysis.statistics import LEAST_UNITS, student
from specrig.analysis.statistics import LEVEL as INTERVAL
from specrig.results.grid import interval, number, percent
from specrig.results.labels import BASELINES, method_name, method_order, task_name
from specrig.results.summary import MEAN
from specrig.sharing.compare.setup_differences import unrecorded
from specrig.sharing.compare.study_comparison import LEVEL, CellComparison, StudyComparison, listed, reliable

IDENTITY_WORDS = {
    "engine": "engines", "pair": "pairs", "method": "methods", "task": "tasks", "temperature": "temperatures",
    "batch_size": "batch sizes",
}  # fmt: skip
"""Parts of a cell's identity that a sentence names -> plural."""


def headline(comparison: StudyComparison) -> list[str]:
    """What to know first: what can be compared, what changed beyond chance, and what the intervals can show."""
    if comparison.common:
        found = [
            *(_identical(comparison), _coverage(comparison), _shift(comparison), _changed(comparison.cells)),
            *(_acceptance(comparison), _smallest_visible(comparison), _disturbed(comparison.cells)),
            _unmatched(comparison),
        ]
    else:
        parts = (_no_common_cell, _in_common, _fastest, _order, _plain_decoding, _unmatched_methods)
        found = [part(comparison) for part in parts]
    return [sentence for sentence in [*found, _unrecorded(comparison)] if sentence]


def notes(comparison: StudyComparison) -> tuple[str, ...]:
    """How to read the tables."""
    if not comparison.common:
        return (
            "Speedup: over plain decoding of the same pair on the same machine. τ: tokens that a pass of the target "
            "emits.",
            "Another pair is another question: a larger target gains more from an accepted draft, and a better draft "
            "is accepted more often. So no row is a change, and none is tested.",
        )
    return (
        "A and B are the speedups in each study's report. B / A is the whole change. The relative change is relative "
        "to the median cell's, because a slower day moves all cells alike. Relative changes are tested.",
        "Prompts are compared one by one where the larger study has all prompts of the smaller one (the same id and "
        "length in tokens). Otherwise all prompts of A are compared with all of B, as independent samples (Welch).",
        "τ: tokens that a pass of the target emits. Its change is the change of acceptance; the rest of a speedup's "
        "change is the time of a round.",
    )


def _identical(comparison: StudyComparison) -> str:
    same, common = len(comparison.identical), len(comparison.common)
    if not same:
        return ""
    if same == common:
        return (
            f"Both hold identical records of all {common} common cells, times included: they are one measurement, so "
            "their agreement shows nothing."
        )
    return (
        f"{same} of {common} common cells have identical records in both, times included: they were measured once, so "
        f"their agreement shows nothing, also not about the machine. The other {common - same} were measured anew."
    )


def _coverage(comparison: StudyComparison) -> str:
    (ours, of_ours), (theirs, of_theirs) = comparison.coverage
    if not of_ours and not of_theirs:
        return f"There are no intervals to compare: a cell needs {LEAST_UNITS} prompts."
    # Two measurements of the same thing with errors alike differ by a normal variable of √2 times their error.
    expected = 2 * ndtr(student(math.inf, INTERVAL) / math.sqrt(2)) - 1
    once = [side.name for side in (comparison.a, comparison.b) if side.study.replicates == 1]
    narrow = (
        f" The jobs of {' and '.join(once)} ran once: these intervals leave out how whole runs differ, so fewer of them may hold the "
        "other's estimate."
        if once
        else ""
    )
    share = percent(ours / of_ours if of_ours else float("nan"))
    return (
        f"{ours} of {of_ours} of A's {percent(INTERVAL)} intervals of speedup hold B's estimate ({share}), and "
        f"{theirs} of {of_theirs} of B's hold A's. Where nothing changed, expect {percent(expected)} on other prompts, "
        f"and more on the same.{narrow}"
    )


def _shift(comparison: StudyComparison) -> str:
    shift = comparison.changes.shift
    if not math.isfinite(shift.ratio):
        return ""
    low, high = np.nanquantile([cell.change.speedup.ratio for cell in comparison.cells], [0.25, 0.75])
    if not math.isfinite(shift.interval[0]):
        chance = "neither study ran its jobs twice, so how much whole runs differ is not known"
    else:
        more = "more than" if shift.excludes_one else "no more than"
        chance = f"{interval(*shift.interval)} with the differences between runs, {more} chance explains"
    plain = comparison.plain_decoding
    speed = f" In B, plain decoding ran at {number(plain)} times A's tokens/s." if math.isfinite(plain) else ""
    return (
        f"The median cell's speedup in B is {number(shift.ratio)} times A's ({chance}). Half of the cells lie between "
        f"{number(float(low))} and {number(float(high))}.{speed}"
    )


def _changed(cells: Sequence[CellComparison]) -> str:
    changed = [cell.change.relative.ratio for cell in cells if cell.speedup_changed]
    tested = sum(math.isfinite(cell.change.relative.p_value) for cell in cells)
    alone = sum(cell.change.relative.excludes_one for cell in cells)
    up = sum(ratio > 1 for ratio in changed)
    found = (
        f"{len(changed)} of {tested} cells changed their speedup relative to the median cell beyond chance "
        f"({up} up, {len(changed) - up} down)"
        if changed
        else f"None of {tested} cells changed its speedup relative to the median cell beyond chance"
    )
    return (
        f"{found}, all judged together (Holm, {percent(LEVEL)} for even one false alarm). Judged one by one {alone} "
        f"would have; by chance alone expect about {number((1 - INTERVAL) * tested, 0)}."
    )


def _acceptance(comparison: StudyComparison) -> str:
    cells = comparison.cells
    pairs = sum(cell.change.agreement.pairs for cell in cells)
    plain, rounds = (sum(getattr(cell.change.agreement, name) for cell in cells) for name in ("plain", "rounds"))
    changed = sum(cell.acceptance_changed for cell in cells)
    alone = sum(cell.change.length.excludes_one for cell in cells)
    count = f"{changed} of {len(cells)} cells changed their" if changed else "no cell changed its"
    summary = (
        f"Acceptance: {count} acceptance length beyond chance, all judged together (one by one {alone} would have)"
    )
    if not pairs:
        return f"{summary}; the two have no prompt in common."
    if rounds == pairs:
        return (
            f"Acceptance is the same, not only on average: in all {pairs:,} generations that both made of the same "
            "prompts, every token and every round is the same. So models and prompts explain no change; the machine, "
            "the code's own time, and chance remain."
        )
    outputs = (
        f"{summary}. Of {pairs:,} generations of the same prompts, plain decoding gave the same tokens in {plain:,}, "
        f"the methods the same rounds in {rounds:,}."
    )
    if any(each.effect == "acceptance and speed" and each.what != "code" for each in comparison.differences):
        return f"{outputs} The models, prompts or settings differ (see below), which can explain it."
    return (
        f"{outputs} The models' digests, the prompts and the settings are the same, so the code or rounding (another "
        "processor, another torch) made the difference."
    )


def _smallest_visible(comparison: StudyComparison) -> str:
    relative = [cell.change.relative for cell in comparison.cells]
    known = [reach for each in relative if math.isfinite(reach := each.interval[1] / each.ratio - 1)]
    runs = [side.study.replicates for side in (comparison.a, comparison.b)]
    if max(runs) == 1:
        source = (
            "Both ran their jobs once: how much a run changes a single cell is not known, and the intervals, which "
            "leave it out, are too narrow."
        )
    elif min(runs) == 1:
        known_from = "AB"[runs.index(max(runs))]
        source = f"How much a run changes a single cell is known from {known_from} alone, and taken to hold for both."
    else:
        source = "How much a run changes a single cell is estimated from the runs of both."
    if not known:
        return source
    median = percent(float(np.median(known)))
    return (
        f"The interval of the median cell's relative change reaches {median} up: smaller changes do not show. {source}"
    )


def _disturbed(cells: Sequence[CellComparison]) -> str:
    counts = [sum(cell.disturbed[side] for cell in cells) for side in (0, 1)]
    return (
        f"Disturbed while they were measured (‡): {counts[0]} of these cells in A, {counts[1]} in B; "
        "a change of their speed means little."
        if any(counts)
        else ""
    )


def _unmatched(comparison: StudyComparison) -> str:
    ours, theirs = map(len, comparison.unmatched)
    return f"Cells in A alone: {ours}; in B alone: {theirs}. They are not compared." if ours or theirs else ""


def _no_common_cell(comparison: StudyComparison) -> str:
    why = [
        f"{IDENTITY_WORDS[name]} ({listed(ours)} in A, {listed(theirs)} in B)"
        for name, ours, theirs in comparison.disjoint
        if name in IDENTITY_WORDS
    ]
    reason = (
        f"they measured other {' and other '.join(why)}"
        if why
        else "no combination of engine, pair, method, k and task ran in both"
    )
    return (
        f"A and B have no cell in common, so nothing here is a change from A to B: {reason}. A cell is one engine, "
        "pair, method, k, task, temperature, batch size and set of options."
    )


def _in_common(comparison: StudyComparison) -> str:
    shared = []
    for name, words in IDENTITY_WORDS.items():
        theirs = comparison.b.values(name)
        both = [value for value in comparison.a.values(name) if value in theirs]
        if name == "method":
            both = method_order(row.method for row in comparison.methods)
        if both:
            shared.append(f"{words} {listed([task_name(value) if name == 'task' else value for value in both])}")
    prompts = []
    for task in comparison.tasks:
        ids, other = (
            {record.prompt_id for record in side.study.records if record.cell.task == task}
            for side in (comparison.a, comparison.b)
        )
        prompts.append(f"{task_name(task)} {len(ids & other)} of {len(ids)} and {len(other)}")
    same = f" Prompts with the same id: {', '.join(prompts)}." if prompts else ""
    return f"In common: {'; '.join(shared)}.{same}"


def _fastest(comparison: StudyComparison) -> str:
    found = []
    for pair in comparison.pairs:
        known = [
            row
            for row in comparison.first_setting
            if pair in row.on and reliable(row.on[pair]) and row.method not in BASELINES
        ]
        if len(known) > 1:
            best = max(known, key=lambda row: row.on[pair][MEAN])
            values = best.on[pair]
            speedup = f"{number(values[MEAN])}× {interval(values[f'{MEAN}_low'], values[f'{MEAN}_high'])}"
            found.append(f"{pair.title}: {method_name(best.method, variant=values['variant'])} {speedup}")
    setting = comparison.methods[0].setting
    return f"Fastest lossless method of those that both ran, at {setting}: {'; '.join(found)}." if found else ""


def _order(comparison: StudyComparison) -> str:
    if comparison.order_agreement is None:
        return ""
    one, other, same, couples = comparison.order_agreement
    return (
        f"By speedup, {same} of {couples} pairs of methods stand in the same order in {one.title} as in {other.title} "
        "(lossless, undisturbed methods; half would by chance)."
    )


def _plain_decoding(comparison: StudyComparison) -> str:
    known = [pair for pair in comparison.pairs if math.isfinite(pair.tokens_per_s)]
    speeds = ", ".join(f"{pair.title} {number(pair.tokens_per_s, 1)}" for pair in known)
    return f"Plain decoding ran at (tokens/s, geometric mean over tasks): {speeds}." if known else ""


def _unmatched_methods(comparison: StudyComparison) -> str:
    measured_by_both = {row.method for row in comparison.methods}
    found = []
    for side in (comparison.a, comparison.b):
        alone = method_order(name for name in side.values("method") if name not in measured_by_both)
        if alone:
            found.append(f"{listed(alone)} in {side.name}")
    return (
        f"Not listed, because only one study ran it at the same temperature and batch size: {'; '.join(found)}."
        if found
        else ""
    )


def _unrecorded(comparison: StudyComparison) -> str:
    sides = zip("AB", unrecorded(comparison.a.study, comparison.b.study), strict=True)
    return " ".join(
        f"{name} did not record {', '.join(what)}: whether that differs is not known." for name, what in sides if what
    )
