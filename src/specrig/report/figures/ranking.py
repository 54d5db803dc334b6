"""Which method is fastest, and why: all methods in one order, by the geometric mean of their speedups over the tasks."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specrig.analysis.cells import row_dicts
from specrig.report.figures.marks import mark, tip
from specrig.report.figures.panels import (
    TIMES,
    NothingError,
    Sheet,
    check_compares,
    in_lines,
    legend_below,
    make_panels,
    row_label,
    signs_note,
)
from specrig.report.figures.style import GRID, INK, ROUND_PARTS, family_colour, method_family
from specrig.report.labels import BASELINES, task_name
from specrig.report.summary import MEAN, in_order


def ranking(summary: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """All methods, the fastest on top: the geometric mean with its interval, tasks as small dots, families by colour."""
    check_compares(summary)
    rows = in_order(summary)
    figure, ax = _lines(sheet, [row_label(row) for row in row_dicts(rows)])
    families: dict[str, str] = {}
    for y, row in enumerate(row_dicts(rows)):
        label, family = row_label(row), method_family(row["method"])
        colour = families.setdefault(family, family_colour(family))
        for task in tasks:
            dots = ax.plot(row[task], y, "o", color=colour, alpha=0.45, markersize=0.4 * sheet.size, markeredgewidth=0)
            mark(dots, family, [tip(f"{label}, {task_name(task)}", *_values(row, task), unit="×")])
        mean, low, high = _values(row, MEAN)
        face = colour if row["lossless"] else "none"
        mark(ax.hlines(y, low, high, color=colour, linewidth=0.16 * sheet.size), family)
        dot = ax.plot(mean, y, "o", color=colour, markerfacecolor=face, markersize=0.62 * sheet.size)
        mark(dot, family, [tip(f"{label}, geometric mean", mean, low, high, unit="×")])
    ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_xlim(*_span(rows, [*tasks, MEAN]))
    ax.set_xlabel("speedup" if sheet.narrow else "speedup over autoregressive")
    ax.xaxis.set_major_formatter(TIMES)
    handles = [Line2D([], [], color=colour, marker="o", label=family) for family, colour in families.items()]
    legend_below(figure, handles, note=signs_note(summary))
    return figure


def rounds(best: pd.DataFrame, sheet: Sheet) -> Figure:
    """What a round costs and what it yields, by method: its parts stacked, in plain passes, and the tokens that it
    emits. The speedup is tokens by cost.
    """
    cells = best[~best["method"].isin(list(BASELINES))].dropna(subset=["speedup", "acceptance_length", "target_share"])
    if cells.empty:
        raise NothingError("no timed rounds: the engines of this study do not time the parts of a round")
    lines = []
    for _, members in cells.groupby(["method", "variant", "k"], sort=False):
        tokens, speedup = (float(np.exp(np.log(members[name]).mean())) for name in ("acceptance_length", "speedup"))
        parts = {name: tokens / speedup * float(members[column].mean()) for name, column, _ in ROUND_PARTS}
        row = row_dicts(members)[0] | {"lossless": bool(members["lossless"].all())}
        lines.append((speedup, row_label(row), tokens, parts))
    lines.sort(key=lambda line: -line[0])
    figure, ax = _lines(sheet, [line[1] for line in lines])
    for y, (speedup, label, tokens, parts) in enumerate(lines):
        left = 0.0
        for name, _, colour in ROUND_PARTS:
            bar = ax.barh(y, parts[name], left=left, color=colour, height=0.62)
            mark(bar[0], name, [tip(f"{label}, {name}, plain passes", parts[name])])
            left += parts[name]
        dot = ax.plot(tokens, y, "D", color=INK, markersize=0.5 * sheet.size)
        mark(dot, "tokens a round", [tip(f"{label}, speedup {speedup:.2f}×, tokens a round", tokens)])
    ax.set_xlim(left=0)
    ax.set_xlabel("plain passes, tokens" if sheet.narrow else "a round: plain passes (bar), tokens (diamond)")
    handles: list[Any] = [Patch(color=colour, label=name) for name, _, colour in ROUND_PARTS]
    handles.append(Line2D([], [], color=INK, marker="D", linestyle="none", label="tokens a round"))
    legend_below(figure, handles, note=signs_note(cells))
    return figure


def _lines(sheet: Sheet, labels: list[str]) -> tuple[Figure, Axes]:
    """One panel with a line for each label, the first on top. On paper a long label takes several lines."""
    names = [in_lines(label, sheet.label_length) for label in labels]
    high = max(0.29, 0.205 * max(name.count("\n") + 1 for name in names))
    figure, axes = make_panels(sheet, 1, 1, width=8.2, height=high * len(names) + 0.9)
    ax = axes[0][0]
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_yticks(range(len(names)), names)
    ax.grid(axis="y", visible=False)
    for y in range(len(names)):
        ax.axhline(y, color=GRID, linewidth=0.5, alpha=0.5, zorder=0)
    ax.tick_params(axis="y", length=0, labelsize=sheet.small if sheet.narrow else plt.rcParams["ytick.labelsize"])
    return figure, ax


def _values(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def _span(rows: pd.DataFrame, columns: list[str]) -> tuple[float, float]:
    """The axis holds all values and the means' intervals, cut at 1.5 times the largest value, and 1."""
    values = rows[columns].to_numpy(dtype=float)
    most, least = max(float(np.nanmax(values)), 1.0), min(float(np.nanmin(values)), 1.0)
    high = np.nanmax([most, np.nanmin([np.nanmax([most, *rows[f"{MEAN}_high"]]), 1.5 * most])])
    low = np.nanmin([least, *np.maximum(rows[f"{MEAN}_low"].astype(float), 0.7 * least)])
    room = 0.03 * (high - low)
    return low - room, high + room
