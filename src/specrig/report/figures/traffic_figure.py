"""The figure of servers under load: speedup against requests at once, and throughput against latency."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from specrig.analysis.cells import row_dicts
from specrig.report.figures.marks import mark, tip
from specrig.report.figures.panels import (
    TIMES,
    NothingError,
    Sheet,
    draw_band,
    legend_below,
    make_panels,
    method_handles,
    method_lines,
    ticks_at,
    top_of,
)
from specrig.report.figures.style import INK

PANEL = ["engine", "pair", "task", "temperature"]
LATENCY = "latency_p50"


def traffic(table: pd.DataFrame, crossings: pd.DataFrame, sheet: Sheet) -> Figure:
    """One row for each engine, pair, task and temperature. Left: speedup, with a dot where it falls to 1 and the bar of
    its interval; dotted: `analysis.traffic.predicted`. Right: tokens/s against the median latency, hollow for plain decoding; up and left is better.

    table, crossings: `analysis.traffic.traffic_table` and `crossovers`.
    """
    table = table[table["loop"] == "closed"]
    if table.empty:
        raise NothingError("no closed loop of this study loaded a server")
    panels = list(table.groupby(PANEL, sort=False))
    figure, grid = make_panels(sheet, len(panels), 2, width=3.6, height=2.9)
    for (left, right), (key, rows) in zip(grid, panels, strict=True):
        methods = rows[rows["side"] == "method"].assign(lossless=True)
        for label, style, line in method_lines(methods):
            for k, of_k in line.groupby("k"):
                curve = of_k.sort_values("load")
                draw_band(left, curve.assign(k=curve["load"]), "speedup", style, label, over="requests at once")
                tips = [
                    tip(f"{label}, {load:g} at once, predicted", value)
                    for load, value in zip(curve["load"], curve["predicted_speedup"], strict=True)
                ]
                expected = {"color": style["color"], "linestyle": ":", "marker": ".", "markersize": 3}
                mark(left.plot(curve["load"], curve["predicted_speedup"], **expected), label, tips)
                same = (crossings[[*PANEL, "method", "variant", "k"]] == [*key, *_named(curve), k]).all(axis=1)
                for row in row_dicts(crossings[same]):
                    _draw_crossover(left, row, style, label)
                plain = rows[
                    (rows["side"] == "baseline") & (rows[["method", "variant", "k"]] == [*_named(curve), k]).all(axis=1)
                ]
                for points, face in ((curve, style["color"]), (plain.sort_values("load"), "none")):
                    tips = [
                        tip(f"{label}, {load:g} at once, tokens/s", value)
                        for load, value in zip(points["load"], points["tokens_per_s"], strict=True)
                    ]
                    drawn = right.plot(points[LATENCY], points["tokens_per_s"], **{**style, "markerfacecolor": face})
                    mark(drawn, label, tips)
        left.axhline(1.0, color=INK, linewidth=0.8)
        ticks_at(left, sorted(rows["load"].unique()))
        left.yaxis.set_major_formatter(TIMES)
        left.set_ylim(bottom=0, top=top_of(methods, "speedup"))
        left.set_xlabel("requests at once")
        left.set_ylabel("speedup")
        right.set_ylim(bottom=0)
        right.set_xlim(left=0)
        right.set_xlabel("median latency (s)")
        right.set_ylabel("tokens/s of the server")
        left.set_title(", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in key[:3]))
    legend_below(
        figure,
        method_handles(table.assign(lossless=True)),
        note="left: dotted, predicted; right: hollow signs are plain decoding",
    )
    return figure


def _named(curve: pd.DataFrame) -> tuple[Any, Any]:
    return curve["method"].iloc[0], curve["variant"].iloc[0]


def _draw_crossover(ax: Any, row: dict[str, Any], style: dict[str, Any], label: str) -> None:
    """A dot on the line of 1, with the interval as a bar that ends where the loads do."""
    low, high = row["least"], row["most"]
    ends = [min(max(row[f"crossover{end}"], low), high) for end in ("", "_low", "_high")]
    if low < row["crossover"] < high:
        drawn = ax.plot(ends[0], 1.0, marker="o", color=style["color"], linestyle="none", markeredgecolor=INK)
        what = f"{label}, stops paying at, requests at once"
        mark(drawn, label, [tip(what, *(row[f"crossover{end}"] for end in ("", "_low", "_high")))])
    if ends[1] == ends[1] and ends[2] == ends[2]:
        mark(ax.hlines(1.0, ends[1], ends[2], color=style["color"], linewidth=3, alpha=0.5), label)
