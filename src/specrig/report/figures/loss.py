"""The figure of speed against loss: what a method's outputs score less than plain decoding's, and how much faster it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.cells import row_dicts
from specrig.report.figures.marks import mark, tip
from specrig.report.figures.panels import (
    TIMES,
    NothingError,
    Sheet,
    legend_below,
    make_panels,
    method_handles,
    signs_note,
    unused_hidden,
)
from specrig.report.figures.style import INK, method_colour, task_style
from specrig.report.labels import named, task_name
from specrig.report.summary import base_setting


def speed_against_loss(losses: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """One panel a scorer. Colours are methods, markers are tasks, bars 95 % intervals.

    losses: `analysis.quality.loss_against_speed`, of which the first engine and pair are drawn.
    """
    if losses.empty:
        raise NothingError("no output of this study was scored")
    first = losses.iloc[0]
    losses = base_setting(losses[(losses["engine"] == first["engine"]) & (losses["pair"] == first["pair"])])
    if losses["identical"].eq(1).all():
        raise NothingError("every scored output of this study equals plain decoding's")
    scorers = list(losses.groupby("scorer", sort=False))
    columns = sheet.columns(len(scorers), 3)
    figure, axes = make_panels(sheet, -(-len(scorers) // columns), columns, width=4.6, height=3.4)
    for ax, (scorer, rows) in zip(unused_hidden(axes, len(scorers)), scorers, strict=True):
        for row in row_dicts(rows):
            _draw(ax, row, task_style(row["task"], tasks)["marker"], sheet)
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.axvline(1.0, color=INK, linewidth=0.8)
        ax.xaxis.set_major_formatter(TIMES)
        ax.set_xlabel("speedup")
        ax.set_ylabel(f"{scorer}: score above plain decoding's")
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    present = [task for task in tasks if task in set(losses["task"])]
    handles = [Line2D([], [], label=task_name(task), **task_style(task, tasks) | plain) for task in present]
    legend_below(figure, [*method_handles(losses, lines=False), *handles], note=signs_note(losses))
    return figure


def _draw(ax: Any, row: dict[str, Any], marker: str, sheet: Sheet) -> None:
    colour = method_colour(row["method"])

    def reach(name: str) -> list[list[float]] | None:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return [[row[name] - low], [high - row[name]]] if np.isfinite([low, high]).all() else None

    drawn = ax.errorbar(
        row["speedup"],
        row["difference"],
        xerr=reach("speedup"),
        yerr=reach("difference"),
        fmt=marker,
        color=colour,
        markerfacecolor=colour if row["lossless"] else "none",
        elinewidth=0.09 * sheet.size,
    )
    label = named(row, lossless=row["lossless"])
    series = [label, task_name(row["task"])]
    mark(drawn.get_children(), series)
    what = f"{label}, k = {row['k']}, {task_name(row['task'])}, {row['speedup']:.2f}× as fast, {row['scorer']}"
    mark(drawn.lines[0], series, [tip(what, row["difference"], row["difference_low"], row["difference_high"])])
