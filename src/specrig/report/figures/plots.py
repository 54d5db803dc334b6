"""Draw the figures. Each function takes a frame and returns a matplotlib Figure. Colours and markers come from `style`."""

from __future__ import annotations

from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

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
    method_handles,
    note_below,
    row_label,
    signs_note,
    top_of,
)
from specrig.report.figures.style import INK, PAPER, method_colour, task_style
from specrig.report.labels import BASELINES, named, task_name
from specrig.report.round_tables import EFFICIENT
from specrig.report.summary import MEAN, in_order


def heat_map(summary: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Speedup by method and k (rows, the fastest first) and task (columns), geometric mean last. Blue is above 1,
    orange below.
    """
    check_compares(summary)
    summary = in_order(summary)
    columns = [*tasks, MEAN]
    values = summary[columns].astype(float)
    labels = [in_lines(row_label(row), sheet.label_length) for row in row_dicts(summary)]
    high = max(0.36 if sheet.width else 0.5, 0.23 * max(label.count("\n") + 1 for label in labels))
    size = sheet.area(1.5 * len(columns) + 2.6, high * len(values) + 1.5)
    figure, ax = plt.subplots(figsize=size, layout="constrained")
    span = max(float(np.nanmax(np.abs(np.log2(values.to_numpy())))), 0.25)
    unit = "" if sheet.narrow else "×"  # its cells are narrow too
    numbered = not sheet.width or len(columns) <= (8 if sheet.narrow else 12)  # else they would overlap
    text = values.map(lambda value: f"{value:.2f}{unit}" if np.isfinite(value) else "–")
    sns.heatmap(
        np.log2(values),
        ax=ax,
        annot=text if numbered else None,
        fmt="",
        cmap=sns.diverging_palette(30, 245, s=85, l=45, as_cmap=True),
        vmin=-span,
        vmax=span,
        linewidths=2,
        linecolor=PAPER,
        annot_kws={"fontsize": sheet.small if sheet.narrow else sheet.size},
        cbar=not (sheet.narrow and numbered),
        cbar_kws={"label": "speedup (log scale)", "format": FuncFormatter(lambda value, _: f"{2**value:.2g}×")},
        xticklabels=[name.replace(" ", "\n") for name in (*map(task_name, tasks), "geometric mean")],
        yticklabels=labels,
    )
    if numbered:
        _legible(ax)
    names = [name.replace("_", " ") for name in columns]
    tips = [
        tip(f"{row_label(row)}, {name}", *(row[f"{column}{end}"] for end in ("", "_low", "_high")), unit="×")
        for row in row_dicts(summary)
        for column, name in zip(columns, names, strict=True)
    ]
    mark(ax.collections[0], "speedup", tips)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(axis="x", rotation=90 if sheet.narrow else 0)
    ax.axvline(len(tasks), color=INK, linewidth=1.5)
    note_below(figure, signs_note(summary))
    return figure


def _legible(ax: Axes) -> None:
    """Make each text black or white, whichever contrasts more with its cell (WCAG relative luminance; equal at 0.179)."""
    mesh = ax.collections[0]
    mesh.update_scalarmappable()
    colours = cast("np.ndarray", mesh.get_facecolor())[~np.ma.getmaskarray(np.ma.asarray(mesh.get_array())).ravel()]
    for text, colour in zip(ax.texts, colours, strict=True):
        linear = np.where(colour[:3] <= 0.04045, colour[:3] / 12.92, ((colour[:3] + 0.055) / 1.055) ** 2.4)
        text.set_color("black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white")


def predicted(cells: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Measured against predicted speedup. Colours are methods, markers are tasks, the diagonal is efficiency 1."""
    cells = cells.dropna(subset=["predicted_speedup", "speedup"])
    cells = cells[~cells["method"].isin(list(BASELINES))]
    if cells.empty:
        raise NothingError("no predicted speedups: the engines of this study do not time bare passes")
    figure, axes = make_panels(sheet, 1, 1, width=5.4 if sheet.narrow or not sheet.width else 9.6, height=5.0)
    ax = axes[0][0]
    markers = {task: task_style(task, tasks)["marker"] for task in tasks}
    for row in row_dicts(cells):
        low, high = row["speedup_low"], row["speedup_high"]
        known = np.isfinite(low) and np.isfinite(high)
        spread = [[row["speedup"] - low], [high - row["speedup"]]] if known else None
        drawn = ax.errorbar(
            row["predicted_speedup"],
            row["speedup"],
            yerr=spread,
            fmt=markers[row["task"]],
            color=method_colour(row["method"]),
            markerfacecolor=method_colour(row["method"]) if row["lossless"] else "none",
            elinewidth=0.09 * sheet.size,
            capsize=0,
        )
        label = named(row, lossless=row["lossless"])
        series = [label, task_name(row["task"])]
        mark(drawn.get_children(), series)
        what = f"{label}, k = {row['k']}, {task_name(row['task'])}, predicted {row['predicted_speedup']:.2f}×, measured"
        mark(drawn.lines[0], series, [tip(what, row["speedup"], low, high, unit="×")])
    values = cells[["predicted_speedup", "speedup"]].to_numpy(dtype=float)
    top = max(top_of(cells, "speedup") or 0.0, float(np.nanmax(values)) * 1.05)
    least = float(np.nanmin(values))
    lowest = np.nanmin([least, *np.maximum(cells["speedup_low"].to_numpy(dtype=float), 0.6 * least)])
    bottom = min(0.93 * float(lowest), 0.95)
    line = np.array([bottom, top])
    ax.plot(line, line, color=INK, linewidth=1.2, zorder=0)
    ax.plot(line, EFFICIENT * line, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    ax.annotate(
        "efficiency 1", (top, top), xytext=(6, 0), textcoords="offset points", va="center", annotation_clip=False
    )
    ax.annotate(
        f"{EFFICIENT:g}",
        (top, EFFICIENT * top),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
    )
    ax.set(xlim=(bottom, top), ylim=(bottom, top), aspect="equal")
    ax.set_xlabel("predicted speedup, τ / (draft + verification cost)")
    ax.set_ylabel("measured speedup")
    ax.xaxis.set_major_formatter(TIMES)
    ax.yaxis.set_major_formatter(TIMES)
    present = [task for task in tasks if task in set(cells["task"])]
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [Line2D([], [], marker=markers[task], label=task_name(task), **plain) for task in present]
    legend_below(figure, [*method_handles(cells, lines=False), *handles], note=signs_note(cells))
    return figure
