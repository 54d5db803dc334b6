"""Parts that several drawings share: panels, lines, bands and legends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, StrMethodFormatter

from specrig.report.figures.marks import mark, switch, tip
from specrig.report.figures.style import method_colour, method_marker
from specrig.report.labels import LOSSY_NOTE, method_order, named, task_name

SMALL = 0.9
"""Small print, as a share of the sheet's font size."""

TIMES = FuncFormatter(lambda value, _: f"{value:g}×")
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
LINES: list[Any] = ["-", (0, (5, 2)), (0, (1, 1)), "-."]
"""The line styles of what shares a colour."""
TITLE = 24
"""Characters of a line above one of four panels of a page."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a figure is drawn on.

    width: the inches that it takes up; None for a screen, where content decides. size: the font's size in points.
    tallest: the most inches that a figure on it may be high.
    """

    name: str
    width: float | None
    size: float
    tallest: float = math.inf

    @property
    def small(self) -> float:
        """The size of small print in points."""
        return SMALL * self.size

    @property
    def narrow(self) -> bool:
        """Whether it is the column of a page with two columns."""
        return self.width is not None and self.width < 5

    @property
    def label_length(self) -> int | None:
        """How many characters of a label fit beside a panel; None: any number."""
        return None if self.width is None else 20 if self.narrow else 36

    def columns(self, panels: int, most: int) -> int:
        """How many `panels` stand side by side, at most `most`, two on a narrow sheet; rows are about equal."""
        rows = -(-panels // (2 if self.narrow else most))
        return -(-panels // max(rows, 1))

    def area(self, width: float, height: float) -> tuple[float, float]:
        """(width, height) in inches of a figure that takes `width` × `height` on a screen: fonts scale less."""
        if self.width is None:
            return width, height
        return self.width, min(height * max(min(self.width / width, 1.0), 0.9 * self.size / SCREEN.size), self.tallest)


SCREEN = Sheet("screen", None, 11)
PAGE = Sheet("page", 6.9, 8.4, tallest=8.4)
COLUMN = Sheet("column", 3.3, 8.4)
"""Both columns, and one, of a page with two columns. No text on them is smaller than 7.5 points."""
PHONE = Sheet("phone", 3.4, 8)
"""A phone that is held upright."""
PAPER_SHEETS = (COLUMN, PAGE)


IN_A_ROW = 6
"""How many tasks stand side by side at most."""
NOTHING = "nothing-to-show"
"""The id, in its SVG file, of a figure without data."""


class NothingError(Exception):
    """Raised by a drawing that has nothing to show; its text says why."""


def empty(reason: str) -> Figure:
    """A figure that shows only the reason why there is nothing to see."""
    figure, ax = plt.subplots(figsize=(3.3, 0.8))
    figure.set_gid(NOTHING)
    ax.axis("off")
    ax.text(0.5, 0.5, reason, ha="center", va="center", style="italic", wrap=True)
    return figure


def make_panels(
    sheet: Sheet, rows: int, columns: int, *, width: float, height: float, **share: Any
) -> tuple[Figure, list[list[Axes]]]:
    """(figure, axes[row][column]): panels of `width` × `height` inches on a screen. share: for `plt.subplots`."""
    size = sheet.area(max(width * columns, 4.2), height * rows)
    layout = ConstrainedLayoutEngine(h_pad=0.1 * sheet.size / SCREEN.size)  # inches: titles keep off the labels above
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout=layout, **share)
    return figure, cast("list[list[Axes]]", axes.tolist())


def unused_hidden(axes: list[list[Axes]], used: int) -> list[Axes]:
    """The first `used` panels of a grid, line by line; the others are hidden."""
    panels = [panel for line in axes for panel in line]
    for panel in panels[used:]:
        panel.set_visible(False)
    return panels[:used]


def by_task(
    sheet: Sheet, measures: int, tasks: Sequence[str], *, width: float, height: float
) -> tuple[Figure, list[list[Axes]]]:
    """(figure, axes[measure][task]): tasks stand side by side, six in a row, or on a narrow sheet below each other.

    A measure's panels are not tied together, since Matplotlib's time for that grows with their square: the caller gives
    all of them the same limits, and labels go to those that `edges` and `feet` name.
    """
    count = len(tasks)
    if sheet.narrow:
        figure, found = make_panels(sheet, count, measures, width=width, height=height)
        axes = [list(line) for line in zip(*found, strict=True)]
    else:
        columns = sheet.columns(count, IN_A_ROW)
        figure, found = make_panels(sheet, -(-count // columns) * measures, columns, width=width, height=height)
        axes = [unused_hidden(found[measure::measures], count) for measure in range(measures)]
    left, lowest = {panel for line in edges(sheet, axes) for panel in line}, set(feet(sheet, axes))
    for panel in (panel for line in axes for panel in line):
        panel.tick_params(labelleft=panel in left, labelbottom=panel in lowest)
    for panel, task in zip(axes[0], tasks, strict=True):
        panel.set_title(task_name(task))
    return figure, axes


def edges(sheet: Sheet, axes: list[list[Axes]]) -> list[list[Axes]]:
    """For each measure of `by_task`: the panels that bear the label of its axis."""
    return axes if sheet.narrow else [line[:: sheet.columns(len(line), IN_A_ROW)] for line in axes]


def feet(sheet: Sheet, axes: list[list[Axes]]) -> list[Axes]:
    """The panels of `by_task` below which the horizontal axis is labelled."""
    return [line[-1] for line in axes] if sheet.narrow else axes[-1]


def ticks_at(panel: Axes, values: Sequence[float], *, log: bool = True) -> None:
    """Put one tick at each of the `values` of the horizontal axis."""
    if log:
        panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(values))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


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
                "linestyle": LINES[number % len(LINES)],
                "markerfacecolor": method_colour(method) if lossless else "none",
            }
            row = {"method": method, "variant": variant, "label": frame["label"].iloc[0] if "label" in frame else ""}
            found.append((named(row, lossless=lossless), style, frame))
    return found


def method_handles(cells: pd.DataFrame, *, lines: bool = True) -> list[Line2D]:
    """The legend entries of the methods in `cells`. lines: False gives plain squares in the method's colour."""
    handles = [Line2D([], [], label=label, **style) for label, style, _ in method_lines(cells)]
    if not lines:
        for handle in handles:
            handle.set(marker="s", linestyle="none")
    return handles


def draw_band(
    ax: Axes,
    line: pd.DataFrame,
    column: str,
    style: dict[str, Any],
    label: str,
    *,
    over: str = "k",
) -> None:
    """Draw a measure against k with its band from `_low` to `_high`; a single k gets a bar, since its band would have
    no width.

    over: what the column k holds, for readers.
    """
    line = line.dropna(subset=[column])
    low, high = line[f"{column}_low"].astype(float), line[f"{column}_high"].astype(float)
    points = zip(line["k"], line[column], low, high, strict=True)
    tips = [tip(f"{label}, {over} = {k:g}, {column.replace('_', ' ')}", *values) for k, *values in points]
    mark(ax.plot(line["k"], line[column], label=label, **style), label, tips)
    if len(line) > 1:
        mark(ax.fill_between(line["k"], low, high, color=style["color"], alpha=0.16, linewidth=0), label)
    elif len(line) == 1:  # a band of one point would not be seen
        bar = ax.vlines(line["k"], low, high, color=style["color"], linewidth=0.8 * plt.rcParams["lines.linewidth"])
        mark(bar, label)


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


def legend_below(
    figure: Figure,
    handles: list[Any],
    labels: list[str] | None = None,
    *,
    note: str = "",
    handlelength: float | None = None,
) -> None:
    """Draw one legend under the whole figure, in as many columns as fit, with `note` above it.

    handlelength: of the lines in it, in font sizes; longer ones show which line is dashed.
    """
    named: dict[str, Any] = {"handles": handles, "handlelength": handlelength}
    named |= {} if labels is None else {"labels": labels}
    width = figure.get_figwidth() * figure.dpi
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            **named, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, title=_wrapped(figure, note) or None
        )
        legend.get_title().set_fontsize(SMALL * plt.rcParams["font.size"])
        if columns == 1 or legend.get_window_extent().width <= width:
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                switch([*filter(None, [handle]), text], text.get_text())
            return
        legend.remove()


def note_below(figure: Figure, note: str) -> None:
    """Draw a line of small print under the figure."""
    if note:
        size = SMALL * plt.rcParams["font.size"]
        figure.text(0.5, -0.02, _wrapped(figure, note), ha="center", va="top", fontsize=size)


def _wrapped(figure: Figure, note: str) -> str:
    """`note` in lines that are not wider than the figure."""
    # A letter's mean width is 0.56 of its size.
    signs = int(figure.get_figwidth() * 72 / (0.56 * SMALL * plt.rcParams["font.size"]))
    return "\n".join(line for text in note.splitlines() for line in textwrap.wrap(text, signs))


def signs_note(frame: pd.DataFrame) -> str:
    """The explanation of the dagger if a row of `frame` (cells, or their summary) has one; else empty."""
    return "" if frame["lossless"].astype(bool).all() else LOSSY_NOTE


def in_lines(label: str, most: int | None) -> str:
    """A method's label in lines of at most `most` characters where it can be cut: before its options and between them.
    None: as it is.
    """
    return (
        label if most is None or len(label) <= most else "\n".join(textwrap.wrap(label, most, break_long_words=False))
    )


def row_label(row: dict[str, Any]) -> str:
    """The label of a summary row: its method and k."""
    name = named(row, lossless=row["lossless"])
    return f"{name}, k {row['k']}" if row["k"] else name


def check_compares(summary: pd.DataFrame) -> None:
    """Raise NothingError unless there are two methods to compare."""
    if summary.empty:
        raise NothingError("no speedups in this study")
    if len(summary) == 1:
        raise NothingError("one method: its speedups stand in the table")
