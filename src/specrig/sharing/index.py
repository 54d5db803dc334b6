"""The index of a folder of publications: a table in README.md, and a figure of the speedups. Both are made from the
manifests alone, so that publications of any age are in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from specrig.analysis.cells import row_dicts
from specrig.files import write_atomically
from specrig.report.grid import Grid, GridEntry, interval, markdown, number
from specrig.report.labels import BASELINES, named
from specrig.report.study_results import StudyResults
from specrig.report.summary import MEAN, base_setting, comparable
from specrig.sharing.manifest import FILE, Manifest, PublishedPair, PublishedSpeedup, read_manifest

INDEX, FIGURE = "README.md", "headline.svg"
COLUMNS = 2


def published_pairs(results: StudyResults) -> list[PublishedPair]:
    """The speedups of each engine and pair of a study, at the lowest temperature and the smallest batch.

    A method counts as fair if it is lossless and passed the audit.
    """
    pairs = []
    for (engine, pair), rows in results.speedups.groupby(["engine", "pair"], sort=False):
        drafting = base_setting(rows[~rows["method"].isin(list(BASELINES))]).dropna(subset=[MEAN])
        marked = drafting.assign(_fair=comparable(drafting)).sort_values(MEAN, ascending=False)
        cells = (results.cells["engine"] == engine) & (results.cells["pair"] == pair)
        targets = [
            (job.environment.get("models") or {}).get("target") or {}
            for job in results.study.jobs
            if (job.engine, job.pair) == (engine, pair)
        ]
        precisions = dict.fromkeys(str(target["precision"]) for target in targets if target.get("precision"))
        pairs.append(
            PublishedPair(
                engine=str(engine),
                pair=str(pair),
                precision=", ".join(precisions),
                cells=int(cells.sum()),
                speedups=[_speedup(row) for row in row_dicts(marked)],
            )
        )
    return pairs


def write_index(folder: Path) -> list[Path]:
    """Write `README.md` and `headline.svg` into `folder`, a folder of publications; returns their paths.

    Raises PublicationError for a broken manifest.
    """
    manifests = {path.parent.name: read_manifest(path.parent) for path in sorted(folder.glob(f"[!.]*/{FILE}"))}
    write_atomically(folder / INDEX, index_markdown(manifests))
    return [folder / INDEX, draw_figure(manifests, folder / FIGURE)]


def index_markdown(manifests: dict[str, Manifest]) -> str:
    """The index in Markdown, which GitHub shows below the folder. manifests: folder -> manifest."""
    rows = [
        [
            GridEntry(manifest.hardware),
            GridEntry(pair.title),
            GridEntry(pair.engine),
            *_fastest(pair),
            GridEntry(str(pair.cells)),
            *_about(name, manifest),
        ]
        for name, manifest in manifests.items()
        for pair in manifest.pairs
    ]
    rows += [
        [GridEntry(manifest.hardware), *map(GridEntry, ("declared acceptance", *"–––––")), *_about(name, manifest)]
        for name, manifest in manifests.items()
        if not manifest.pairs
    ]
    caption = (
        "# Published studies\n\n"
        f"![Speedup by method with 95 % intervals, of every published pair]({FIGURE})\n\n"
        "Speedup over plain decoding of the fastest lossless method of each pair: geometric mean over tasks with its "
        "95 % interval, at the lowest temperature and the smallest batch, at the k that is best on the same "
        "prompts. Methods that failed the audit do not count. `specrig verify FOLDER` checks a study, `specrig compare FOLDER FOLDER` compares two, and `specrig "
        "publish` writes this page."
    )
    header = ["machine", "pair", "engine", "fastest", "speedup", "tasks", "cells", "measured with", "on", "report"]
    return markdown(Grid(header, rows, labels=4, trailing=3, caption=caption))


def draw_figure(manifests: dict[str, Manifest], path: Path) -> Path:
    """Draw speedup by method with 95 % intervals as SVG on white, a panel for each pair; returns `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    from specrig.report.figures.panels import SCREEN, TIMES, make_panels, unused_hidden
    from specrig.report.figures.style import INK, method_colour, rc

    panels = [(name, manifest, pair) for name, manifest in manifests.items() for pair in manifest.pairs]
    # A single bar is no comparison, unless there are no others.
    panels = [panel for panel in panels if len(panel[-1].speedups) > 1] or panels
    panels.sort(key=lambda panel: -len(panel[-1].speedups))
    columns = min(len(panels), COLUMNS) or 1
    heights = [0.29 * len(pair.speedups) + 1.6 for _, _, pair in panels[::columns]] or [1.0]
    with plt.rc_context({**rc(SCREEN.size), "savefig.bbox": "tight"}):
        width, height = 7.6 / columns + 4, sum(heights) / len(heights)  # names of variants and machines are long
        figure, axes = make_panels(
            SCREEN, len(heights), columns, width=width, height=height, sharex=True, height_ratios=heights
        )
        used = unused_hidden(axes, len(panels))
        for ax, (name, manifest, pair) in zip(used, panels, strict=True):
            labels = [speedup.label for speedup in pair.speedups]
            values = np.array([speedup.speedup for speedup in pair.speedups])
            ends = np.array([[each.low or each.speedup, each.high or each.speedup] for each in pair.speedups])
            colours = {speedup.label: method_colour(speedup.method) for speedup in pair.speedups}
            sns.barplot(x=values, y=labels, hue=labels, palette=colours, saturation=1, legend=False, ax=ax)
            for bar, speedup in zip(ax.patches, pair.speedups, strict=False):
                bar.set_alpha(1.0 if speedup.fair else 0.35)
            ax.errorbar(values, labels, xerr=abs(ends.T - values), fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
            ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            ax.xaxis.set_major_formatter(TIMES)
            ax.grid(axis="y", visible=False)
            ax.tick_params(left=False, bottom=False, labelbottom=True)
            ax.set_ylabel("")
            ax.set_title(f"{pair.title} in {pair.engine}\n{manifest.hardware}\n{name}", loc="left")
        figure.supxlabel("speedup over plain decoding, geometric mean over tasks; pale: lossy or failed")
        axes[0][0].set_xlim(left=0)  # last: panels share the axis, and a limit ends its growing
        # The layout's last digits differ from process to process, and names in the file are digests of them.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for ax in used:
            ax.set_position(tuple(np.round(ax.get_position().bounds, 6)))
        metadata = {"Date": None, "Title": "Speedup by method", "Creator": "SpecRig"}
        figure.savefig(path, format="svg", facecolor="white", metadata=metadata)
        plt.close(figure)
    # Matplotlib writes six digits after the point, of which no screen shows the last four, and indents every line.
    drawn = re.sub(r"(\.\d\d)\d+|^ +", r"\1", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    write_atomically(path, drawn)
    return path


def _speedup(row: dict[str, Any]) -> PublishedSpeedup:
    """A row of `speedup_summary` with its signs."""
    low, high = row[f"{MEAN}_low"], row[f"{MEAN}_high"]
    label = named(row, lossless=row["lossless"])
    return PublishedSpeedup(
        method=row["method"],
        label=f"{label}, k = {row['k']}" if row["k"] else label,
        speedup=float(row[MEAN]),
        low=low if np.isfinite(low) else None,
        high=high if np.isfinite(high) else None,
        tasks=int(row["tasks"]),
        fair=bool(row["_fair"]),
    )


def _fastest(pair: PublishedPair) -> Iterable[GridEntry]:
    """The fastest method, its speedup, and over how many tasks."""
    fastest = pair.fastest
    if fastest is None:
        return GridEntry("none without a fault"), GridEntry("–"), GridEntry("–")
    note = interval(fastest.low, fastest.high) if fastest.low is not None and fastest.high is not None else ""
    return GridEntry(fastest.label), GridEntry(number(fastest.speedup), note, bold=True), GridEntry(str(fastest.tasks))


def _about(name: str, manifest: Manifest) -> Iterable[GridEntry]:
    """The commits that measured, the day, and the report."""
    commits = ", ".join(f"`{commit[:12]}`" for commit in manifest.measured_with) or "–"
    return GridEntry(commits), GridEntry(manifest.measured or "–"), GridEntry(f"[{name}]({name}/report.html)")
