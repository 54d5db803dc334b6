"""The report, section by section, as HTML, PDF and the folder for papers render it. A table or a figure costs one place,
its entry here (CONTRIBUTING.md has an example): the workflow's files, captions, `tables/` and `figures/` follow from it.
It needs no pandas: the workflow reads the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specrig.report.items import Block, Figure, Item, Section, Table, Text

if TYPE_CHECKING:
    from specrig.report.study_results import StudyResults


def measured(results: StudyResults) -> bool:
    """The condition of what says nothing of a study in which every pair's acceptance is declared."""
    return len(results.cells) > 0 or not results.study.simulated


OUTLINE = (
    Section(
        "first",
        "Answer",
        (
            Figure(
                "ranking",
                "Geometric mean of each method's speedups over plain decoding, at its best k, with 95 % intervals; small "
                "dots are tasks, hollow dots lossy methods.",
                column=True,
            ),
            Table("first", lambda results: results.first_table),
            Text(lambda results: results.what_to_use),
        ),
        condition=measured,
        first=True,
    ),
    Section("definitions", "How to read this", (Block("definitions"),)),
    Section(
        "speedup",
        "Speedup",
        (
            Text(lambda results: [finding.explanation for finding in results.findings]),
            Table(
                "speedup",
                lambda results: results.speedup,
                "Speedup over autoregressive decoding by method and task, at each method's best k, with 95 % intervals "
                "over prompts, and the geometric mean over tasks. The best k is chosen on the same prompts.",
                only="html",
            ),
            Table("advice", lambda results: results.advice, only="html"),
            Figure(
                "heatmap",
                "Speedup over plain decoding by method and task, at each method's best k.",
                column=True,
            ),
            Figure(
                "rounds",
                "What a round costs in plain passes (bar) and the tokens that it emits (diamond); the speedup is tokens / "
                "cost.",
                column=True,
            ),
        ),
        condition=measured,
    ),
    Section(
        "simulated",
        "Simulated acceptance",
        (
            Table(
                "simulated",
                lambda results: results.simulated,
                "Cells of pairs whose acceptance was declared and not measured.",
            ),
        ),
        condition=lambda results: results.study.simulated,
    ),
    Section(
        "tasks",
        "Results by task",
        (Table("by_task", lambda results: list(results.by_task.values()), only="paper"),),
        detail=True,
    ),
    Section(
        "k",
        "How many tokens to draft",
        (
            Text(
                "A longer draft costs more, and its last tokens are accepted less often. So the acceptance rate falls "
                "with k, and the speed has a maximum."
            ),
            Figure(
                "k_sweep",
                "Acceptance rate and tokens/s against k, the tokens drafted in a round, with 95 % intervals. Dashed: plain "
                "decoding.",
            ),
            Text(lambda results: results.best_k_sentences),
        ),
        condition=lambda results: results.cells.groupby(["method", "variant"], dropna=False)["k"].nunique().gt(1).any(),
    ),
    Section(
        "batches",
        "Batches",
        (
            Text(
                "Speculation gains speed because it reads the weights once for several tokens. A batch already reads "
                "them once for all its sequences. So a larger batch leaves less to gain."
            ),
            Figure(
                "batching",
                "Throughput of the whole batch against its size, with 95 % intervals. Dashed: the same batch without drafts.",
            ),
        ),
        condition=lambda results: len(set(results.cells["batch_size"])) > 1,
    ),
    Section(
        "traffic",
        "Under load",
        (
            Text(
                "A server that answers many requests at once already reads the weights once for all of them, as a "
                "batch does. It also waits for requests, queues them and mixes prompts with decoding. Method and "
                "baseline took turns under each load."
            ),
            Figure(
                "traffic",
                "Left: speedup against requests at once; a dot with its interval marks where speculation stops paying. "
                "Right: throughput against median latency, hollow without drafts.",
            ),
            Text(lambda results: results.crossover_sentences),
            Table(
                "traffic",
                lambda results: results.traffic,
                "Servers under load: requests sent, errors, tokens/s, latencies, goodput and acceptance of method and "
                "baseline in turns, with 95 % intervals over blocks of time. The table is empty for a study without "
                "traffic.",
                fold="every load",
            ),
        ),
        condition=lambda results: len(results.traffic.frame),
    ),
    Section(
        "contexts",
        "Along the context",
        (
            Text(
                "More and more text precedes the same requests. The context is the number of tokens when the "
                "output is complete. Costs are in one-token passes of the baseline at the same context, which take longer as the context grows."
            ),
            Text(lambda results: results.contexts_sentences),
            Figure(
                "contexts",
                "Acceptance length and speedup against the context in tokens, with 95 % intervals over prompts.",
            ),
            Table("contexts", lambda results: results.contexts_grid),
        ),
        condition=lambda results: len(results.contexts),
    ),
    Section(
        "turns",
        "Turn by turn",
        (
            Text(
                "Each turn is a prompt of its own: the conversation so far. The target wrote its answers once, by greedy "
                "decoding. So the baseline and every method continue the same text. Each turn reads the whole conversation "
                "again; the speedup leaves prefill out."
            ),
            Text(lambda results: results.turns_sentences),
            Figure(
                "turns",
                "Acceptance length and speedup by turn of the conversation, with 95 % intervals over conversations.",
            ),
            Table("turns", lambda results: results.turns_grid),
        ),
        condition=lambda results: len(results.turns),
    ),
    Section(
        "network",
        "A network between draft and target",
        (
            Text(
                "The draft model runs in a service of its own. Each round sends it the new tokens and waits for its "
                "draft. Acceptance is that of draft_model; only the time on the network is lost. The baseline has no "
                "network."
            ),
            Figure(
                "latency",
                "Speedup against the latency added to each round trip between target and draft. Dashed: both in one process.",
            ),
        ),
        condition=lambda results: results.runs(lambda cell: "latency_ms" in cell.options),
    ),
    Section(
        "acceptance",
        "Acceptance",
        (
            Table(
                "acceptance",
                lambda results: results.acceptance,
                "Acceptance length (tokens emitted per target pass, the target's own token included), acceptance rate "
                "(accepted / drafted tokens) and alpha (mean of the sum of min(p, q)) by method and task, at each "
                "method's best k.",
            ),
            Table("positions", lambda results: results.positions, only="html"),
            Figure(
                "emitted_lengths",
                "Share of target passes by the number of tokens that they emit, at each method's best k.",
            ),
            Text(
                "Methods that copy from the text gain more where the target repeats itself, as small models do.",
                only="html",
            ),
            Table("repetition", lambda results: results.repetition, only="html"),
        ),
        condition=measured,
    ),
    Section(
        "engines",
        "Engines",
        (
            Text(
                lambda results: (
                    "Every engine runs the same pair, prompts, k and trained parts. Acceptance depends on the pair, "
                    "the prompts and the method, not on the engine. Where two engines differ by more than sampling "
                    "noise, they count or draft differently; the notes give the reason where the records show it. "
                    f"{results.engines_sentence}"
                )
            ),
            Table(
                "engines",
                lambda results: results.engines,
                "The same cells in each engine, on the prompts that all engines answered: speed, speedup and "
                "acceptance length with 95 % intervals. The difference in acceptance length is taken against the first "
                "engine, paired by prompt. The table is empty for a study of one engine.",
            ),
            Figure(
                "engines",
                "The same cells in each engine, at the k that suits the first one best, with 95 % intervals.",
            ),
        ),
        condition=lambda results: len(results.compared),
    ),
    Section(
        "theory",
        "Measured and predicted",
        (
            Text(
                "The prediction follows from the measured acceptance length and the measured cost of bare forward "
                "passes. A point below the diagonal lost time outside those passes: in verification, in the cache, in "
                "drafting without a model, or in the loop itself."
            ),
            Figure(
                "predicted",
                "Measured speedup against the one predicted from acceptance and the cost of bare passes. On the solid line "
                "the harness loses nothing.",
                column=True,
            ),
            Table("efficiency", lambda results: results.efficiency),
            Text(lambda results: results.low_efficiency, warning=True),
        ),
        condition=lambda results: results.cells["efficiency"].notna().any(),
    ),
    Section(
        "reported",
        "Reported against measured",
        (
            Text(
                lambda results: (
                    f"{results.claims_sentence} A verdict by theory says whether a figure follows from what the same "
                    "source reports about acceptance, k and hardware. It does not say that the figure was measured "
                    "again."
                )
            ),
            Figure(
                "reported",
                "Reported speedups against measured ones, or those that acceptance and a roofline predict; shaded: "
                "consistent with theory.",
                column=True,
            ),
            Table("sources", lambda results: results.claim_counts, only="html"),
            Table(
                "reproduction",
                lambda results: results.claims,
                "Every reported figure with its verdict and the reason. A figure is compared with measured cells where "
                "all conditions agree, and with theory (expected tokens per pass and a roofline of the passes) where "
                "the source says enough. For the others the table has a command that measures them.",
                fold="reported figures, each with its verdict and reason",
                wide=True,
            ),
            Table("decided", lambda results: results.decided_claims, only="print"),
            Block("commands"),
        ),
        condition=lambda results: len(results.judged),
    ),
    Section("outputs", "Sample outputs", (Block("samples"),), condition=lambda results: len(results.cells)),
    Section(
        "quality",
        "Quality of the outputs",
        (
            Figure(
                "loss",
                "Scores of the outputs, less plain decoding's, against the speedup. Lossy methods are hollow: below the line "
                "they pay for speed with quality.",
            ),
            Table("quality", lambda results: results.quality),
        ),
    ),
    Section(
        "audit",
        "Audit",
        (
            Text(
                lambda results: (
                    f"{results.audit_sentence} Plain decoding itself is compared with transformers' own generate, "
                    "which has a forward pass and a cache of its own, on the longest prompt of each pair. At "
                    "temperature 0 a method's output must equal plain decoding's, token by token. A difference is a "
                    "numerical tie only where the target's logits for the two tokens, computed in full precision, lie "
                    "within a few units of the study's precision. Above temperature 0 there are two tests. On a toy "
                    "pair, samples are compared, token by token, with the target's exact probabilities. On the study's "
                    "own pair, each token is compared with the target's distribution at its position (probability "
                    "integral transform, Kolmogorov-Smirnov test)."
                )
            ),
            Table("audit", lambda results: results.audit_summary),
            Table("verdicts", lambda results: results.verdicts, only="html", fold="verdicts", wide=True),
        ),
        condition=lambda results: results.audit is not None,
    ),
    Section(
        "training",
        "Training",
        (
            Figure(
                "training",
                "Training and held-out loss against wall time. Each head has a loss of its own, so panels cannot be compared.",
            ),
            Figure(
                "learning",
                "Tokens a round against training texts. Filled: measured by decoding. Hollow: to expect on held-out text, "
                "before the learning rate had fallen. Crosses: reported by others.",
            ),
        ),
        condition=lambda results: results.learnt,
    ),
    Section("methods", "Methods", (Table("methods", lambda results: results.methods),)),
    Section(
        "machine",
        "Machine and models",
        (
            Text(lambda results: " · ".join(results.facts)),
            Text(lambda results: results.notes),
            Text(lambda results: results.later_warnings, warning=True, only="print"),
            Text(lambda results: results.differing, warning=True),
            Table("models", lambda results: results.models),
            Table(
                "recorded",
                lambda results: results.recorded,
                only="html",
                fold="recorded values: packages, processor, threads, model digests",
                wide=True,
            ),
            Table("failed", lambda results: results.failed, title="Failed cells", wide=True),
            Table("skipped", lambda results: results.skipped, only="html", title="Cells that were not run", wide=True),
        ),
    ),
    Section("limits", "What these numbers do not say", (Text(lambda results: results.limits),)),
    Section("reproduce", "Reproduce", (Block("reproduce"),)),
    Section(
        "cells",
        "Every cell",
        (
            Table("speedup_by_task", lambda results: results.speedup, only="paper", source="tables/speedup.csv"),
            Table(
                "cells",
                lambda results: results.every_cell,
                "Every measured cell: one row per engine, pair, method, k, task, temperature and batch size. An empty field "
                "means undefined, never zero.",
                fold="cells",
                linked=True,
                only="html",
            ),
        ),
        condition=lambda results: len(results.cells),
        appendix=True,
    ),
)


def items() -> Iterator[Item]:
    """All items of the outline."""
    for section in OUTLINE:
        yield from section.items


def tables() -> dict[str, Table]:
    """Name -> table, of those that are files."""
    return {item.name: item for item in items() if isinstance(item, Table) and item.file}


def figures() -> dict[str, Figure]:
    """The figures, by name."""
    return {item.name: item for item in items() if isinstance(item, Figure)}


def captions() -> dict[str, str]:
    """File name in `workflow/report/` -> the caption that Snakemake's report takes from it."""
    found: list[Table | Figure] = [*tables().values(), *figures().values()]
    return {f"{type(item).__name__.lower()}-{item.name}.rst": f"{item.file or item.caption}\n" for item in found}
