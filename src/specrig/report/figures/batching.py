"""The figure of throughput against batch size, which shows from which size on speculation does not pay."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.report.figures.marks import mark
from specrig.report.figures.panels import (
    NothingError,
    Sheet,
    draw_band,
    legend_below,
    make_panels,
    method_handles,
    method_lines,
    signs_note,
    ticks_at,
    top_of,
    unused_hidden,
)
from specrig.report.figures.style import INK
from specrig.report.labels import task_name

PLAIN = "autoregressive, same batch"


def swept(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of methods and tasks with several batch sizes: the lowest temperature, the most measured k."""
    if cells.empty:
        return cells
    cells = cells[cells["temperature"] == cells["temperature"].min()]
    cells = cells[cells.groupby("task")["batch_size"].transform("nunique") > 1]
    frames = []
    for _, frame in cells.groupby(["method", "variant"], sort=False):
        sizes = frame.groupby("k")["batch_size"].nunique()
        if sizes.max() > 1:
            frames.append(frame[frame["k"] == sizes.idxmax()])
    return pd.concat(frames) if frames else cells.iloc[:0]


def batching(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Tokens/s of the whole batch against its size: one panel per task, one line per method. Dashed: without drafts."""
    cells = swept(cells)
    if cells.empty:
        raise NothingError("no method of this study ran at several batch sizes")
    tasks = [task for task in tasks if task in set(cells["task"])]
    columns = sheet.columns(len(tasks), 4)
    figure, grid = make_panels(sheet, -(-len(tasks) // columns), columns, width=3.1, height=2.9, sharey=True)
    sizes = sorted(cells["batch_size"].unique())
    panels = unused_hidden(grid, len(tasks))
    for ax, task in zip(panels, tasks, strict=True):
        here = cells[cells["task"] == task].sort_values("batch_size")
        for label, style, line in method_lines(here):
            draw_band(ax, line.assign(k=line["batch_size"]), "tokens_per_s", style, label, over="batch size")
        plain = here[here["method"] != "naive_batching"].groupby("batch_size")["baseline_tokens_per_s"].median()
        mark(ax.plot(plain.index, plain, color=INK, linestyle=(0, (4, 3)), linewidth=1.2), PLAIN)
        ticks_at(ax, sizes)
        ax.set_title(task_name(task))
        ax.set_xlabel("batch size")
    for row in grid:
        row[0].set_ylabel("tokens/s of the batch")
    grid[0][0].set_ylim(bottom=0, top=top_of(cells, "tokens_per_s"))
    baseline = Line2D([], [], color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label=PLAIN)
    legend_below(figure, [*method_handles(cells), baseline], note=signs_note(cells))
    return figure
