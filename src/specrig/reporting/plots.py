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
from matplotlib.ticker import FuncFormatter, MaxNLocator

from specrig.analysis.cells import row_dicts
from specrig.analysis.disturbance import disturbed
from specrig.reporting.panels import (
    draw_band,
    empty,
    legend_below,
    make_panels,
    mark_disturbed,
    method_handles,
    method_lines,
    note_below,
    row_label,
    signs_note,
    top_of,
)
from specrig.reporting.style import (
    BASELINES,
    DISTURBED_SIGN,
    INK,
    PAPER,
    method_colour,
    method_name,
    method_order,
    task_name,
    task_style,
)
from specrig.reporting.summary import MEAN, spoilt

TIMES = FuncFormatter(lambda value, _: f"{value:g}×")
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")


def k_sweep(cells: pd.DataFrame, tasks: list[str]) -> Figure:
    """Acceptance rate (top) and tokens/s (bottom) against k, with 95 % bands: one column per task, one line per method."""
    cells = cells[~cells["method"].isin(list(BASELINES))]
    if cells.empty:
        return empty("no speculative cells in this study")
    figure, grid = make_panels(2, len(tasks), width=3.1, height=2.7, sharex=True, sharey="row")
    for column, task in enumerate(tasks):
        rate, speed = grid[0][column], grid[1][column]
        here = cells[cells["task"] == task].sort_values("k")
        for label, style, line in method_lines(here):
            draw_band(rate, line, "acceptance_rate", style, label)
            draw_band(speed, line, "tokens_per_s", style, label, timed=True)
        speed.axhline(here["baseline_tokens_per_s"].median(), color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        rate.set_title(task_name(task))
        speed.set_xlabel("k (drafted tokens a round)")
        speed.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    grid[0][0].set_ylabel("acceptance rate")
    grid[0][0].yaxis.set_major_formatter(PERCENT)
    grid[0][0].set_ylim(bottom=0)
    ks = sorted(set(cells["k"]))
    grid[1][0].set_xlim(ks[0] - 0.5, ks[-1] + 0.5)  # else the axis of a single k is all fractions
    grid[1][0].set_ylabel("tokens/s (decoding)")
    grid[1][0].set_ylim(bottom=0, top=top_of(cells, "tokens_per_s"))
    baseline = Line2D([], [], color=INK, linestyle=(0, (4, 3)), linewidth=1.2, label="autoregressive")
    legend_below(figure, [*method_handles(cells), baseline], note=signs_note(cells))
    return figure


def heat_map(summary: pd.DataFrame, tasks: list[str]) -> Figure:
    """Speedup by method and k (rows) and task (columns), with the geometric mean last. Blue is faster than 1, orange slower."""
    if summary.empty:
        return empty("no speedups in this study")
    columns = [*tasks, MEAN]
    values = summary[columns].astype(float)
    figure, ax = plt.subplots(figsize=(1.5 * len(columns) + 2.6, 0.5 * len(values) + 1.5))
    span = max(float(np.nanmax(np.abs(np.log2(values.to_numpy())))), 0.25)
    text = values.map(lambda value: f"{value:.2f}×" if np.isfinite(value) else "–")
    text = text + pd.DataFrame(
        {column: spoilt(summary, column).map({True: f" {DISTURBED_SIGN}", False: ""}) for column in columns}
    )
    labels = [
        f"{method_name(row['method'], variant=row['variant'], lossless=row['lossless'])}"
        + (f"  k={row['k']}" if row["k"] else "")
        for row in row_dicts(summary)
    ]
    sns.heatmap(
        np.log2(values),
        ax=ax,
        annot=text,
        fmt="",
        cmap=sns.diverging_palette(30, 245, s=85, l=45, as_cmap=True),
        vmin=-span,
        vmax=span,
        linewidths=2,
        linecolor=PAPER,
        annot_kws={"fontsize": 11},
        cbar_kws={"label": "speedup (log scale)", "format": FuncFormatter(lambda value, _: f"{2**value:.2g}×")},
        xticklabels=[*map(task_name, tasks), "geometric\nmean"],
        yticklabels=labels,
    )
    _legible(ax)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(axis="x", rotation=0)
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


def speedup_bars(summary: pd.DataFrame, tasks: list[str]) -> Figure:
    """Speedup with its 95 % interval: one group of bars per task and one for the geometric mean, one bar per method."""
    if summary.empty:
        return empty("no speedups in this study")
    columns = [*tasks, MEAN]
    rows = row_dicts(summary)
    width = 0.82 / len(rows)
    figure, ax = plt.subplots(figsize=(min(max(7.5, 1.1 * len(columns) + 0.32 * len(columns) * len(rows)), 12), 3.9))
    for number, row in enumerate(rows):
        x = np.arange(len(columns)) + (number - (len(rows) - 1) / 2) * width
        heights = np.array([row[column] for column in columns], dtype=float)
        low = np.array([row[f"{column}_low"] for column in columns], dtype=float)
        high = np.array([row[f"{column}_high"] for column in columns], dtype=float)
        ax.bar(
            x,
            heights,
            width * 0.9,
            color=method_colour(row["method"]),
            hatch="" if row["lossless"] else "///",
            edgecolor=PAPER,
            linewidth=0.6,
            label=row_label(row),
        )
        mark_disturbed(
            ax, ((at, top) for at, top, column in zip(x, heights, columns, strict=True) if spoilt(summary, column).iloc[number])
        )
        spread = np.nan_to_num(np.abs(np.vstack([heights - low, high - heights])))
        ax.errorbar(x, heights, yerr=spread, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    ax.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.axvline(len(tasks) - 0.5, color=INK, linewidth=0.8, alpha=0.5)
    ax.set_xticks(range(len(columns)), [*map(task_name, tasks), "geometric mean"])
    ax.set_xlim(-0.55, len(columns) - 0.45)
    ax.set_ylim(bottom=0, top=top_of(summary, *columns))
    ax.yaxis.set_major_formatter(TIMES)
    ax.set_ylabel("speedup over autoregressive")
    ax.grid(axis="x", visible=False)
    handles, labels = ax.get_legend_handles_labels()
    legend_below(figure, handles, labels, note=signs_note(summary))
    return figure


def predicted(cells: pd.DataFrame, tasks: list[str]) -> Figure:
    """Measured against predicted speedup. Colours are methods, markers are tasks, the diagonal is efficiency 1."""
    cells = cells.dropna(subset=["predicted_speedup", "speedup"])
    cells = cells[~cells["method"].isin(list(BASELINES))]
    if cells.empty:
        return empty("no predicted speedups: the engines of this study do not time bare passes")
    figure, ax = plt.subplots(figsize=(5.4, 5.0))
    markers = {task: task_style(task, tasks)["marker"] for task in tasks}
    for row in row_dicts(cells):
        low, high = row["speedup_low"], row["speedup_high"]
        known = np.isfinite(low) and np.isfinite(high)
        spread = [[row["speedup"] - low], [high - row["speedup"]]] if known else None
        ax.errorbar(
            row["predicted_speedup"],
            row["speedup"],
            yerr=spread,
            fmt=markers[row["task"]],
            color=method_colour(row["method"]),
            markerfacecolor=method_colour(row["method"]) if row["lossless"] else "none",
            markersize=8,
            elinewidth=1.0,
            capsize=0,
        )
    mark_disturbed(ax, cells.loc[disturbed(cells), ["predicted_speedup", "speedup"]].itertuples(index=False, name=None))
    values = cells[["predicted_speedup", "speedup"]].to_numpy(dtype=float)
    top = max(top_of(cells, "speedup") or 0.0, float(np.nanmax(values)) * 1.05)
    least = float(np.nanmin(values))
    lowest = np.nanmin([least, *np.maximum(cells["speedup_low"].to_numpy(dtype=float), 0.6 * least)])
    bottom = min(0.93 * float(lowest), 0.95)
    line = np.array([bottom, top])
    ax.plot(line, line, color=INK, linewidth=1.2, zorder=0)
    ax.plot(line, 0.85 * line, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    ax.annotate("efficiency 1", (top, top), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10)
    ax.annotate("0.85", (top, 0.85 * top), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10)
    ax.set(xlim=(bottom, top), ylim=(bottom, top), aspect="equal")
    ax.set_xlabel("predicted speedup, τ / (draft + verification cost)")
    ax.set_ylabel("measured speedup")
    ax.xaxis.set_major_formatter(TIMES)
    ax.yaxis.set_major_formatter(TIMES)
    shown = [task for task in tasks if task in set(cells["task"])]
    plain: dict[str, Any] = {"color": INK, "linestyle": "none", "markersize": 7}
    handles = [Line2D([], [], marker=markers[task], label=task_name(task), **plain) for task in shown]
    aside: dict[str, Any] = {"loc": "upper left", "alignment": "left", "borderaxespad": 0.0}
    methods = method_handles(cells, lines=False)
    figure.add_artist(ax.legend(handles=methods, title="method", bbox_to_anchor=(1.3, 1.0), **aside))
    ax.legend(handles=handles, title="task", bbox_to_anchor=(1.3, 0.9 - 0.065 * len(methods)), **aside)
    note_below(figure, signs_note(cells))
    return figure


def emitted_lengths(lengths: pd.DataFrame, tasks: list[str]) -> Figure:
    """The share of target passes that emitted 1, 2, … tokens: one panel per method, one line per task."""
    lengths = lengths[~lengths["method"].isin(list(BASELINES))]
    if lengths.empty:
        return empty("no rounds were recorded in this study")
    panels = [(key, frame) for key, frame in lengths.groupby(["method", "variant", "k", "lossless"], sort=False)]
    order = method_order(lengths["method"])
    panels.sort(key=lambda item: order.index(cast("tuple[str, ...]", item[0])[0]))
    columns = min(len(panels), 4)
    figure, grid = make_panels(-(-len(panels) // columns), columns, width=3.1, height=2.6, sharey=True)
    axes = [ax for row in grid for ax in row]
    styles = {task: task_style(task, tasks) for task in tasks}
    for ax, (key, frame) in zip(axes, panels, strict=False):
        method, variant, k, lossless = cast("tuple[str, str, int, bool]", key)
        reach = range(1, int(frame["emitted"].max()) + 1)
        for task, style in styles.items():
            shares = frame[frame["task"] == task].set_index("emitted")["share"].reindex(reach, fill_value=0.0)
            ax.plot(list(reach), shares, linewidth=1.6, markersize=5, label=task_name(task), **style)
        ax.set_title(f"{method_name(method, variant=variant, lossless=lossless)}, k={k}")
        ax.set_xlabel("tokens emitted by a pass")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylim(bottom=0)  # after the last panel: the axis is shared, and setting one end fixes the other
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for row in grid:
        row[0].set_ylabel("share of target passes")
    axes[0].yaxis.set_major_formatter(PERCENT)
    legend_below(figure, *axes[0].get_legend_handles_labels(), note=signs_note(lengths))
    return figure


def training_loss(curves: pd.DataFrame) -> Figure:
    """Training loss (raw and smoothed) and held-out loss of each task against wall time: one panel per model, four in a row."""
    if curves.empty:
        return empty("no model was trained in this study")
    found = dict.fromkeys(curves[["pair", "model"]].itertuples(index=False, name=None))
    models = sorted(found, key=lambda model: (model[0], model[1] != "target"))
    tasks = [kind for kind in dict.fromkeys(curves["kind"]) if kind != "training"]
    several = len({pair for pair, _ in models}) > 1
    columns = min(len(models), 4)
    figure, grid = make_panels(-(-len(models) // columns), columns, width=3.1, height=2.7)
    axes = [ax for row in grid for ax in row]
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    for ax, (pair, model) in zip(axes, models, strict=False):
        here = curves[(curves["pair"] == pair) & (curves["model"] == model)]
        trace = here[here["kind"] == "training"]
        smooth = trace["loss"].ewm(halflife=max(len(trace) / 40, 1)).mean()
        ax.plot(trace["seconds"], trace["loss"], color=INK, alpha=0.2, linewidth=0.8)
        ax.plot(trace["seconds"], smooth, color=INK, linewidth=1.6, label="training (smoothed)")
        for task in tasks:
            line = here[here["kind"] == task]
            style = task_style(task, tasks)
            ax.plot(line["seconds"], line["loss"], label=f"held out: {task_name(task)}", markersize=5, **style)
        ax.set_title(f"{pair}: {model}" if several else model)
        ax.set_xlabel("wall time (s)")
    for ax in axes:
        ax.set_ylim(bottom=0)
    for row in grid:
        row[0].set_ylabel("loss")
    legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure
