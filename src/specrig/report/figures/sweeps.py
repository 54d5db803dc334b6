"""What changes along an axis: k, the batch size, the network's latency, a conversation's turns, the context.

One function draws them all: a column a task, a row a measure, a line a method, with bands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.cells import IDENTITY, identity
from specrig.cell import Cell
from specrig.report.figures.marks import mark
from specrig.report.figures.panels import (
    PERCENT,
    TIMES,
    NothingError,
    Sheet,
    by_task,
    draw_band,
    edges,
    feet,
    legend_below,
    method_handles,
    method_lines,
    signs_note,
    ticks_at,
    top_of,
)
from specrig.report.figures.style import INK, method_colour
from specrig.report.labels import BASELINES
from specrig.report.summary import base_setting
from specrig.report.variant_tables import Axis

DASHED: dict[str, Any] = {"linestyle": (0, (4, 3)), "linewidth": 1.2}
FORMATS = {"acceptance_rate": PERCENT, "speedup": TIMES}
OPTION = "latency_ms"
LOCAL = "draft_model"
"""The method without a network, which the others are held against."""

Reference = Callable[[Axes, pd.DataFrame, str], None]
"""Draws what methods are held against: in a panel, given the cells of its task and the measure's column."""


def sweep(
    frame: pd.DataFrame,
    tasks: list[str],
    sheet: Sheet,
    *,
    x: str,
    label: str,
    measures: Mapping[str, str],
    reference: Reference,
    handles: Iterable[Line2D] = (),
    log: bool = False,
) -> Figure:
    """Measures (rows) against the column `x`: one panel a task, one line a method, with 95 % bands.

    label: of the horizontal axis. measures: column -> what its axis is called. handles: the reference's in the legend.
    """
    figure, axes = by_task(sheet, len(measures), tasks, width=3.1, height=2.7)
    values = sorted(frame[x].unique())
    for (measure, text), panels in zip(measures.items(), axes, strict=True):
        for panel, task in zip(panels, tasks, strict=True):
            here = frame[frame["task"] == task].sort_values(x)
            for name, style, line in method_lines(here):
                draw_band(panel, line.assign(k=line[x]), measure, style, name, over=label)
            reference(panel, here, measure)
            ticks_at(panel, values, log=log)
            margin = 1.15 if log else max(0.05 * (values[-1] - values[0]), 0.5)
            panel.set_xlim(
                *((values[0] / margin, values[-1] * margin) if log else (values[0] - margin, values[-1] + margin))
            )
            panel.set_ylim(0, top_of(frame, measure))
            if measure in FORMATS:
                panel.yaxis.set_major_formatter(FORMATS[measure])
        for panel in edges(sheet, [panels])[0]:
            panel.set_ylabel(text)
    if sheet.width and not sheet.narrow:
        figure.supxlabel(label, fontsize=sheet.size)  # once: panels are small
    else:
        for panel in feet(sheet, axes):
            panel.set_xlabel(label)
    legend_below(figure, [*method_handles(frame), *handles], note=signs_note(frame))
    return figure


def k_sweep(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Acceptance rate and tokens/s against k. Dashed: plain decoding."""
    cells = cells[~cells["method"].isin(list(BASELINES))]
    if cells.empty:
        raise NothingError("no speculative cells in this study")

    def plain(panel: Axes, here: pd.DataFrame, measure: str) -> None:
        if measure == "tokens_per_s":
            mark(panel.axhline(here["baseline_tokens_per_s"].median(), color=INK, **DASHED), "autoregressive")

    measures = {"acceptance_rate": "acceptance rate", "tokens_per_s": "tokens/s"}
    handles = [Line2D([], [], color=INK, label="autoregressive", **DASHED)]
    return sweep(
        cells,
        tasks,
        sheet,
        x="k",
        label="k (drafted tokens a round)",
        measures=measures,
        reference=plain,
        handles=handles,
    )


def batching(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Tokens/s of the whole batch against its size. Dashed: the same batch without drafts."""
    cells = _swept_batches(cells)
    if cells.empty:
        raise NothingError("no method of this study ran at several batch sizes")
    name = "autoregressive, same batch"

    def plain(panel: Axes, here: pd.DataFrame, measure: str) -> None:
        same = here[here["method"] != "naive_batching"].groupby("batch_size")["baseline_tokens_per_s"].median()
        mark(panel.plot(same.index, same, color=INK, **DASHED), name)

    tasks = [task for task in tasks if task in set(cells["task"])]
    measures = {"tokens_per_s": "tokens/s of the batch"}
    handles = [Line2D([], [], color=INK, label=name, **DASHED)]
    return sweep(
        cells,
        tasks,
        sheet,
        x="batch_size",
        label="batch size",
        measures=measures,
        reference=plain,
        handles=handles,
        log=True,
    )


def _swept_batches(cells: pd.DataFrame) -> pd.DataFrame:
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


def along(frame: pd.DataFrame, axis: Axis, sheet: Sheet) -> Figure:
    """Acceptance length and speedup against a turn or a context. frame: `variant_tables.along`, of which the first
    engine and pair are drawn.
    """
    frame = frame[~frame["method"].isin(list(BASELINES))]
    if frame.empty:
        raise NothingError(f"no task of this study was measured by {axis}")
    first = frame.iloc[0]
    frame = base_setting(frame[(frame["engine"] == first["engine"]) & (frame["pair"] == first["pair"])])
    frame = frame.assign(task=frame["row"])

    def one(panel: Axes, here: pd.DataFrame, measure: str) -> None:
        panel.axhline(1.0, color=INK, linewidth=0.8)

    measures = {"acceptance_length": "acceptance length τ", "speedup": "speedup"}
    label = "context (tokens)" if axis == "context" else axis
    tasks = list(dict.fromkeys(frame["task"]))
    return sweep(frame, tasks, sheet, x=axis, label=label, measures=measures, reference=one, log=axis == "context")


def with_latency(cells: pd.DataFrame, measured: Iterable[Cell]) -> pd.DataFrame:
    """The rows of `cells` whose method has the option `latency_ms`, with its value in a column of that name.

    measured: the cells that the rows are of. Only the k is kept that ran with most latencies, of several the smallest.
    """
    known = {identity(cell): cell.options.get(OPTION) for cell in measured}
    values = [known.get(row) for row in cells[IDENTITY].itertuples(index=False, name=None)]
    found = cells.assign(**{OPTION: pd.Series(values, index=cells.index, dtype=float)}).dropna(subset=[OPTION])
    if found.empty:
        return found
    found = found[found["k"] == found.groupby("k")[OPTION].nunique().idxmax()]
    return found.assign(variant="", label="")  # one line a method: the axis tells its variants apart


def latency(cells: pd.DataFrame, measured: Iterable[Cell], tasks: list[str], sheet: Sheet) -> Figure:
    """Speedup against the latency added to each round trip. Dashed: both models in one process."""
    remote = with_latency(cells, measured)
    if remote.empty:
        raise NothingError("no method of this study drafted over a network")
    k = remote["k"].iloc[0]
    local = cells[(cells["method"] == LOCAL) & (cells["variant"] == "") & (cells["k"] == k)]

    def one_process(panel: Axes, here: pd.DataFrame, measure: str) -> None:
        for value in local.loc[local["task"].isin(here["task"]), measure]:
            panel.axhline(value, color=method_colour(LOCAL), **DASHED)
        panel.axhline(1.0, color=INK, linewidth=0.8)

    handles = [Line2D([], [], color=method_colour(LOCAL), label=f"{LOCAL}, in one process", **DASHED)]
    label, measures = "added to each round trip (ms)", {"speedup": f"speedup at k = {k}"}
    figure = sweep(
        remote,
        tasks,
        sheet,
        x=OPTION,
        label=label,
        measures=measures,
        reference=one_process,
        handles=handles if len(local) else (),
    )
    for panel in figure.axes:
        panel.set_ylim(0, top_of(pd.concat([remote, local]), "speedup"))
    return figure
