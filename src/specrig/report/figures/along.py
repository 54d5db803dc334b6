"""The figure of acceptance and speedup by turn or by context."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from specrig.report.figures.panels import (
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
from specrig.report.figures.style import INK
from specrig.report.labels import BASELINES
from specrig.report.summary import base_setting
from specrig.report.variant_tables import Axis

MEASURES = {"acceptance_length": "acceptance length τ", "speedup": "speedup"}


def along(frame: pd.DataFrame, axis: Axis, sheet: Sheet) -> Figure:
    """Acceptance length (top) and speedup (bottom) against a turn or a context: a column a task, a line a method.

    frame: `variant_tables.along`, of which the first engine and pair are drawn.
    """
    frame = frame[~frame["method"].isin(BASELINES)]
    if frame.empty:
        raise NothingError(f"no task of this study was measured by {axis}")
    first = frame.iloc[0]
    frame = base_setting(frame[(frame["engine"] == first["engine"]) & (frame["pair"] == first["pair"])])
    tasks, values = list(dict.fromkeys(frame["row"])), sorted(frame[axis].unique())
    figure, axes = by_task(sheet, len(MEASURES), tasks, width=3.1, height=2.7)
    for (measure, text), panels in zip(MEASURES.items(), axes, strict=True):
        for panel, task in zip(panels, tasks, strict=True):
            here = frame[frame["row"] == task]
            for label, style, line in method_lines(here):
                draw_band(panel, line.assign(k=line[axis]), measure, style, label, over=axis)
            panel.axhline(1.0, color=INK, linewidth=0.8)
            ticks_at(panel, values, log=axis == "context")
            panel.set_ylim(0, top_of(frame, measure))
            if measure == "speedup":
                panel.yaxis.set_major_formatter(TIMES)
        for panel in edges(sheet, [panels])[0]:
            panel.set_ylabel(text)
    for panel in feet(sheet, axes):
        panel.set_xlabel("context (tokens)" if axis == "context" else axis)
    legend_below(figure, method_handles(frame), note=signs_note(frame))
    return figure
