"""Prints the advice for a pair: what is known of it, its measurements or predictions, and what it can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from specrig.decoding.drafters import registry as methods
from specrig.planning.advice import USUAL_ALPHA, Advice, Best, Prediction
from specrig.report.labels import method_name
from specrig.study.rows import Pair
from specrig.terminal import Column, print_table

SIGNS = {True: "✓", False: "✗", None: "·"}
STYLES = {True: "green", False: "red", None: ""}


def show_advice(advice: Advice, console: Console) -> None:
    """Print the pair, its findings and its measurements; without these, predictions and what the pair can run."""
    pair, device = advice.pair, advice.device
    suffix = f" on {device.device}" if device else ""
    console.print(f"{advice.name}: {pair.target} ← {pair.draft or 'no draft'}{suffix}", style="bold", markup=False)
    for finding in advice.findings:
        console.print(f"  {SIGNS[finding.good]} {finding.text}", style=STYLES[finding.good], markup=False)
    console.print()
    if advice.others:
        too = " too" if advice.measured else ""
        console.print(
            f"Measured this pair{too}: {', '.join(f'--study {other}' for other in advice.others)}", markup=False
        )
    if advice.measured:
        console.print(
            f"Measured in {advice.study}: the fastest of each setting, chosen on the same prompts", markup=False
        )
        _print_measured(advice.measured, console)
        return
    if not advice.lacks:
        return  # a finding says why
    if advice.predictions is None:
        console.print(
            "The sizes of the models are not known here, so no k can be chosen. Start with k = 4 and measure:"
        )
        command = f"make CONFIG=<a study with pairs: [{advice.name}]>"
        console.print(f"  {command}, then specrig advise {advice.name} --study results/<study>", markup=False)
    else:
        title = (
            f"No measured cell of {advice.study} is lossless, passed the audit and has a speedup"
            if advice.study
            else "Not measured"
        )
        console.print(f"{title}: predicted at batch size 1", markup=False)
        _print_predictions(advice.predictions, device.device if device else None, console)
    show_runnable(advice.pair, advice.lacks, console)


def _print_measured(rows: Sequence[Best], console: Console) -> None:
    """The fastest method and its options for each engine, task, temperature and batch size; plain decoding where none
    is faster.
    """
    from specrig.report.grid import interval, number  # numpy

    engines, found = {row.engine for row in rows}, []
    for row in rows:
        pays = row.speedup > 1
        unsure = "" if row.sure else "; the interval holds 1, or is not known"
        found.append(
            (
                *([row.engine] if len(engines) > 1 else []),
                row.task,
                f"{row.temperature:g}",
                str(row.batch_size),
                method_name(row.method, variant=row.variant) if pays else "autoregressive",
                str(row.k) if pays and row.k else "–",
                number(row.speedup),
                "–" if row.low is None or row.high is None else interval(row.low, row.high),
                f"{row.acceptance_length:.2f} tokens a pass{unsure}",
            )
        )
    right = [Column(name, right=True) for name in ("T", "batch", "k", "speedup", "95 % interval")]
    columns = [Column("engine")] if len(engines) > 1 else []
    columns += [Column("task"), *right[:2], Column("method", breaks=True), *right[2:], Column("why", breaks=True)]
    print_table(console, columns, found)


def _print_predictions(predictions: Sequence[Prediction], device: str | None, console: Console) -> None:
    """Print the table of predictions, then the best one that the pair can run, and a better one that it cannot yet."""
    rows = [
        (
            row.method,
            f"τ as {row.reports} reported" if row.alpha is None else f"α = {row.alpha:g}",
            "–" if row.k is None else str(row.k),
            f"{row.tokens:.2f}",
            f"{row.cost:.2f}",
            f"{row.speedup:.2f}",
            parts_text(row.lacks),
        )
        for row in predictions
    ]
    numbers = ("k", "tokens a pass", "a round costs", "speedup at most")
    columns = [Column("method"), Column("assumed"), *(Column(name, right=True) for name in numbers)]
    print_table(console, [*columns, Column("the pair lacks", breaks=True)], rows)
    # The other alphas show how much the speedup hangs on acceptance; to choose by, the usual one is taken.
    choices = [row for row in predictions if row.alpha in (None, USUAL_ALPHA)]
    best = max((row for row in choices if not row.lacks), key=lambda row: row.speedup, default=None)
    if best is not None:
        text = "autoregressive: no method is predicted to be faster"
        if best.speedup > 1:
            text = f"{_choice(best)}: {best.speedup:.2f} times at most"
        console.print(f"Best of what this pair can run: {text}")
    floor = best.speedup if best else 1.0
    more = max((row for row in choices if row.lacks), key=lambda row: row.speedup, default=None)
    if more is not None and more.speedup > max(floor, 1.0):
        console.print(f"With {parts_text(more.lacks)}: {_choice(more)}: {more.speedup:.2f} times at most")
    source = f"the roofline of {device}" if device else "the ratio of parameters (--device refines it)"
    console.print(f"Costs come from {source}. Launches and the loop cost more, above all for small models. Measure it.")


def _choice(row: Prediction) -> str:
    """A prediction's method in words, e.g. `draft_model with k = 5`."""
    return row.method if row.k is None else f"{row.method} with k = {row.k}"


def parts_text(parts: Sequence[str]) -> str:
    """Parts in words, e.g. `a fitting draft and the head draft_medusa`."""
    return " and ".join("a fitting draft" if part == "draft" else f"the head {part}" for part in parts)


def show_runnable(pair: Pair, lacks: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print the methods that the pair can run, and what the others need."""
    console.print(f"\nThis pair can run: {', '.join(name for name, parts in lacks.items() if not parts)}", markup=False)
    trained = {part for name, parts in lacks.items() if not parts for part in methods()[name].needs}
    if named := sorted(part for part in trained if pair.trained_in(part) is not None):
        console.print(f"A study trains first what these need: {', '.join(named)}", markup=False)
    groups: dict[str, list[str]] = {}
    for name, parts in lacks.items():
        if parts:
            groups.setdefault(parts_text(parts), []).append(name)
    if groups:
        console.print("Others need more in the columns draft and heads of its row (`trained`: a study trains it):")
    for parts, names in groups.items():
        console.print(f"  {parts}: {', '.join(names)}", markup=False)
