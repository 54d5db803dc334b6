"""Draws a comparison: each cell's speedup in A against its speedup in B."""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.reporting.figures.panels import SCREEN, TIMES, legend_below, make_panels
from specrig.reporting.figures.style import INK, PAPER, method_colour, method_marker, rc
from specrig.results.labels import method_order
from specrig.sharing.compare.study_comparison import StudyComparison


def draw(comparison: StudyComparison, path: Path) -> Path:
    """Write `scatter` as SVG, the same bytes for the same records; returns `path`."""
    with plt.rc_context({**rc(SCREEN.size), "savefig.bbox": "tight"}):
        figure = scatter(comparison)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": "SpecRig"})
        plt.close(figure)
    return path


def scatter(comparison: StudyComparison) -> Figure:
    """Speedup in A (across) and in B (up) with 95 % intervals; cells that changed beyond chance are filled."""
    rows = [row for row in comparison.cells if np.isfinite([row.a["speedup"], row.b["speedup"]]).all()]
    figure, axes = make_panels(SCREEN, 1, 1, width=6.4, height=6.0)
    ax = axes[0][0]
    values = np.array([[row.a["speedup"], row.b["speedup"]] for row in rows] or [[1.0, 1.0]])
    low, high = 0.92 * min(values.min(), 1.0), 1.08 * values.max()
    ax.plot([low, high], [low, high], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=0)
    for row in rows:
        colour = method_colour(row.change.cell.method)
        for side, place in ((row.a, ax.hlines), (row.b, ax.vlines)):
            other = row.b if side is row.a else row.a
            place(other["speedup"], side["speedup_low"], side["speedup_high"], color=colour, linewidth=0.8, alpha=0.35)
    for method in method_order(row.change.cell.method for row in rows):
        own = [row for row in rows if row.change.cell.method == method]
        sns.scatterplot(
            x=[row.a["speedup"] for row in own],
            y=[row.b["speedup"] for row in own],
            marker=method_marker(method),
            s=42,
            facecolor=[method_colour(method) if row.changed else PAPER for row in own],
            edgecolor=method_colour(method),
            linewidth=1.4,
            ax=ax,
        )
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="speedup in A", ylabel="speedup in B")
    ax.xaxis.set_major_formatter(TIMES)
    ax.yaxis.set_major_formatter(TIMES)
    handles = [
        Line2D([], [], linestyle="none", marker=method_marker(name), color=method_colour(name), label=name)
        for name in method_order(row.change.cell.method for row in rows)
    ]
    legend_below(figure, handles)
    return figure
