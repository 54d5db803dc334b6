"""The figure that compares reported speedups with measured ones, or with those that the theory predicts."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.theory import ABOVE, BELOW
from specrig.report.figures.marks import mark
from specrig.report.figures.panels import NothingError, Sheet, legend_below, make_panels
from specrig.report.figures.style import GRID, INK, method_colour, method_marker
from specrig.report.labels import method_order


def reported_against(judged: pd.DataFrame, sheet: Sheet) -> Figure:
    """Measured or predicted speedup against the reported one: a point a claim. Shaded: agrees with theory."""
    points = reported_points(judged)
    if points.empty:
        raise NothingError("no reported speedup was measured, and none can be predicted")
    methods = method_order(points["method"])
    figure, axes = make_panels(sheet, 1, 1, width=6.4 if sheet.narrow or not sheet.width else 9.6, height=4.6)
    panel = axes[0][0]
    most = 1.08 * max(points["reported"].max(), points["value"].max())
    panel.fill_between([0, most], [0, most / (1 + ABOVE)], [0, most / (1 - BELOW)], color=GRID, alpha=0.3, linewidth=0)
    panel.plot([0, most], [0, most], color=INK, linewidth=1)
    handles = []
    for method in methods:
        # The marker tells apart methods that share a colour: there are more methods in the literature than colours.
        style: dict[str, Any] = {
            "marker": method_marker(method),
            "color": method_colour(method),
            "linestyle": "none",
            "alpha": 0.8,
        }
        handles.append(Line2D([], [], label=method, **style))
        for kind, edge in (("predicted", "none"), ("measured", INK)):
            selected = points[(points["method"] == method) & (points["kind"] == kind)]
            points_of = zip(selected["reported"], selected["value"], strict=True)
            tips = [f"{method}: reported {claimed:.2f}, {kind} {value:.2f}" for claimed, value in points_of]
            mark(panel.plot(selected["reported"], selected["value"], markeredgecolor=edge, **style), method, tips)
    if (points["kind"] == "measured").any():
        handles.append(
            Line2D([], [], linestyle="none", marker="o", color="none", markeredgecolor=INK, label="measured (outlined)")
        )
    panel.set(xlim=(0, most), ylim=(0, most), xlabel="reported speedup", ylabel="measured or predicted speedup")
    legend_below(figure, handles)
    return figure


def reported_points(judged: pd.DataFrame) -> pd.DataFrame:
    """The claims of a speedup that have a measured or predicted value, as a table with the columns reported, value,
    kind, method.

    kind: "measured" or "predicted". Ranges are given by their middle.
    """
    frame = judged[(judged["metric"] == "speedup") & judged["reported_low"].notna()].copy()
    frame["kind"] = frame["measured"].notna().map({True: "measured", False: "predicted"})
    frame["value"] = frame["measured"].fillna((frame["predicted_low"] + frame["predicted_high"]) / 2)
    frame["reported"] = (frame["reported_low"] + frame["reported_high"]) / 2
    frame["method"] = frame["method"].str.replace(r" *\(.*\)", "", regex=True)
    # A statement about any pair has a range of predictions so wide that its middle says nothing.
    frame = frame[(frame["target"] != "any") | frame["measured"].notna()]
    return frame.dropna(subset=["value"])[["reported", "value", "kind", "method"]]
