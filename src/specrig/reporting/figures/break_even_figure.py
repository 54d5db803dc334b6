"""The figure of break-even: tokens that a round must emit against k, beside those that it does."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from specrig.analysis.break_even import SPEEDUPS, break_even
from specrig.reporting.figures.marks import mark, tip
from specrig.reporting.figures.panels import (
    NothingError,
    Sheet,
    legend_below,
    make_panels,
    mark_disturbed,
    method_lines,
    signs_note,
    unused_hidden,
)
from specrig.reporting.figures.style import INK, task_style
from specrig.results.labels import task_name

LINES: dict[float, Any] = dict(zip(SPEEDUPS, ("-", (0, (4, 3))), strict=True))
"""Speedup -> the style of its line."""


def break_even_figure(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """One panel a method that ran at several k. Lines: tokens a round needs; marks: tokens it emitted on each task."""
    cells = cells[cells["k"] > 0].assign(variant=cells["variant"].fillna(""))
    cells = cells[cells.groupby(["method", "variant"])["k"].transform("nunique") > 1]
    needed = break_even(cells)
    if needed.empty:
        raise NothingError("no method of this study ran at several k")
    panels = method_lines(cells)
    columns = sheet.columns(len(panels), 4)
    figure, axes = make_panels(sheet, -(-len(panels) // columns), columns, width=3.1, height=2.7)
    tasks = [task for task in tasks if task in set(cells["task"])]
    shown = unused_hidden(axes, len(panels))
    for ax, (label, style, frame) in zip(shown, panels, strict=True):
        first = frame.iloc[0]
        line = needed[(needed["method"] == first["method"]) & (needed["variant"] == first["variant"])].sort_values("k")
        for speedup, dashes in LINES.items():
            values = line[f"tokens_for_{speedup:g}"]
            what = f"needed for {speedup:g}×"
            tips = [tip(f"{label}, k = {k}, {what}", value) for k, value in zip(line["k"], values, strict=True)]
            line_style: dict[str, Any] = {"color": style["color"], "linestyle": dashes, "marker": ".", "markersize": 3}
            mark(ax.plot(line["k"], values, **line_style), what, tips)
            mark_disturbed(
                ax, zip(*(line.loc[line["disturbed"] != "", name] for name in ("k", values.name)), strict=True)
            )
        for task in tasks:
            here = frame[frame["task"] == task].sort_values("k")
            own: dict[str, Any] = {**task_style(task, tasks), "linestyle": "none"}
            columns_of = [here[f"acceptance_length{end}"] for end in ("", "_low", "_high")]
            tips = [
                tip(f"{label}, {task_name(task)}, k = {k}, emitted", *values)
                for k, *values in zip(here["k"], *columns_of, strict=True)
            ]
            mark(ax.plot(here["k"], here["acceptance_length"], **own), task_name(task), tips)
        ax.set_title(label.replace(" (", "\n(") if sheet.width else label)
        ax.set_xlabel("k")
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for row in axes:
        row[0].set_ylabel("tokens a round")
    handles = [
        Line2D([], [], color=INK, linestyle=dashes, label=f"needed for {speed:g}×") for speed, dashes in LINES.items()
    ]
    handles += [
        Line2D([], [], label=task_name(task), **{**task_style(task, tasks), "linestyle": "none"}) for task in tasks
    ]
    legend_below(figure, handles, note=signs_note(cells))
    return figure
