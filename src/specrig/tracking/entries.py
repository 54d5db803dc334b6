"""Make the content of MLflow, one `Entry` per run, from a study's records, curves, tables, figures and report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specrig.analysis.acceptance import acceptance_length, acceptance_rate
from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.analysis.speedup import group_times, log_speedups
from specrig.cell import digest
from specrig.measurement.records import Record
from specrig.reporting import grid
from specrig.reporting.environment import flatten
from specrig.reporting.figures import training_curves
from specrig.reporting.study_data import Job, StudyData, file_sha256
from specrig.reporting.summary import MEAN, audit_failures, speedup_summary

NOTE = "mlflow.note.content"
"""The name of the tag that MLflow shows as a run's description; its value is Markdown."""
EXPERIMENT = """\
A run an engine and pair, with tables, figures and report among its artifacts; below it a run a cell (method, task, k, temperature, batch \
size) and a run a training. To see cells side by side: search `tags.kind = 'cell' and params.task = 'code'`, expand the parent, select, Compare.

`speedup`: decode time per token of plain decoding over the method's, paired by prompt (95 % interval: `_low`, `_high`). \
`acceptance_length`: tokens a target pass. `prompt/…`: one step a prompt. MLflow's times are those of entering the runs; tag \
`env.captured` is when measuring began."""


@dataclass(slots=True)
class Entry:
    """The content of one run in MLflow.

    key: the run's tag `cell`. name: shown in the list of runs. sha: the run's tag `record_sha`, which changes with the content.
    series: metric -> its (step, value) pairs, where a step is a prompt or a second of training.
    """

    key: str
    name: str
    sha: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    artifacts: list[Path] = field(default_factory=list)


def families(study: StudyData, report: Path | None) -> Iterator[tuple[Entry, list[Entry]]]:
    """Yield (parent run, its child runs) for each engine × pair. Raises RecordError for an unreadable record."""
    condemned = _condemned(study)
    for (engine, pair), jobs in _by_pair(study.jobs).items():
        children = [entry for job in jobs for entry in _cell_entries(study, job, condemned)]
        if engine == next(job.engine for job in study.jobs if job.pair == pair):
            children += _training_entries(study, pair)  # a model is trained once, whatever engines run it
        yield _parent_entry(study, engine, pair, jobs, children, report), children


def _condemned(study: StudyData) -> set[tuple[Any, ...]]:
    """The identities (values of `IDENTITY`) of the cells that the audit failed."""
    failed = study.table[audit_failures(study.table, study.audit())] if len(study.table) else study.table
    return set(failed[IDENTITY].fillna("").itertuples(index=False, name=None)) if len(failed) else set()


def _by_pair(jobs: Iterable[Job]) -> dict[tuple[str, str], list[Job]]:
    found: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        found.setdefault((job.engine, job.pair), []).append(job)
    return found


def _surroundings(environment: dict[str, Any]) -> dict[str, str]:
    tags = {f"env.{key}": text for key, text in flatten(environment)}
    commit = (environment.get("git") or {}).get("commit")
    tags |= {"mlflow.source.name": "specrig", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": str(commit)} if commit else {})


def _cell_entries(study: StudyData, job: Job, condemned: set[tuple[Any, ...]]) -> Iterator[Entry]:
    again = [other for other in study.jobs if other.key == job.key]
    if job is not again[0]:
        return  # its cells are entered once, with the records of all replicates
    rows = {row_identity(row): row for row in row_dicts(study.table)}
    for slug in dict.fromkeys(slug for each in again for slug in each.files):
        # `study.cells` has parsed every file already: found by its name, not read again.
        records = study.cells.get("/".join((*job.key, slug)))
        if records:
            key = identity(records[0].cell)
            paths = [each.files[slug] for each in again if slug in each.files]
            yield _cell_entry(study, job, paths, records, rows[key], failed=key in condemned)


def _cell_entry(
    study: StudyData, job: Job, paths: list[Path], records: list[Record], row: dict[str, Any], *, failed: bool
) -> Entry:
    """The run of a cell. row: the cell's row in the study's table, whose intervals include how much whole runs differ."""
    cell = records[0].cell
    settings: dict[str, Any] = {key: study.config[key] for key in ("seed", "max_new_tokens") if key in study.config}
    logs = log_speedups(group_times(records))
    sha = file_sha256(paths[0]) if len(paths) == 1 else digest([file_sha256(path) for path in paths])
    return Entry(
        key=cell.name,
        name=f"{cell.method} {cell.slug}",
        sha=f"{sha} failed the audit" if failed else sha,
        tags={
            "kind": "cell",
            "lossless": str(row["lossless"]).lower(),
            "audit": "failed" if failed else "",
            "digest": records[0].digest,
            NOTE: _cell_note(row, job.environment, failed=failed),
            **{name: str(getattr(cell, name)) for name in IDENTITY},
            **_surroundings(job.environment),
        },
        params={
            **{name: getattr(cell, name) for name in IDENTITY},
            **{f"option.{name}": value for name, value in cell.options.items()},
            **settings,
        },
        metrics={
            name: float(value)
            for name, value in row.items()
            if name not in IDENTITY and isinstance(value, int | float) and not isinstance(value, bool)
        },
        series={
            "prompt/speedup": [(step, math.exp(value)) for step, value in zip(logs.index.tolist(), logs, strict=True)],
            "prompt/acceptance_rate": [(step, acceptance_rate([record])) for step, record in enumerate(records)],
            "prompt/acceptance_length": [(step, acceptance_length([record])) for step, record in enumerate(records)],
            "prompt/tokens": [(step, float(len(record.run.tokens))) for step, record in enumerate(records)],
            "prompt/ttft_ms": [(step, 1000 * record.run.ttft_s) for step, record in enumerate(records)],
        },
        artifacts=paths,
    )


def _cell_note(row: dict[str, Any], environment: dict[str, Any], *, failed: bool) -> str:
    speedup = f"{grid.number(row['speedup'])} {grid.interval(row['speedup_low'], row['speedup_high'])}".strip()
    text = (
        f"Speedup **{speedup}** over plain decoding; {grid.number(row['acceptance_length'])} tokens a target pass; {row['prompts']} prompts. "
        f"Measuring began {environment.get('captured', 'at a time not recorded')}; the times above are those of entering the run."
    )
    return f"**The audit failed this method: its output is not the target's own.** {text}" if failed else text


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


def _parent_entry(study: StudyData, engine: str, pair: str, jobs: list[Job], children: list[Entry], report: Path | None) -> Entry:
    environment = next((job.environment for job in jobs if job.environment), {})
    artifacts = [path for name in ("tables", "figures") for path in sorted((study.folder / name).glob("*.*"))]
    artifacts += [study.folder / "study.json", *([report] if report is not None and report.is_file() else [])]
    return Entry(
        key=f"{engine}/{pair}",
        name=f"{pair} ({engine})",
        sha=digest([*(child.sha for child in children), *(file_sha256(path) for path in artifacts)]),
        tags={
            "kind": "parent",
            "engine": engine,
            "pair": pair,
            "study": study.name,
            NOTE: "`speedup/…`: geometric mean over the tasks at each method's best k, temperature (t) and batch size (b). Cells are the runs below.",
            **_surroundings(environment),
        },
        metrics=_mean_speedups(study, engine, pair),
        artifacts=artifacts,
    )


def _mean_speedups(study: StudyData, engine: str, pair: str) -> dict[str, float]:
    """Name of a parent's metric -> geometric mean speedup over tasks, for each method that the audit has not failed."""
    if study.table.empty:
        return {}
    summary = speedup_summary(study.table, study.records, study.tasks, study.audit())
    summary = summary[(summary["engine"] == engine) & (summary["pair"] == pair) & ~summary["failed"]]
    found = {}
    for row in row_dicts(summary):
        method = "-".join(filter(None, (row["method"], row["variant"])))
        found[f"speedup/{method}-t{row['temperature']:g}-b{row['batch_size']}"] = float(row[MEAN])
    return found
