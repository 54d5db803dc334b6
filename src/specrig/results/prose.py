"""The sentences that HTML, PDF and the paper share. Figures in them come from the tables or from the constants that the
code uses.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from specrig.analysis.statistics import LEVEL
from specrig.results.grid import number, percent
from specrig.results.labels import task_name
from specrig.results.machine import model_rows
from specrig.results.optimal_k_table import power_sentence
from specrig.results.round_tables import EFFICIENT
from specrig.results.study_data import StudyData

SMALL_MODEL = 100_000_000
"""For targets with fewer parameters the report says what a target this small cannot show."""

DEFINITIONS = {
    "speedup": (
        "baseline decode time per token / method decode time per token, paired by prompt (by batch, if batched), counted in token ids. The first "
        "token comes from prefill and is not decoding. Geometric mean over prompts."
    ),
    "end-to-end speedup": "the same with prefill of target and draft included, per token emitted.",
    "acceptance rate": "accepted / drafted tokens over all rounds. Undefined (–) where nothing was drafted.",
    "acceptance length τ": (
        "tokens emitted per target pass, the correction or bonus token included, rounds without a draft counted. One without speculation."
    ),
    "α": "mean over reached draft positions of Σ min(p, q): the chance that one drafted token is accepted (Leviathan et al., arXiv 2211.17192).",
    "draft cost c": "draft seconds per drafted position / seconds of a bare one-token target pass of the baseline.",
    "verification cost v": "mean seconds of the method's target passes / seconds of a bare one-token target pass.",
    "predicted speedup": (
        "τ / (draft seconds per round in target passes + v). For a chain of constant k the denominator is k·c + v(k+1) (Leviathan et al., Theorem "
        "3.8, where v = 1)."
    ),
    "efficiency": "measured / predicted speedup: the share of the possible speed that remains after the harness's own work.",
    "floor": (
        "bytes that a bare one-token pass of the baseline must read (weights once; keys and values of the mean context) / bandwidth of a large copy "
        "on the same device, read and written bytes added, measured by the same job."
    ),
    "energy": (
        "joules of the device over a whole generation, prefill included, per emitted token; the ratio is the method's over the baseline's."
    ),
    "tokens/s": "decode tokens of all prompts / their decode seconds.",
    "interval": (
        f"{percent(LEVEL)}, over prompts: Student's t, widened on the side to which prompts are skewed (Hall's transformation). Intervals of "
        "speedups and rates are computed for logarithms. Ratios of sums are linearised, with the degrees of freedom of Bell and McCaffrey; a mean "
        "over tasks has those of Welch and Satterthwaite. Where jobs ran several times, the differences between whole runs are included. How "
        "often these intervals hold the true value was simulated: benchmarks/interval_coverage.py, docs/log/statistics.md."
    ),
    "Kendall's τ": (
        "of two orders: pairs of methods in the same order less pairs in the reverse one, over all pairs. Its interval draws each method's mean as "
        "Student's t does, with one random weight per prompt for all methods, since they ran on the same prompts."
    ),
    "‡ disturbed": (
        "there is evidence that the machine did other things while the cell was measured. The evidence is what the operating system counted "
        "(other processes, time that a virtual machine's host took, threads that waited for a processor, suspension), what the machine could do "
        "before and after the cell, or the cell's own times: a baseline that changed its speed, generations that took many times as long as the "
        "others, an efficiency that nothing explains."
    ),
    "† lossy": "the method's acceptance rule does not keep the target's distribution, so its speed is bought with a change of output.",
}
"""Term -> what it means here."""


def scope(cells: pd.DataFrame, tasks: list[str]) -> str:
    """A sentence on how much was measured."""
    prompts = " or ".join(str(count) for count in sorted({int(count) for count in cells["prompts"]}))
    named = ", ".join(map(task_name, tasks))
    what = f"{len(cells)} cells (method, pair, task, k, temperature, batch size) with {prompts} prompts each; tasks: {named}."
    return what if len(cells) else "No cell was measured."


def low_efficiency(cells: pd.DataFrame) -> str:
    """A warning where the harness loses much of the possible speed; else empty."""
    median = cells["efficiency"].median()
    if not median < EFFICIENT:
        return ""
    return (
        f"The median efficiency is {number(median)}, below {number(EFFICIENT)}: {percent(1 - median)} of the possible speed is lost outside the "
        "forward passes. The last columns say where the time goes."
    )


def limits(cells: pd.DataFrame, study: StudyData, *, trained: bool) -> list[str]:
    """Sentences on what the figures do not say. trained: whether the study trained models."""
    replicates = study.replicates
    prompts = " or ".join(str(count) for count in sorted({int(count) for count in cells["prompts"]}))
    runs = (
        f" and the differences between {replicates} runs of each job"
        if replicates > 1
        else " in one run; how much a second run would differ is not known"
    )
    found = [
        f"Intervals cover the choice of prompts ({prompts} a cell){runs}. They do not cover another machine or another build of the libraries.",
        power_sentence(cells),
        "The best k of a method was chosen on the same prompts that its row and its figures show, which flatters the best of a sweep slightly. "
        "The column and the sentences that judge each half of the prompts at the k that the other half chose are free of this. The fastest of "
        "several methods is also named on the same prompts that it was compared on.",
        "In a generation's last rounds the length limit shortens the draft; the round it cuts is left out of the acceptance length and counted "
        "apart.",
    ]
    targets: dict[int, list[str]] = {}
    for row in model_rows(study.folder):
        if row["name"] == "target" and row["parameters"]:
            targets.setdefault(row["parameters"], []).append(row["pair"])
    for size, pairs in sorted(targets.items()):
        if size < SMALL_MODEL:
            found.append(
                f"The target of {' and of '.join(pairs)} has {millions(size)} parameters. A pass of a model this small is bound by processor "
                "arithmetic and the overhead of each operation, not by reading weights from memory as with billions of parameters: draft cost, "
                "verification cost and so the best k do not carry over to large pairs. The order of methods may not either."
            )
    if trained:
        found.append(
            "The text of a target trained here is narrow: it was trained for minutes, on material of the same kind as the prompts. Acceptance on "
            "such text is no estimate for open-ended chat. What does carry over is the harness: counting, pairing, losslessness, and how close it "
            "comes to its own cost model."
        )
    return found


def millions(parameters: Any) -> str:
    """A number of parameters in words."""
    return f"{number(parameters / 1e6, 1)} million" if parameters else "–"
