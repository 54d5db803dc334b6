"""`specrig gallery`: the index of published studies, with a picture of what each found. Computed from the published
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.measurement.records import write_atomically
from specrig.results.grid import Grid, GridEntry, interval, markdown, number
from specrig.results.labels import BASELINES, method_name
from specrig.results.study_data import StudyData, read_study
from specrig.results.study_results import StudyResults
from specrig.results.summary import CROSS_FITTED, MEAN, base_setting, disturbed_in
from specrig.sharing.gallery_figure import draw
from specrig.sharing.manifest import FILE, PublicationError, read_manifest
from specrig.sharing.publish import hardware, unpacked

INDEX, PICTURE = "README.md", "headline.svg"
"""The files that `write_gallery` writes."""


@dataclass(frozen=True, slots=True)
class Entered:
    """What one published study found on one pair in one engine.

    speedups: the rows of `summary.speedup_summary` at the lowest temperature and smallest batch, without the baselines.
    fair: for each of them, whether it is lossless, passed the audit and was not disturbed. report: the report's file,
    compressed where it is large.
    """

    folder: str
    report: str
    machine: str
    engine: str
    pair: str
    dtype: str
    cells: int
    commits: tuple[str, ...]
    date: str
    speedups: pd.DataFrame
    fair: pd.Series

    @property
    def best(self) -> dict[str, Any] | None:
        """The row of the fastest fair method; None where there is none."""
        known = self.speedups[self.fair].dropna(subset=[CROSS_FITTED])
        return row_dicts(known.sort_values(CROSS_FITTED))[-1] if len(known) else None


def write_gallery(folder: Path) -> list[Path]:
    """Write `README.md` and `headline.svg` into `folder`, a folder of publications; returns both paths.

    The same publications give the same bytes. Raises PublicationError where there is no publication, or a broken one.
    """
    found = entered(folder)
    index = folder / INDEX
    write_atomically(index, text(found))
    return [index, draw_all(found, folder / PICTURE)]


def draw_all(found: Sequence[Entered], path: Path) -> Path:
    """Draw the picture of all entries as SVG; returns `path`."""
    return draw(
        [(f"{each.pair} in {each.engine}\n{each.machine}\n{each.folder}", each.speedups, each.fair) for each in found],
        path,
    )


def entered(folder: Path) -> list[Entered]:
    """What every publication in `folder` found, in the order of their names."""
    publications = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not publications:
        raise PublicationError(f"{folder} holds no published study: `specrig publish CONFIG` makes one")
    return [each for publication in publications for each in _entered(publication)]


def text(found: Sequence[Entered]) -> str:
    """The index in Markdown, which GitHub shows below the folder."""
    rows = [
        [
            GridEntry(each.machine),
            GridEntry(f"{each.pair} ({each.dtype})" if each.dtype else each.pair),
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
        f"![Speedup by method, with 95 % intervals, of every published study]({PICTURE})\n\n"
        "Speedup over plain decoding of the fastest lossless method of each pair: geometric mean over tasks with its 95 % interval, at the lowest "
        "temperature and the smallest batch, each half of the prompts at the k that the other half chose. Methods that the audit failed and disturbed "
        "measurements do not count. `specrig verify FOLDER` computes a study's tables again from its records, `specrig compare FOLDER FOLDER` says "
        "what two of them have different, and `specrig gallery` writes this page."
    )
    header = ["machine", "pair", "engine", "fastest", "speedup", "tasks", "cells", "code", "measured", "study"]
    return markdown(Grid(header, rows, labels=4, trailing=3, caption=caption))


def _entered(publication: Path) -> Iterator[Entered]:
    manifest = read_manifest(publication)
    with unpacked(publication) as results:
        study = read_study(results)
        results = StudyResults(study)
        machine = ", ".join(hardware(study, generations=True))
        for (engine, pair), rows in results.speedups.groupby(["engine", "pair"], sort=False):
            drafting = base_setting(rows[~rows["method"].isin(list(BASELINES))])
            fair = drafting["lossless"].astype(bool) & ~drafting["failed"].astype(bool) & ~disturbed_in(drafting, MEAN)
            cells = int(((results.cells["engine"] == engine) & (results.cells["pair"] == pair)).sum())
            yield Entered(
                publication.name,
                next(name for name in sorted(manifest.files) if name.startswith("report.html")),
                machine,
                str(engine),
                str(pair),
                _dtype(study, str(engine), str(pair)),
                cells,
                tuple(manifest.measured_with),
                min(
                    (str(job.environment["captured"])[:10] for job in study.jobs if job.environment.get("captured")),
                    default="–",
                ),
                drafting,
                fair,
            )


def _headline(each: Entered) -> list[GridEntry]:
    """What the fastest method is, its speedup, and over how many tasks."""
    best = each.best
    if best is None:
        return [GridEntry("none without a fault"), GridEntry("–"), GridEntry("–")]
    ks = ", ".join(dict.fromkeys(str(best[f"{CROSS_FITTED}_ks"] or best["k"]).split(", ")))
    name = f"{method_name(best['method'], variant=best['variant'])}, k = {ks}"
    spread = (
        interval(best[f"{CROSS_FITTED}_low"], best[f"{CROSS_FITTED}_high"])
        if np.isfinite(best[f"{CROSS_FITTED}_low"])
        else ""
    )
    return [GridEntry(name), GridEntry(number(best[CROSS_FITTED]), spread, bold=True), GridEntry(str(best["tasks"]))]


def _dtype(study: StudyData, engine: str, pair: str) -> str:
    """The precisions of the target's weights as the jobs recorded them."""
    found = [
        ((job.environment.get("models") or {}).get("target") or {}).get("precision")
        for job in study.jobs
        if (job.engine, job.pair) == (engine, pair)
    ]
    return ", ".join(dict.fromkeys(str(each) for each in found if each))
