"""Write the figures in `results/<study>/figures`: SVG for paper and report, PNG for slides. `plots` and others draw them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from specrig.analysis.acceptance import emitted_lengths
from specrig.analysis.cells import IDENTITY
from specrig.measurement.records import write_atomically
from specrig.reporting import plots
from specrig.reporting.batching import batching
from specrig.reporting.engines import comparison, engines_figure
from specrig.reporting.latency import latency
from specrig.reporting.reported import reported_against
from specrig.reporting.reproduction import reproduction
from specrig.reporting.study_data import StudyData, read_study
from specrig.reporting.style import rc
from specrig.reporting.summary import audit_failures, best_rows, speedup_summary

FIGURES = {
    "k_sweep": "Acceptance rate and decoding speed against k, the number of tokens drafted a round.",
    "heatmap": "Speedup over autoregressive decoding by method and task, at each method's best k (chosen on the same prompts).",
    "speedup_bars": "Speedup over autoregressive decoding with 95 % intervals, at each method's best k (chosen on the same prompts).",
    "predicted": "Measured speedup against the speedup predicted from acceptance and the cost of bare passes.",
    "emitted_lengths": "How many tokens a target pass emits, at each method's best k.",
    "engines": "The same cells in each engine, each method at the k that suits the first engine best, with 95 % intervals.",
    "batching": "Throughput against batch size: where speculation stops paying.",
    "latency": "Speedup against the latency that is added to each round trip between draft and target.",
    "reported": "Reported speedups against measured ones, or those that acceptance and a roofline predict; shaded: consistent with theory.",
    "training": "Training and held-out loss against wall time, of every model the study trained; a head's is the loss of its own method, so panels do not compare.",
}
"""Name of a figure -> its caption. `write_figures` writes `<name>.svg` and `<name>.png` of each figure for every study."""

FILES = [f"{name}.{ending}" for name in FIGURES for ending in ("svg", "png")]


def write_figures(study_dir: Path, out: Path) -> list[Path]:
    """Draw the figures of `results/<study>` into `out`; returns the paths of all files written.

    Reads `tables/cells.csv` (computed anew where it is missing), the records and the training curves. A figure shows one engine
    and one pair, at the lowest temperature and the smallest batch. `<name>.svg` shows the first engine and pair of the study;
    those of the others are called `<name>-<engine>-<pair>.svg`. A figure without data is written too and says that it has none.
    """
    study = read_study(study_dir)
    cells = _cells(study)
    settings = [frame for _, frame in cells.groupby(["engine", "pair"], sort=False)] or [cells]
    written: list[Path] = []
    with plt.rc_context(rc()):
        for number, frame in enumerate(settings):
            setting = base_setting(frame)
            suffix = "" if number == 0 else "-{engine}-{pair}".format(**setting.iloc[0])
            for name, draw in _drawings(study, setting).items():
                written += _save(draw, name, FIGURES[name], out, suffix)
        # Batch sizes are what it compares, so it sees the cells of all of them.
        first = settings[0]
        tasks = [task for task in study.tasks if task in set(first["task"])]
        written += _save(lambda: batching(first, tasks), "batching", FIGURES["batching"], out, "")
        measured = [members[0].cell for members in study.cells.values()]
        written += _save(lambda: latency(base_setting(first), measured, tasks), "latency", FIGURES["latency"], out, "")
        compared = base_setting(comparison(study))
        written += _save(lambda: engines_figure(compared, study.tasks), "engines", FIGURES["engines"], out, "")
        judged = reproduction(study)
        written += _save(lambda: reported_against(judged), "reported", FIGURES["reported"], out, "")
        curves = training_curves(study.folder / "models")
        written += _save(lambda: plots.training_loss(curves), "training", FIGURES["training"], out, "")
    for stray in {path for name in FIGURES for path in out.glob(f"{name}-*.*")} - set(written):
        stray.unlink()  # of a pair or an engine that left the study
    return written


def base_setting(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that a figure of one setting shows: those at the lowest temperature and, of these, the smallest batch."""
    coldest = cells[cells["temperature"] == cells["temperature"].min()]
    return coldest[coldest["batch_size"] == coldest["batch_size"].min()]


def training_curves(models: Path) -> pd.DataFrame:
    """All training curves below `models` (`<pair>/<model>/training.jsonl`) as one table with one row per loss.

    Columns: pair, model, seconds since training began, kind ("training" or the name of a held-out task), loss. Lines that are not
    JSON are left out, because a curve with a gap is better than no report.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(models.glob("*/*/training.jsonl")):
        pair, model = path.parts[-3], path.parts[-2]
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            losses = {"training": entry.get("loss"), **(entry.get("heldout") or {})}
            rows += [
                {"pair": pair, "model": model, "seconds": entry.get("seconds"), "kind": kind, "loss": loss}
                for kind, loss in losses.items()
                if isinstance(loss, int | float)
            ]
    return pd.DataFrame(rows, columns=["pair", "model", "seconds", "kind", "loss"])


def _cells(study: StudyData) -> pd.DataFrame:
    path = study.folder / "tables" / "cells.csv"
    if path.is_file():
        return pd.read_csv(path, dtype={"variant": str}).fillna({"variant": ""})
    return study.table.assign(failed=audit_failures(study.table, study.audit()))


def _drawings(study: StudyData, cells: pd.DataFrame) -> dict[str, Callable[[], Figure]]:
    tasks = [task for task in study.tasks if task in set(cells["task"])]
    summary = speedup_summary(cells, study.records, tasks)
    return {
        "k_sweep": lambda: plots.k_sweep(cells, tasks),
        "heatmap": lambda: plots.heat_map(summary, tasks),
        "speedup_bars": lambda: plots.speedup_bars(summary, tasks),
        "predicted": lambda: plots.predicted(best_rows(cells), tasks),
        "emitted_lengths": lambda: plots.emitted_lengths(_lengths(study, best_rows(cells)), tasks),
    }


def _lengths(study: StudyData, cells: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and emitted length: method, variant, k, lossless, task, emitted, share of the rounds that were not cut."""
    wanted = set(cells[IDENTITY].itertuples(index=False, name=None))
    rows: list[dict[str, Any]] = []
    columns = ["method", "variant", "k", "lossless", "task", "emitted", "share"]
    for members in study.cells.values():
        cell = members[0].cell
        if tuple(getattr(cell, name) for name in IDENTITY) not in wanted:
            continue
        counts = pd.Series(emitted_lengths(members), dtype="int64").value_counts(normalize=True)
        setting = [cell.method, cell.variant, cell.k, members[0].lossless, cell.task]
        rows += [dict(zip(columns, [*setting, emitted, share], strict=True)) for emitted, share in counts.items()]
    return pd.DataFrame(rows, columns=columns)


def _save(draw: Callable[[], Figure], name: str, caption: str, out: Path, suffix: str) -> Iterable[Path]:
    figure = draw()
    try:
        out.mkdir(parents=True, exist_ok=True)
        svg, png = out / f"{name}{suffix}.svg", out / f"{name}{suffix}.png"
        # No date inside: the same records give the same bytes.
        figure.savefig(svg, transparent=True, metadata={"Date": None, "Title": caption, "Creator": "SpecRig"})
        figure.savefig(png, facecolor="white", metadata={"Title": caption})
        write_atomically(svg, svg.read_text(encoding="utf-8"))
    finally:
        plt.close(figure)
    return [svg, png]
