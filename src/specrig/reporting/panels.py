"""Parts that several drawings share: panels, lines, bands and legends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from specrig.analysis.disturbance import disturbed
from specrig.reporting.style import (
    DISTURBED_NOTE,
    DISTURBED_SIGN,
    INK,
    LOSSY_NOTE,
    method_colour,
    method_marker,
    method_name,
    method_order,
)
from specrig.reporting.summary import MEAN, spoilt


def empty(reason: str) -> Figure:
    """A figure that shows only the reason why there is nothing to see."""
    figure, ax = plt.subplots(figsize=(6, 1.6))
    ax.axis("off")
    ax.text(0.5, 0.5, reason, ha="center", va="center", style="italic")
    return figure


def make_panels(rows: int, columns: int, *, width: float, height: float, **share: Any) -> tuple[Figure, list[list[Axes]]]:
    """(figure, axes[row][column]): a grid of panels of `width` × `height` inches each. share: passed on to `plt.subplots`."""
    size = (max(width * columns, 4.2), height * rows)
    layout = ConstrainedLayoutEngine(h_pad=0.1)  # inches: a row's titles keep off the labels of the row above
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout=layout, **share)
    return figure, cast("list[list[Axes]]", axes.tolist())


def method_lines(cells: pd.DataFrame) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """(label, line style, cells) for each method and variant, in the fixed order of methods."""
    found = []
    for method in method_order(cells["method"]):
        frames = cells[cells["method"] == method].groupby("variant", sort=True)
        for number, (variant, frame) in enumerate(frames):
            lossless = bool(frame["lossless"].all())
            style = {
                "color": method_colour(method),
                "marker": method_marker(method),
                "linestyle": ("-", (0, (5, 2)), (0, (1, 1)), "-.")[number % 4],
                "markerfacecolor": method_colour(method) if lossless else "none",
            }
            found.append((method_name(method, variant=str(variant), lossless=lossless), style, frame))
    return found


def method_handles(cells: pd.DataFrame, *, lines: bool = True) -> list[Line2D]:
    """The legend entries of the methods in `cells`. lines: False gives plain squares in the method's colour."""
    handles = [Line2D([], [], label=label, linewidth=1.8, markersize=7, **style) for label, style, _ in method_lines(cells)]
    if not lines:
        for handle in handles:
            handle.set(marker="s", linestyle="none")
    return handles


def draw_band(ax: Axes, line: pd.DataFrame, column: str, style: dict[str, Any], label: str, *, timed: bool = False) -> None:
    """Draw a measure against k with its band from `_low` to `_high`; a single k gets a bar, since its band would have no width.

    timed: the measure is a speed, so disturbed cells are marked.
    """
    line = line.dropna(subset=[column])
    ax.plot(line["k"], line[column], linewidth=1.8, markersize=6, label=label, **style)
    low, high = line[f"{column}_low"].astype(float), line[f"{column}_high"].astype(float)
    if len(line) > 1:
        ax.fill_between(line["k"], low, high, color=style["color"], alpha=0.16, linewidth=0)
    elif len(line) == 1:  # a band of one point would not be seen
        ax.vlines(line["k"], low, high, color=style["color"], linewidth=1.4)
    if timed:
        mark_disturbed(ax, line.loc[disturbed(line), ["k", column]].itertuples(index=False, name=None))


def mark_disturbed(ax: Axes, points: Iterable[tuple[float, float]]) -> None:
    """Draw the sign of disturbed cells beside the given points."""
    for x, y in points:
        ax.annotate(DISTURBED_SIGN, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=10, color=INK)


def top_of(frame: pd.DataFrame, *columns: str) -> float | None:
    """The upper end of an axis that shows `columns` and their intervals, with 5 % to spare; None without values.

    Intervals are cut at 1.5 times the largest value, because with few prompts they may be very long.
    """
    values = frame[list(columns)].to_numpy(dtype=float)
    ends = frame[[f"{column}_high" for column in columns]].to_numpy(dtype=float)
    if np.isnan(values).all():
        return None
    most = float(np.nanmax(values))
    return 1.05 * max(most, min(float(np.nanmax(ends)), 1.5 * most)) if not np.isnan(ends).all() else 1.05 * most


def legend_below(figure: Figure, handles: list[Any], labels: list[str] | None = None, *, note: str = "") -> None:
    """Draw one legend under the whole figure, with `note` above it."""
    named = {"handles": handles} if labels is None else {"handles": handles, "labels": labels}
    columns = max(2, min(len(handles), int(figure.get_figwidth() / 1.75)))
    legend = figure.legend(**named, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, title=note or None)
    legend.get_title().set_fontsize(9)


def note_below(figure: Figure, note: str) -> None:
    """Draw a line of small print under the figure."""
    if note:
        figure.text(0.5, -0.02, note, ha="center", va="top", fontsize=9)


def signs_note(frame: pd.DataFrame) -> str:
    """The explanation of the dagger signs that rows of `frame` (cells, or their summary) have; empty if none has any."""
    marked = spoilt(frame, MEAN) if MEAN in frame else disturbed(frame)
    notes = ["" if frame["lossless"].astype(bool).all() else LOSSY_NOTE, DISTURBED_NOTE if marked.any() else ""]
    return "\n".join(filter(None, notes))


def row_label(row: dict[str, Any]) -> str:
    """The label of a summary row: its method and k."""
    name = method_name(row["method"], variant=row["variant"], lossless=row["lossless"])
    return f"{name}, k={row['k']}" if row["k"] else name
