"""What published studies found, pair by pair, for their index. Computed from the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.results.labels import BASELINES, method_name
from specrig.results.study_data import StudyData, read_study
from specrig.results.study_results import StudyResults
from specrig.results.summary import CROSS_FITTED, base_setting, comparable, disturbed_in, over_most_tasks
from specrig.sharing.manifest import FILE, PublicationError, read_manifest
from specrig.sharing.publish import hardware, unpacked


@dataclass(frozen=True, slots=True)
class PublishedPair:
    """What one published study found on one pair in one engine.

    speedups: the rows of `summary.speedup_summary` at the lowest temperature and smallest batch, without the baselines.
    sound: for each of them, whether it is lossless and passed the audit. report: the report's file, compressed where it
    is large.
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
    sound: pd.Series

    @property
    def model(self) -> str:
        """The pair and the precision of its target."""
        return f"{self.pair} ({self.dtype})" if self.dtype else self.pair

    @property
    def reliable(self) -> pd.Series:
        """For each row of `speedups`, whether it is sound and was not disturbed."""
        return self.sound & ~disturbed_in(self.speedups, CROSS_FITTED)

    @property
    def best(self) -> dict[str, Any] | None:
        """The row of the fastest reliable method; if there is none, of the fastest sound one; else None."""
        for rows in (self.speedups[self.reliable], self.speedups[self.sound]):
            known = over_most_tasks(rows.dropna(subset=[CROSS_FITTED]))
            if len(known):
                return row_dicts(known.sort_values(CROSS_FITTED))[-1]
        return None

    def label(self, row: dict[str, Any]) -> str:
        """A row's method with its signs, and the k's at which it was judged."""
        disturbed = bool(disturbed_in(pd.DataFrame([row]), CROSS_FITTED).iloc[0])
        name = method_name(row["method"], variant=row["variant"], lossless=bool(row["lossless"]), disturbed=disturbed)
        ks = ", ".join(dict.fromkeys(str(row[f"{CROSS_FITTED}_ks"] or row["k"]).split(", ")))
        return f"{name}, k = {ks}" if ks != "0" else name


def published_pairs(folder: Path) -> list[PublishedPair]:
    """What every publication in `folder` found, in the order of their names."""
    publications = sorted(path.parent for path in folder.glob(f"*/{FILE}"))
    if not publications:
        raise PublicationError(f"{folder} holds no published study: `specrig publish CONFIG` makes one")
    return [each for publication in publications for each in _published_pairs(publication)]


def _published_pairs(publication: Path) -> Iterator[PublishedPair]:
    manifest = read_manifest(publication)
    report = next((name for name in sorted(manifest.files) if name.startswith("report.html")), None)
    if report is None:
        raise PublicationError(
            f"{publication / FILE}: it names no report.html; `specrig publish {publication}` makes it"
        )
    with unpacked(publication) as unpacked_folder:
        study = read_study(unpacked_folder)
        results = StudyResults(study)
        machine = ", ".join(hardware(study, generations=True))
        for (engine, pair), rows in results.speedups.groupby(["engine", "pair"], sort=False):
            drafting = base_setting(rows[~rows["method"].isin(list(BASELINES))])
            cells = int(((results.cells["engine"] == engine) & (results.cells["pair"] == pair)).sum())
            yield PublishedPair(
                publication.name,
                report,
                machine,
                str(engine),
                str(pair),
                _dtype(study, str(engine), str(pair)),
                cells,
                tuple(manifest.measured_with),
                study.captured[:10] or "–",
                drafting,
                comparable(drafting),
            )


def _dtype(study: StudyData, engine: str, pair: str) -> str:
    """The precisions of the target's weights as the jobs recorded them."""
    found = [
        ((job.environment.get("models") or {}).get("target") or {}).get("precision")
        for job in study.jobs
        if (job.engine, job.pair) == (engine, pair)
    ]
    return ", ".join(dict.fromkeys(str(each) for each in found if each))
