"""Draw the same cells in several engines."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.cells import row_dicts
from specrig.report.engine_table import ALONE, MEASURES
from specrig.report.figures.marks import mark, tip
from specrig.report.figures.panels import NothingError, Sheet, by_task, edges, legend_below, top_of
from specrig.report.figures.style import INK, engine_style
from specrig.report.labels import method_order, named


def engines_figure(compared: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Tokens/s, speedup and τ (rows) by task (columns), method and engine. k is the best one in the first engine."""
    if compared.empty:
        raise NothingError(ALONE)
    selected = _best_k(compared[compared["pair"] == compared["pair"].iloc[0]])
    engines = list(dict.fromkeys(selected["engine"]))
    tasks = [task for task in tasks if task in set(selected["task"])]
    order = method_order(selected["method"])
    keys = sorted({(order.index(row["method"]), row["variant"], row["k"]) for row in row_dicts(selected)})
    names = {(row["method"], row["variant"]): named(row) for row in row_dicts(selected)}
    labels = [names[order[number], variant] + (f"\nk {k}" if k else "") for number, variant, k in keys]
    figure, axes = by_task(sheet, len(MEASURES), tasks, width=max(3.1, 0.9 * len(keys) + 1), height=2.4)
    for line, labelled, (measure, title) in zip(axes, edges(sheet, axes), MEASURES.items(), strict=True):
        for ax in labelled:
            ax.set_ylabel(title)
        for ax, task in zip(line, tasks, strict=True):
            for row in row_dicts(selected[selected["task"] == task]):
                at = keys.index((order.index(row["method"]), row["variant"], row["k"]))
                number = engines.index(row["engine"])
                x = at + 0.6 * ((number + 0.5) / len(engines) - 0.5)
                value, low, high = (row[f"{measure}{end}"] for end in ("", "_low", "_high"))
                known = np.isfinite(low) and np.isfinite(high)
                spread = [[value - low], [high - value]] if known else None
                drawn = ax.errorbar(x, value, yerr=spread, elinewidth=1.0, **engine_style(row["engine"], engines))
                mark(drawn.get_children(), row["engine"])
                what = f"{row['engine']}, {labels[at]}, {title}".replace("\n", ", ")
                mark(drawn.lines[0], row["engine"], [tip(what, value, low, high)])
                if row["disagrees"] and measure == "acceptance_length":
                    ax.plot(
                        x,
                        value,
                        marker="o",
                        markersize=1.2 * sheet.size,
                        markerfacecolor="none",
                        markeredgecolor=INK,
                        linestyle="none",
                    )
            ax.set_xlim(-0.5, len(keys) - 0.5)
            ax.set_xticks(range(len(keys)), labels, rotation=90 if sheet.width else 0)
            ax.set_ylim(bottom=0, top=top_of(selected, measure))
            ax.grid(axis="x", visible=False)
    handles = [Line2D([], [], label=engine, **engine_style(engine, engines)) for engine in engines]
    ring = Line2D(
        [], [], marker="o", markersize=sheet.size, markerfacecolor="none", markeredgecolor=INK, linestyle="none"
    )
    ring.set_label("τ disagrees with the first engine")
    legend_below(figure, [*handles, *([ring] if selected["disagrees"].astype(bool).any() else [])])
    return figure


def _best_k(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows at each method's best k over all tasks in the reference engine."""
    first = compared[compared["engine"] == compared["reference"]]
    logs = first.assign(log=np.log(first["speedup"].astype(float))).groupby(["method", "variant", "k"])["log"].mean()
    best = {
        (method, variant): k for (method, variant, k), _ in cast("Any", logs.sort_values(na_position="first").items())
    }
    kept = [best.get((row["method"], row["variant"])) == row["k"] for row in row_dicts(compared)]
    return compared[kept]
