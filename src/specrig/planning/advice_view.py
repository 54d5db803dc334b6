"""Prints an `Advice` on a console, for `specrig advise`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from specrig.planning.advice import USUAL_ALPHA, Advice, Best, Prediction

SIGNS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "·"}
SCENES = (
    ("code completion", "eagle", "5–8"),
    ("chat", "eagle", "3–5"),
    ("documents, editing, retrieval", "ngram", "4–6"),
    ("live translation", "none: short outputs, every millisecond of the first token counts", "–"),
)
"""(use, method, k) that practice recommends; shown for pairs that are not measured yet."""


def show_advice(advice: Advice, console: Console) -> None:
    """Print the pair, its findings and its measurements; without measurements, the predictions and what practice
    recommends.
    """
    pair, device = advice.pair, advice.device
    console.print(
        f"[bold]{advice.name}[/]: {pair.target} ← {pair.draft or 'no draft'}"
        + (f" on {device.device}" if device else "")
    )
    for finding in advice.findings:
        console.print(f"  {SIGNS[finding.good]} ", end="")
        console.print(finding.text, markup=False, soft_wrap=True)
    if advice.measured:
        console.print(
            _measured(
                advice.measured,
                f"measured in {advice.study}: the fastest of each setting, picked on the prompts that it is shown for",
            )
        )
        return
    if advice.predictions is None:
        console.print(
            "Sizes of the models are not known here, so the model cannot choose k; k = 4 is a good start. Measure it:"
        )
        console.print(
            f"  make CONFIG=<a study with pairs: [{advice.name}]>, then specrig advise {advice.name} --study results/<study>",
            markup=False,
        )
    else:
        _show_predictions(advice.predictions, device.device if device else None, console)
    console.print(_table("what practice recommends by scene", ("scene", "method", "k"), SCENES))


def _measured(rows: Sequence[Best], title: str) -> Table:
    """A table with the fastest method for each task, temperature and batch size; none where none beats the baseline."""
    shown = []
    for row in rows:
        pays = row.speedup > 1
        why = f"{row.acceptance_length:.2f} tokens a pass" + (
            "" if row.sure else "; the interval holds 1, or is not known"
        )
        shown.append(
            (
                row.task,
                f"{row.temperature:g}",
                str(row.batch_size),
                row.method if pays else "autoregressive",
                str(row.k) if pays and row.k else "–",
                f"{row.speedup:.2f}",
                "–" if row.low is None else f"[{row.low:.2f}, {row.high:.2f}]",
                why,
            )
        )
    return _table(title, ("task", "T", "batch", "use", "k", "speedup", "95 % interval", "why"), shown)


def _show_predictions(predictions: Sequence[Prediction], device: str | None, console: Console) -> None:
    """Print the table of predictions, then the best one with and the best one without a trained head."""
    shown = [
        (
            row.method,
            f"τ as {row.reports} reported" if row.alpha is None else f"α = {row.alpha:g}",
            "–" if row.k is None else str(row.k),
            f"{row.tokens:.2f}",
            f"{row.cost:.2f}",
            f"{row.speedup:.2f}",
            "" if row.at_default_k is None else f"{row.at_default_k:.2f}",
        )
        for row in predictions
    ]
    columns = ("method", "assumed", "k", "tokens a pass", "a round costs", "speedup at most", "at k = 4")
    console.print(_table("not measured: predicted at batch 1", columns, shown))
    # The other alphas show how much the speedup hangs on acceptance; to choose by, the usual one is taken.
    choices = [row for row in predictions if row.alpha in (None, USUAL_ALPHA)]
    for title, rows in (
        ("Best with nothing to train", [row for row in choices if not row.heads]),
        ("Best of all", choices),
    ):
        if rows:
            speedup, text = max((row.speedup, _choice(row)) for row in rows)
            text = f"{text}: {speedup:.2f} times at most" if speedup > 1 else "autoregressive: nothing pays"
            console.print(f"{title}: {text}", highlight=False)
    source = f"the roofline of {device}" if device else "the ratio of parameters (--device refines it)"
    console.print(
        f"Costs come from {source}; launches and the loop come on top, above all for small models. Measure before you rely on it."
    )


def _choice(row: Prediction) -> str:
    """A prediction's method in words, e.g. `draft_model with k = 5` or `eagle (needs a trained eagle head)`."""
    if row.k is not None:
        return f"{row.method} with k = {row.k}"
    return (
        f"{row.method} (needs a trained {', '.join(f'{head} head' for head in row.heads)})" if row.heads else row.method
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table
