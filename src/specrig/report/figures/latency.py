"""The figure of speedup against the latency of the network between draft and target."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.cells import IDENTITY, identity
from specrig.cell import Cell
from specrig.report.figures.panels import (
    TIMES,
    NothingError,
    Sheet,
    draw_band,
    legend_below,
    make_panels,
    method_handles,
    signs_note,
    top_of,
    unused_hidden,
)
from specrig.report.figures.style import INK, method_colour, method_marker
from specrig.report.labels import method_name, task_name

OPTION = "latency_ms"
LOCAL = "draft_model"
"""The method without a network, which the others are held against."""


def with_latency(cells: pd.DataFrame, measured: Iterable[Cell]) -> pd.DataFrame:
    """The rows of `cells` whose method has the option `latency_ms`, with its value in a column of that name
    (milliseconds).

    measured: the cells that the rows are of. Only the k is kept that ran with most latencies, of several the smallest.
    """
    known = {identity(cell): cell.options.get(OPTION) for cell in measured}
    values = [known.get(row) for row in cells[IDENTITY].itertuples(index=False, name=None)]
    found = cells.assign(**{OPTION: pd.Series(values, index=cells.index, dtype=float)}).dropna(subset=[OPTION])
    if found.empty:
        return found
    return found[found["k"] == found.groupby("k")[OPTION].nunique().idxmax()]


def latency(cells: pd.DataFrame, measured: Iterable[Cell], tasks: list[str], sheet: Sheet) -> Figure:
    """Speedup against added latency: a column a task, a line a method. Dashed: both models in one process."""
    remote = with_latency(cells, measured)
    if remote.empty:
        raise NothingError("no method of this study drafted over a network")
    columns = sheet.columns(len(tasks), 4)
    figure, grid = make_panels(sheet, -(-len(tasks) // columns), columns, width=3.1, height=2.9, sharey=True)
    panels = unused_hidden(grid, len(tasks))
    local = cells[(cells["method"] == LOCAL) & (cells["variant"] == "") & (cells["k"] == remote["k"].iloc[0])]
    for ax, task in zip(panels, tasks, strict=True):
        here = remote[remote["task"] == task].sort_values(OPTION)
        for method, line in here.groupby("method"):
            style = {"color": method_colour(str(method)), "marker": method_marker(str(method)), "linestyle": "-"}
            draw_band(
                ax,
                line.assign(k=line[OPTION]),
                "speedup",
                style,
                method_name(str(method)),
                over="latency in ms",
            )
        for value in local.loc[local["task"] == task, "speedup"]:
            ax.axhline(value, color=method_colour(LOCAL), linestyle=(0, (4, 3)), linewidth=1.2)
        ax.axhline(1.0, color=INK, linewidth=0.8)
        ax.set_title(task_name(task))
        ax.set_xlabel("added to each round trip (ms)")
    for row in grid:
        row[0].set_ylabel(f"speedup at k = {remote['k'].iloc[0]}")
    grid[0][0].yaxis.set_major_formatter(TIMES)
    grid[0][0].set_ylim(bottom=0, top=top_of(pd.concat([remote, local]), "speedup"))
    one_each = remote.assign(variant="").drop_duplicates("method")
    handles = method_handles(one_each)
    if not local.empty:
        handles.append(
            Line2D([], [], color=method_colour(LOCAL), linestyle=(0, (4, 3)), label=f"{LOCAL}, in one process")
        )
    legend_below(figure, handles, note=signs_note(remote))
    return figure
