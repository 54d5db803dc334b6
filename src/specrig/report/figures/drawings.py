"""Write a study's figures: SVG and PNG in `results/<study>/figures`, PDF in the widths of a paper."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl

from specrig.files import write_atomically
from specrig.report.study_data import learning_curves

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from specrig.analysis.acceptance import emitted_lengths
from specrig.analysis.cells import identity, row_dicts, row_identity
from specrig.measurement.records import Record
from specrig.report.figures import curves, plots, ranking
from specrig.report.figures.engines_figure import engines_figure
from specrig.report.figures.loss import speed_against_loss
from specrig.report.figures.marks import named
from specrig.report.figures.panels import PAPER_SHEETS, PHONE, SCREEN, NothingError, Sheet, empty
from specrig.report.figures.reported_figure import reported_against
from specrig.report.figures.style import rc
from specrig.report.figures.sweeps import along, batching, k_sweep, latency
from specrig.report.figures.traffic_figure import traffic
from specrig.report.fonts import for_figures
from specrig.report.outline import figures
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.report.summary import base_setting, best_rows, speedup_summary

MARGIN = 0.02
"""Inches of white around a figure on paper."""
AROUND = 0.1
"""Inches of white around it on a screen."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """setting: `<engine>-<pair>`, empty for the study's first. draw: raises NothingError without data."""

    name: str
    setting: str
    draw: Callable[[Sheet], Figure]

    @property
    def stem(self) -> str:
        """The file name without its ending."""
        return f"{self.name}-{self.setting}" if self.setting else self.name


def file_names() -> list[str]:
    """The files that `write_figures` writes for every study."""
    return [f"{name}.{ending}" for name in figures() for ending in ("svg", "png")] + [
        f"{PHONE.name}/{name}.svg" for name in figures()
    ]


def drawings(results: StudyResults) -> Iterator[Drawing]:
    """All figures of a study. A figure shows one engine and one pair, at the lowest temperature and the smallest batch."""
    study, cells = results.study, results.cells
    settings: dict[Hashable, pd.DataFrame] = dict(list(cells.groupby(["engine", "pair"], sort=False))) or {
        ("", ""): cells
    }
    measured: dict[Hashable, list[list[Record]]] = {key: [] for key in settings}
    for members in study.cells.values():
        measured[members[0].cell.engine, members[0].cell.pair].append(members)
    every = [members[0].cell for members in study.cells.values()]
    for number, (key, frame) in enumerate(settings.items()):
        chosen = base_setting(frame)
        setting = "{engine}-{pair}".format(**chosen.iloc[0]) if number else ""
        if number and chosen["method"].nunique() < 2:
            continue  # there is nothing to compare it with: tables say it all
        for name, draw in _of_setting(study.tasks, measured[key], chosen).items():
            yield Drawing(name, setting, draw)
        tasks = [task for task in study.tasks if task in set(frame["task"])]
        yield Drawing("batching", setting, partial(batching, frame, tasks))  # it compares batch sizes, so it sees all
        yield Drawing("latency", setting, partial(latency, chosen, every, tasks))
    yield Drawing("traffic", "", lambda sheet: traffic(results.traffic.frame, results.crossovers, sheet))
    yield Drawing("turns", "", lambda sheet: along(results.turns, "turn", sheet))
    yield Drawing("contexts", "", lambda sheet: along(results.contexts, "context", sheet))
    yield Drawing("engines", "", lambda sheet: engines_figure(base_setting(results.compared), study.tasks, sheet))
    yield Drawing("reported", "", lambda sheet: reported_against(results.judged, sheet))
    yield Drawing("loss", "", lambda sheet: speed_against_loss(results.losses, study.tasks, sheet))
    yield Drawing("training", "", lambda sheet: curves.training_loss(results.curves, sheet))
    learnt = learning_curves(study.folder / "models")
    yield Drawing("learning", "", lambda sheet: curves.learning(learnt, study.learning_points, sheet))
    for name, item in figures().items():
        if item.draw is not None:
            yield Drawing(name, "", partial(item.draw, results))


def write_figures(study_dir: Path, out: Path) -> list[Path]:
    """Draw the figures of `results/<study>` into `out`; returns the paths of all files written.

    Reads the records and the training curves. `<name>.svg` shows the first engine and pair of the study; those of the
    others are called `<name>-<engine>-<pair>.svg`. `phone/` holds the same for a phone's width. The first
    setting's figures without data are written too and say that they have none.
    """
    (out / PHONE.name).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    study = read_study(study_dir)
    fonts = for_figures(str(study.config))
    for drawing in drawings(StudyResults(study)):
        for sheet, folder in ((SCREEN, out), (PHONE, out / PHONE.name)):
            with plt.rc_context(rc(sheet.size) | fonts):
                caption = figures()[drawing.name].caption
                try:
                    figure = drawing.draw(sheet)
                except NothingError as reason:
                    if drawing.setting:
                        break  # pages show what has data
                    figure, caption = empty(str(reason)), str(reason)
                written += _save(figure, folder / drawing.stem, caption, picture=sheet is SCREEN)
    for stray in {path for name in figures() for path in out.rglob(f"{name}-*.*")} - set(written):
        stray.unlink()  # of a pair or an engine that left the study
    return written


def draw_for_paper(results: StudyResults, out: Path) -> dict[str, list[tuple[str, str]]]:
    """Draw every figure that has data as `<stem>-<sheet>.pdf` in `out`; returns name -> its (setting, stem) pairs.

    A PDF is as wide as its sheet, has no text or line beyond it, and has its fonts inside.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[tuple[str, str]]] = {}
    fonts = for_figures(str(results.study.config))
    for drawing in drawings(results):
        for sheet in PAPER_SHEETS:
            with plt.rc_context(rc(sheet.size) | fonts):
                try:
                    figure = drawing.draw(sheet)
                except NothingError:
                    break
                _save_pdf(figure, out / f"{drawing.stem}-{sheet.name}.pdf", sheet, figures()[drawing.name].caption)
        else:
            found.setdefault(drawing.name, []).append((drawing.setting, drawing.stem))
    return {name: found[name] for name in figures() if name in found}


def _of_setting(
    tasks: Sequence[str], measured: Sequence[list[Record]], cells: pd.DataFrame
) -> dict[str, Callable[[Sheet], Figure]]:
    """The figures of one engine and pair. measured: the records of each cell, also of those not in `cells`."""
    tasks = [task for task in tasks if task in set(cells["task"])]
    records = [record for members in measured for record in members]
    summary, best = speedup_summary(cells, records, tasks), best_rows(cells)
    return {
        "k_sweep": lambda sheet: k_sweep(cells, tasks, sheet),
        "heatmap": lambda sheet: plots.heat_map(summary, tasks, sheet),
        "ranking": lambda sheet: ranking.ranking(summary, tasks, sheet),
        "rounds": lambda sheet: ranking.rounds(best, sheet),
        "predicted": lambda sheet: plots.predicted(best, tasks, sheet),
        "emitted_lengths": lambda sheet: curves.emitted_lengths(_lengths(measured, best), tasks, sheet),
    }


def _lengths(measured: Iterable[list[Record]], cells: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and emitted length, with its share of the rounds that were not cut."""
    labels = {row_identity(row): row["label"] for row in row_dicts(cells)}
    rows: list[dict[str, Any]] = []
    columns = ["method", "variant", "k", "lossless", "label", "task", "emitted", "share"]
    for members in measured:
        cell = members[0].cell
        if identity(cell) not in labels:
            continue
        counts = pd.Series(emitted_lengths(members), dtype="int64").value_counts(normalize=True)
        setting = [cell.method, cell.variant, cell.k, members[0].lossless, labels.get(identity(cell), ""), cell.task]
        rows += [dict(zip(columns, [*setting, emitted, share], strict=True)) for emitted, share in counts.items()]
    return pd.DataFrame(rows, columns=columns)


def _save(figure: Figure, stem: Path, caption: str, *, picture: bool) -> list[Path]:
    """Save a figure as SVG and, if `picture`, as PNG; returns the files."""
    svg, png = (stem.parent / f"{stem.name}.{ending}" for ending in ("svg", "png"))
    try:
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # laid out and measured once: each file would do both again
        drawn = figure.get_tightbbox(figure.canvas.get_renderer()).padded(AROUND)  # type: ignore[attr-defined]
        # No date inside: the same records give the same bytes.
        metadata = {"Title": caption, "Creator": "SpecRig", "Date": None}
        figure.savefig(svg, transparent=True, bbox_inches=drawn, metadata=metadata)
        if picture:
            figure.savefig(png, facecolor="white", bbox_inches=drawn, metadata={"Title": caption})
        write_atomically(svg, named(svg.read_text(encoding="utf-8")))
    finally:
        plt.close(figure)
    return [svg, png] if picture else [svg]


def _save_pdf(figure: Figure, path: Path, sheet: Sheet, caption: str) -> None:
    """Save a figure as wide as its sheet and as high as what is drawn; what reaches beyond is scaled into the sheet."""
    try:
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]  # Agg's canvas has one
        width = sheet.width or figure.get_figwidth()
        beyond = drawn.width + 2 * MARGIN - width
        if beyond > 0:
            figure.set_figwidth(figure.get_figwidth() - beyond)
            figure.draw_without_rendering()
            drawn = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        figure.set_layout_engine(None)
        left = (drawn.x0 + drawn.x1 - width) / 2
        page = Bbox([[left, drawn.y0 - MARGIN], [left + width, drawn.y1 + MARGIN]])
        metadata: dict[str, Any] = {"CreationDate": None, "Title": caption, "Creator": "SpecRig"}
        figure.savefig(path, bbox_inches=page, metadata=metadata)
    finally:
        plt.close(figure)
