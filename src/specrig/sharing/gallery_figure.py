"""Draws the picture of the gallery: speedup by method with 95 % intervals, one panel for each published study and pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from specrig.analysis.cells import row_dicts
from specrig.reporting.figures.panels import SCREEN, make_panels, note_below, row_label, unused_hidden
from specrig.reporting.figures.plots import TIMES
from specrig.reporting.figures.style import INK, method_colour, rc
from specrig.results.labels import DISTURBED_NOTE, DISTURBED_SIGN, LOSSY_NOTE
from specrig.results.summary import CROSS_FITTED, MEAN, disturbed_in

Panel = tuple[str, pd.DataFrame, pd.Series]
"""(title, rows of `summary.speedup_summary`, for each row whether it is lossless, audited and undisturbed)."""
LEAST = 2
"""Fewer methods than these are a number, not a picture."""
SIDE_BY_SIDE = 2


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Write the picture to `path` as SVG on white, the same bytes for the same records; returns `path`.

    Those with most methods come first. Panels with fewer than `LEAST` methods are left out, unless there are no others.
    """
    shown = [panel for panel in panels if len(panel[1]) >= LEAST] or list(panels)
    shown.sort(key=lambda panel: len(panel[1]), reverse=True)
    columns = min(len(shown), SIDE_BY_SIDE)
    # Inches of each line of panels, as the first of them asks, which has the most bars.
    heights = [0.29 * len(rows) + 1.6 for _, rows, _ in shown[::columns]]
    with plt.rc_context({**rc(SCREEN.size), "savefig.bbox": "tight"}):
        figure, axes = make_panels(
            SCREEN,
            len(heights),
            columns,
            width=7.6 / columns + 1.2,
            height=sum(heights) / len(heights),
            sharex=True,
            height_ratios=heights,
        )
        used = unused_hidden(axes, len(shown))
        for ax, panel in zip(used, shown, strict=True):
            _bars(ax, panel)
        axes[0][0].set_xlim(left=0)  # last: panels share the axis, and a limit ends its growing
        for ax in used[-columns:]:  # the lowest of each column
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("speedup over plain decoding,\ngeometric mean over tasks")
        marks = [
            note
            for sign, note in (
                (any(disturbed_in(rows, MEAN).any() for _, rows, _ in shown), DISTURBED_NOTE),
                (any(not rows["lossless"].all() for _, rows, _ in shown), LOSSY_NOTE),
            )
            if sign
        ]
        note_below(figure, "\n".join(marks))
        # The layout's last digits differ from process to process, and names in the file are digests of them.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for ax in used:
            ax.set_position(tuple(np.round(ax.get_position().bounds, 6)))
        temporary = path.with_name(f".{path.name}")
        figure.savefig(
            temporary,
            format="svg",
            facecolor="white",
            metadata={"Date": None, "Title": "Speedup by method", "Creator": "SpecRig"},
        )
        plt.close(figure)
    return temporary.replace(path)


def _bars(ax: Axes, panel: Panel) -> None:
    """One bar a method, the fastest on top; pale where the method is lossy, failed the audit or was disturbed."""
    title, rows, fair = panel
    frame = (
        rows.assign(_fair=fair, _marked=disturbed_in(rows, MEAN))
        .dropna(subset=[CROSS_FITTED])
        .sort_values(CROSS_FITTED, ascending=False)
    )
    names = [f"{row_label(row)}{f' {DISTURBED_SIGN}' if row['_marked'] else ''}" for row in row_dicts(frame)]
    palette = dict(zip(names, map(method_colour, frame["method"]), strict=True))
    sns.barplot(
        x=frame[CROSS_FITTED].to_numpy(),
        y=names,
        hue=names,
        palette=palette,
        saturation=1,
        legend=False,
        errorbar=None,
        ax=ax,
    )
    for bar, kept in zip(ax.patches, frame["_fair"], strict=False):
        bar.set_alpha(1.0 if kept else 0.35)
    values = frame[CROSS_FITTED].to_numpy(dtype=float)
    low, high = (frame[f"{CROSS_FITTED}_{end}"].to_numpy(dtype=float) for end in ("low", "high"))
    spread = np.nan_to_num(np.abs(np.vstack([values - low, high - values])))
    ax.errorbar(values, np.arange(len(names)), xerr=spread, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.xaxis.set_major_formatter(TIMES)
    ax.grid(axis="y", visible=False)
    ax.set_title(title, loc="left")
    ax.set_ylabel("")
