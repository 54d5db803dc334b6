"""Make the content of MLflow, one `Entry` per run, from a study's records, curves, tables, figures and report.

On top stand a run of each engine and pair, with tables, figures and report, and a run of each method in each setting:
these have the same metrics, so that MLflow's charts compare methods. Below a method are its cells, below a pair the
trainings of its models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from specrig.cell import digest
from specrig.results.study_data import MeasuredJob, StudyData, file_sha256, training_curves
from specrig.tracking.cells import cell_entries
from specrig.tracking.entry import NOTE, Entry, digests, span, surroundings
from specrig.tracking.methods import method_entries

EXPERIMENT = """\
Views (above) lists what there is: methods, cells, and the run with tables, figures and the report. A run a method (with its temperature, batch size and options): `speedup` is the geometric mean over tasks at its best k, `speedup/<task>` \
that of a task, `by_k/…` a sweep with k as the step. Select runs and Compare, or open the charts. Below each is a run a cell. The run of a \
pair holds tables, figures and the report.

Search: methods `tags.kind = 'method'`; cells of a task `tags.kind = 'cell' and params.task = 'code'`; what failed the audit \
`tags.audit = 'failed'`; trainings `tags.kind = 'training'`; one model's runs `params.target_sha256 LIKE 'c159%'`.

Units: speedup in times plain decoding (95 % interval: `_low`, `_high`), acceptance_length in tokens a target pass, acceptance_rate and \
alpha as shares of 1, times and memory as their names say. Created and Duration are those of measuring; methods are measured in \
turns, so that their times overlap."""


def entries(study: StudyData, report: Path | None) -> Iterator[Entry]:
    """Yield the runs on top, with those below them, pair by pair. Raises RecordError for an unreadable record."""
    cells = cell_entries(study)
    for (engine, pair), jobs in _by_pair(study.jobs).items():
        first = engine == next(job.engine for job in study.jobs if job.pair == pair)
        trainings = (
            list(_training_entries(study, pair)) if first else []
        )  # a model is trained once, whatever engines run it
        mine = [entry for entry in cells.values() if entry.key.startswith(f"{engine}/{pair}/")]
        yield _pair_entry(study, engine, pair, jobs, mine, trainings, report)
    yield from method_entries(study, cells)


def _by_pair(jobs: Iterable[MeasuredJob]) -> dict[tuple[str, str], list[MeasuredJob]]:
    found: dict[tuple[str, str], list[MeasuredJob]] = {}
    for job in jobs:
        found.setdefault((job.engine, job.pair), []).append(job)
    return found


def _training_entries(study: StudyData, pair: str) -> Iterator[Entry]:
    every = training_curves(study.folder / "models")
    for path in sorted((study.folder / "models" / pair).glob("*/training.jsonl")):
        model = path.parent.name
        curves = every[(every["pair"] == pair) & (every["model"] == model)]
        series = {
            ("loss" if kind == "training" else f"heldout/{kind}"): [
                (round(x), float(y)) for x, y in zip(line["seconds"], line["loss"], strict=True)
            ]
            for kind, line in curves.groupby("kind", sort=False)
        }
        yield Entry(
            key=f"training/{pair}/{model}",
            name=f"training {model}",
            sha=file_sha256(path),
            tags={"kind": "training", "pair": pair, "model": model, NOTE: "A step is a second of training."},
            params={"pair": pair, "model": model},
            series=series,
            artifacts=[path],
        )


def _pair_entry(
    study: StudyData,
    engine: str,
    pair: str,
    jobs: list[MeasuredJob],
    cells: list[Entry],
    trainings: list[Entry],
    report: Path | None,
) -> Entry:
    """The run that holds the study's tables, figures and report, and trainings below it."""
    environment = next((job.environment for job in jobs if job.environment), {})
    artifacts = [path for name in ("tables", "figures") for path in sorted((study.folder / name).glob("*.*"))]
    artifacts += [study.folder / "study.json", *([report] if report is not None and report.is_file() else [])]
    return Entry(
        key=f"{engine}/{pair}",
        name=f"{pair} in {engine}: tables, figures, report",
        sha=digest([*(entry.content for entry in (*cells, *trainings)), *(file_sha256(path) for path in artifacts)]),
        tags={
            "kind": "pair",
            "engine": engine,
            "pair": pair,
            "study": study.name,
            NOTE: "Tables, figures and the report are among its artifacts; the trainings of its models are the runs below.",
            **surroundings(environment),
        },
        params={"engine": engine, "pair": pair, **digests(environment)},
        artifacts=artifacts,
        children=trainings,
        measured=span(cells),
    )
