"""`specrig gallery`: the index of published studies, with a figure of their speedups, and the page to filter them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes

from specrig.analysis.cells import row_dicts
from specrig.files import write_atomically
from specrig.reporting.figures.panels import SCREEN, TIMES, make_panels, note_below, row_label, unused_hidden
from specrig.reporting.figures.style import INK, method_colour, rc
from specrig.results.grid import Grid, GridEntry, interval, markdown, number
from specrig.results.labels import DISTURBED_NOTE, DISTURBED_SIGN, LOSSY_NOTE
from specrig.results.summary import CROSS_FITTED, disturbed_in
from specrig.sharing.gallery_page import gallery_page
from specrig.sharing.manifest import FILE
from specrig.sharing.published_pairs import PublishedPair, published_pairs

INDEX, FIGURE, PAGE = "README.md", "headline.svg", "index.html"
"""The files that `write_gallery` writes."""
LEAST = 2
"""A pair with fewer methods is left out of the figure, unless there are no others."""
MOST = 12
"""So many pairs are in the figure, those with most methods: pages load it whole."""
COLUMNS = 2


def write_gallery(folder: Path) -> list[Path]:
    """Write `README.md`, `headline.svg` and `index.html` into `folder`, a folder of publications; returns their paths.

    The same publications give the same bytes. Raises PublicationError where there is no publication, or a broken one.
    """
    found = published_pairs(folder)
    index = folder / INDEX
    write_atomically(index, index_markdown(found, declared(folder, found)))
    write_atomically(folder / PAGE, gallery_page(found))
    return [index, draw_figure(found, folder / FIGURE), folder / PAGE]


def declared(folder: Path, found: Sequence[PublishedPair]) -> list[str]:
    """The publications in `folder` of which nothing is in `found`, since none of their cells has a measured acceptance."""
    listed = {each.folder for each in found}
    return [path.parent.name for path in sorted(folder.glob(f"*/{FILE}")) if path.parent.name not in listed]


def draw_figure(pairs: Sequence[PublishedPair], path: Path) -> Path:
    """Draw speedup by method with 95 % intervals, a panel for each pair: those with most methods first.

    Writes SVG on white to `path`, the same bytes for the same records; returns `path`.
    """
    panels = [pair for pair in pairs if len(pair.speedups) >= LEAST] or list(pairs)
    panels = sorted(panels, key=lambda pair: len(pair.speedups), reverse=True)[:MOST]
    columns = min(len(panels), COLUMNS)
    # Inches of each line of panels: its first panel has the most bars.
    heights = [0.29 * len(pair.speedups) + 1.6 for pair in panels[::columns]]
    with plt.rc_context({**rc(SCREEN.size), "savefig.bbox": "tight"}):
        figure, axes = make_panels(
            SCREEN,
            len(heights),
            columns,
            width=7.6 / columns + 4,  # names of variants and machines are long
            height=sum(heights) / len(heights),
            sharex=True,
            height_ratios=heights,
        )
        used = unused_hidden(axes, len(panels))
        for ax, pair in zip(used, panels, strict=True):
            _bars(ax, pair)
        axes[0][0].set_xlim(left=0)  # last: panels share the axis, and a limit ends its growing
        for ax in used[-columns:]:  # the lowest of each column
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("speedup over plain decoding,\ngeometric mean over tasks")
        tables = [pair.speedups for pair in panels]
        marks = [
            note
            for sign, note in (
                (any(disturbed_in(rows, CROSS_FITTED).any() for rows in tables), DISTURBED_NOTE),
                (any(not rows["lossless"].all() for rows in tables), LOSSY_NOTE),
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
    # Matplotlib writes six digits after the point, of which no screen shows the last four, and indents every line.
    drawn = re.sub(r"(\.\d\d)\d+", r"\1", temporary.read_text(encoding="utf-8"))
    drawn = re.sub(r"^ +", "", drawn, flags=re.MULTILINE)
    temporary.write_text(drawn, encoding="utf-8")
    return temporary.replace(path)


def index_markdown(found: Sequence[PublishedPair], others: Sequence[str] = ()) -> str:
    """The index in Markdown, which GitHub shows below the folder. others: folders of studies with declared acceptance."""
    rows = [
        [
            GridEntry(each.machine),
            GridEntry(each.model),
            GridEntry(each.engine),
            *_headline(each),
            GridEntry(str(each.cells)),
            GridEntry(", ".join(f"`{commit[:12]}`" for commit in each.commits) or "–"),
            GridEntry(each.date),
            GridEntry(f"[{each.folder}]({each.folder}), [report]({each.folder}/{each.report})"),
        ]
        for each in found
    ]
    caption = (
        "# Published studies\n\n"
        f"![Speedup by method, with 95 % intervals, of the pairs with most methods]({FIGURE})\n\n"
        "Speedup over plain decoding of the fastest lossless method of each pair: geometric mean over tasks with its "
        "95 % interval, at the lowest temperature and the smallest batch, each half of the prompts at the k that the "
        "other half chose. Methods that failed the audit do not count; disturbed measurements (‡) only where there are "
        "no others. `specrig verify FOLDER` computes a study's tables again from its records, `specrig compare FOLDER "
        "FOLDER` compares two of them, and `specrig gallery` writes this page, and beside it index.html, which shows "
        "all methods and filters them in a browser."
    )
    if others:
        links = ", ".join(f"[{name}]({name})" for name in others)
        caption += f" Studies with declared acceptance, which measure what passes cost, are not in the table: {links}."
    header = ["machine", "pair", "engine", "fastest", "speedup", "tasks", "cells", "code", "measured", "study"]
    return markdown(Grid(header, rows, labels=4, trailing=3, caption=caption))


def _headline(each: PublishedPair) -> list[GridEntry]:
    """What the fastest method is, its speedup, and over how many tasks."""
    best = each.best
    if best is None:
        return [GridEntry("none without a fault"), GridEntry("–"), GridEntry("–")]
    spread = (
        interval(best[f"{CROSS_FITTED}_low"], best[f"{CROSS_FITTED}_high"])
        if np.isfinite(best[f"{CROSS_FITTED}_low"])
        else ""
    )
    return [
        GridEntry(each.label(best)),
        GridEntry(number(best[CROSS_FITTED]), spread, bold=True),
        GridEntry(str(best["tasks"])),
    ]


def _bars(ax: Axes, pair: PublishedPair) -> None:
    """One bar a method, the fastest on top; pale where the method is lossy, failed the audit or was disturbed."""
    rows = pair.speedups
    frame = (
        rows.assign(_reliable=pair.reliable, _disturbed=disturbed_in(rows, CROSS_FITTED))
        .dropna(subset=[CROSS_FITTED])
        .sort_values(CROSS_FITTED, ascending=False)
    )
    names = [f"{row_label(row)}{f' {DISTURBED_SIGN}' if row['_disturbed'] else ''}" for row in row_dicts(frame)]
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
    for bar, kept in zip(ax.patches, frame["_reliable"], strict=False):
        bar.set_alpha(1.0 if kept else 0.35)
    values = frame[CROSS_FITTED].to_numpy(dtype=float)
    low, high = (frame[f"{CROSS_FITTED}_{end}"].to_numpy(dtype=float) for end in ("low", "high"))
    spread = np.nan_to_num(np.abs(np.vstack([values - low, high - values])))
    ax.errorbar(values, np.arange(len(names)), xerr=spread, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    ax.xaxis.set_major_formatter(TIMES)
    ax.grid(axis="y", visible=False)
    ax.tick_params(left=False, bottom=False)  # bars have names, and values have grid lines
    ax.set_title(f"{pair.pair} in {pair.engine}\n{pair.machine}\n{pair.folder}", loc="left")
    ax.set_ylabel("")
