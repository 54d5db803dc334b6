"""The sentences that HTML, PDF and the paper share. Figures in them come from the tables or from the constants that the
code uses.
"""

from __future__ import annotations

from typing import Any

from specrig.analysis.statistics import LEVEL
from specrig.results.audit_tables import RULE
from specrig.results.grid import number, percent
from specrig.results.labels import task_name
from specrig.results.machine import model_rows
from specrig.results.optimal_k_table import power_sentence
from specrig.results.round_tables import EFFICIENT
from specrig.results.study_results import StudyResults

SMALL_MODEL = 100_000_000
"""For targets with fewer parameters the report says what a target this small cannot show."""

SWEEP = (
    "A longer draft costs more, and its last tokens are accepted less often. The acceptance rate therefore falls with k, and the speed has a "
    f"maximum. Bands are {percent(LEVEL)} intervals."
)
NETWORK = (
    "The draft model runs in a service of its own, and each round sends it the new tokens and waits for its chain. Acceptance is that of "
    "draft_model; what is lost is the time on the way. The baseline has no network."
)
BATCHES = (
    "Speculation gains speed by reading the weights once for several tokens. A batch already reads them once for all its sequences. The larger "
    "the batch, the less there is to gain."
)
PREDICTION = (
    "The prediction takes the measured acceptance length and the measured cost of bare forward passes. A point below the diagonal has lost time "
    "outside those passes: in verification, cache handling, drafting without a model, or the loop itself."
)
ENGINES = (
    "The same pair, prompts, k and trained parts in each engine. Acceptance depends on the pair, the prompts and the method, not on the engine. "
    "Where engines differ beyond sampling noise, they count or draft differently; the table's notes give the reason as far as the records show it."
)
ORDER = (
    "Speedups do not carry over from one machine and pair to another; the order of methods may. Each source that ranks several methods on a task "
    "is compared with the same methods here. Where two changed places, the cost model says why: through acceptance, the cost of drafting, the "
    "cost of verifying, or time outside forward passes."
)
REPORTED = (
    "A verdict by theory says whether a figure follows from what the same source reports about acceptance, k and hardware. It does not say that "
    "the figure was measured again."
)
AUDIT = (
    "Plain decoding itself is compared with transformers' own generate, with its own forward pass and cache, on the longest prompt of each pair. "
    "At temperature zero the output must be the autoregressive one, token by token; a divergence counts as a numerical tie only where the "
    "target's logits for the two tokens, computed in full precision, lie within a few units of the study's precision. Above temperature zero there are two tests. On a small pair made for the test, samples are "
    "compared, token by token, with the target's exact probabilities given what came before. On the study's own pair, each emitted token is "
    "compared with the target's distribution at its position (probability integral transform, Kolmogorov-Smirnov test). "
    f"{RULE}"
)

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


def scope(results: StudyResults) -> str:
    """A sentence on how much was measured."""
    cells = results.cells
    prompts = " or ".join(str(count) for count in sorted({int(count) for count in cells["prompts"]}))
    tasks = ", ".join(map(task_name, results.study.tasks))
    what = f"{len(cells)} cells (method, pair, task, k, temperature, batch size) with {prompts} prompts each; tasks: {tasks}."
    return what if len(cells) else "No cell was measured."


def low_efficiency(results: StudyResults) -> str:
    """A warning where the harness loses much of the possible speed; else empty."""
    median = results.cells["efficiency"].median()
    if not median < EFFICIENT:
        return ""
    return (
        f"The median efficiency is {number(median)}, below {number(EFFICIENT)}: {percent(1 - median)} of the possible speed is lost outside the "
        "forward passes. The last columns say where the time goes."
    )


def limits(results: StudyResults, *, trained: bool) -> list[str]:
    """Sentences on what the figures do not say. trained: whether the study trained models."""
    cells, replicates = results.cells, results.study.replicates
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
    for row in model_rows(results.study.folder):
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
