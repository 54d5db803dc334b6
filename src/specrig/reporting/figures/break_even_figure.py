"""The figure of break-even: tokens that a round must emit against k, context or batch size, beside those that it does."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from specrig.analysis.break_even import SPEEDUPS, break_even, by_context, without_context
from specrig.reporting.figures.marks import mark, tip
from specrig.reporting.figures.panels import (
    TITLE,
    NothingError,
    Sheet,
    in_lines,
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


AXES = {"k": "k", "context": "context (tokens)", "batch_size": "batch size"}
"""What a panel may have along its axis -> its label."""


def break_even_figure(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """One panel for each method that ran at several k, contexts or batch sizes, with the others at their smallest.
    Lines: tokens a round needs; marks: tokens it emitted on each task.
    """
    found, needed = by_context(cells[cells["k"] > 0]), break_even(cells)
    panels = [(axis, *panel) for axis in AXES for panel in method_lines(_along(found, axis))]
    if needed.empty or not panels:
        raise NothingError("no method of this study ran at several k, contexts or batch sizes")
    columns = sheet.columns(len(panels), 4)
    figure, axes = make_panels(sheet, -(-len(panels) // columns), columns, width=3.1, height=2.7)
    tasks = list(dict.fromkeys(task for task in map(without_context, tasks) if task in set(found["task"])))
    shown = unused_hidden(axes, len(panels))
    for ax, (axis, label, style, frame) in zip(shown, panels, strict=True):
        line = needed.merge(frame[["method", "variant", *AXES]].drop_duplicates()).sort_values(axis)
        for speedup, dashes in LINES.items():
            values = line[f"tokens_for_{speedup:g}"]
            what = f"needed for {speedup:g}×"
            tips = [tip(f"{label}, {axis} = {at}, {what}", value) for at, value in zip(line[axis], values, strict=True)]
            line_style: dict[str, Any] = {"color": style["color"], "linestyle": dashes, "marker": ".", "markersize": 3}
            mark(ax.plot(line[axis], values, **line_style), what, tips)
            noisy = line["disturbed"] != ""
            mark_disturbed(ax, zip(line[axis][noisy], values[noisy], strict=True))
        for task in tasks:
            here = frame[frame["task"] == task].sort_values(axis)
            own: dict[str, Any] = {**task_style(task, tasks), "linestyle": "none"}
            columns_of = [here[f"acceptance_length{end}"] for end in ("", "_low", "_high")]
            tips = [
                tip(f"{label}, {task_name(task)}, {axis} = {at}, emitted", *values)
                for at, *values in zip(here[axis], *columns_of, strict=True)
            ]
            mark(ax.plot(here[axis], here["acceptance_length"], **own), task_name(task), tips)
        ax.set_title(in_lines(label, TITLE if sheet.width else None))
        ax.set_xlabel(AXES[axis])
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


def _along(cells: pd.DataFrame, axis: str) -> pd.DataFrame:
    """The cells of the methods that ran at several values of `axis`, at their smallest values of the other axes."""
    for other in AXES.keys() - {axis}:
        cells = cells[cells[other] == cells.groupby(["method", "variant"])[other].transform("min")]
    return cells[cells.groupby(["method", "variant"])[axis].transform("nunique") > 1]
