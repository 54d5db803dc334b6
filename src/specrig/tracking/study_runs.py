"""The runs that a study has in MLflow, each as a `RunContent`, from its records, curves, tables, figures and report.

On top stand a run of each engine and pair, with tables, figures and report, and a run of each method in each setting.
The methods' runs have the same metrics, so that MLflow's charts compare them. Below a method are its cells, below a
pair the trainings of its models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from specrig.analysis.acceptance import acceptance_length, acceptance_rate
from specrig.analysis.cells import IDENTITY, Identity, identity, row_dicts, row_identity
from specrig.analysis.speedup import group_times, log_speedups
from specrig.cell import digest
from specrig.files import file_sha256
from specrig.measurement.records import Record
from specrig.report import grid
from specrig.report.labels import method_name, named, task_name
from specrig.report.metrics import METRICS
from specrig.report.study_data import MeasuredJob, StudyData, training_curves
from specrig.report.summary import LEVELS, MEAN, acceptance_summary, audit_failures, speedup_summary
from specrig.tasks.variants import SIGN, variant_of
from specrig.tracking.run_content import (
    NOTE,
    PromptDataset,
    RunContent,
    environment_tags,
    model_hashes,
    setting_names,
    time_measured,
    time_span,
)

SWEPT = ("speedup", "tokens_per_s", "acceptance_rate", "acceptance_length")
"""The columns of cells that become lines over k, one for each task."""
PROMPT: dict[str, Callable[[list[Record]], float]] = {
    "acceptance_rate": acceptance_rate,
    "acceptance_length": acceptance_length,
    "tokens": lambda records: fmean(len(record.run.tokens) for record in records),
    "ttft_ms": lambda records: 1000 * fmean(record.run.ttft_s for record in records),
}
"""The lines over the prompts of a cell, from a prompt's records."""
FAILED = "**The audit failed this method: its output is not the target's own.**"


def study_runs(study: StudyData, report: Path | None) -> Iterator[RunContent]:
    """Yield the runs on top, with those below them, pair by pair. Raises RecordError for an unreadable record."""
    cells = _cell_runs(study)
    by_pair: dict[tuple[str, str], list[MeasuredJob]] = {}
    for job in study.jobs:
        by_pair.setdefault((job.engine, job.pair), []).append(job)
    for (engine, pair), jobs in by_pair.items():
        first = engine == next(job.engine for job in study.jobs if job.pair == pair)
        # A model is trained once, whatever engines run it.
        trainings = list(_training_runs(study, pair)) if first else []
        below = [run for run in cells.values() if run.key.startswith(f"{engine}/{pair}/")]
        yield _pair_run(study, jobs, below, trainings, report)
    yield from _method_runs(study, cells)


def _training_runs(study: StudyData, pair: str) -> Iterator[RunContent]:
    every = training_curves(study.folder / "models")
    for path in sorted((study.folder / "models" / pair).glob("*/training.jsonl")):
        model = path.parent.name
        curves = every[(every["pair"] == pair) & (every["model"] == model)]
        yield RunContent(
            key=f"training/{pair}/{model}",
            name=f"training {model}",
            sha=file_sha256(path),
            tags={"kind": "training", "pair": pair, "model": model, NOTE: "A step is a second of training."},
            params={"pair": pair, "model": model},
            series={
                ("loss" if kind == "training" else f"heldout/{kind}"): [
                    (round(x), float(y)) for x, y in zip(line["seconds"], line["loss"], strict=True)
                ]
                for kind, line in curves.groupby("kind", sort=False)
            },
            artifacts=[path],
        )


def _pair_run(
    study: StudyData,
    jobs: list[MeasuredJob],
    cells: list[RunContent],
    trainings: list[RunContent],
    report: Path | None,
) -> RunContent:
    """The run that holds the study's tables, figures and report, with the trainings below it."""
    engine, pair = jobs[0].engine, jobs[0].pair
    environment = next((job.environment for job in jobs if job.environment), {})
    artifacts = [path for name in ("tables", "figures") for path in sorted((study.folder / name).glob("*.*"))]
    artifacts += [study.folder / "study.json", *([report] if report is not None and report.is_file() else [])]
    below = "Tables, figures and the report are among its artifacts; the trainings of its models are the runs below."
    return RunContent(
        key=f"{engine}/{pair}",
        name=f"{pair} in {engine}: tables, figures, report",
        sha=digest([*(run.record_sha for run in (*cells, *trainings)), *(file_sha256(path) for path in artifacts)]),
        tags={
            **{"kind": "pair", "engine": engine, "pair": pair, "study": study.name, NOTE: below},
            **environment_tags(environment),
        },
        params={"engine": engine, "pair": pair, **model_hashes(environment)},
        artifacts=artifacts,
        children=trainings,
        measured=time_span(cells),
    )


def _method_runs(study: StudyData, cells: Mapping[Identity, RunContent]) -> Iterator[RunContent]:
    """The runs of all methods, in the order of the tables."""
    if study.table.empty:
        return
    audit, table = study.audit(), study.table.assign(variant=study.table["variant"].fillna(""))
    acceptance = {_key(row): row for row in row_dicts(acceptance_summary(table, study.records, study.tasks, audit))}
    jobs = {job.key: job for job in study.jobs}
    members: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in row_dicts(table):
        members.setdefault(_key(row), []).append(row)
    for row in row_dicts(speedup_summary(table, study.records, study.tasks, audit)):
        own = members[_key(row)]
        job = jobs[row["engine"], row["pair"], row["method"]]
        children = [cells[row_identity(each)] for each in own]
        yield _method_run(study, job, row, acceptance.get(_key(row), {}), own, children)


def _method_run(
    study: StudyData,
    job: MeasuredJob,
    row: dict[str, Any],
    acceptance: dict[str, Any],
    cells: list[dict[str, Any]],
    children: list[RunContent],
) -> RunContent:
    """row, acceptance: the method's rows in the two summaries. A method that failed the audit has no metrics."""
    # MLflow cuts long names, so the study's first engine and pair are left out.
    others = [str(row[each]) for each in ("engine", "pair") if row[each] != study.table[each].iloc[0]]
    setting = setting_names(row["temperature"], row["batch_size"])
    metrics = {
        **{f"speedup{end}": row[f"{MEAN}{end}"] for end in ("", "_low", "_high")},
        **{f"speedup/{_metric(task)}": row[task] for task in study.tasks},
        **{name: acceptance.get(f"mean_{name}") for name in ("acceptance_length", "acceptance_rate", "alpha")},
        **{f"acceptance_length/{_metric(task)}": acceptance.get(f"{task}_acceptance_length") for task in study.tasks},
    }
    environment = study.folder / "records" / "/".join(job.key) / "environment.json"
    return RunContent(
        key="/".join(str(row[level]) for level in LEVELS),
        name=", ".join([named(row), *setting, *others]),
        sha=digest([*(child.record_sha for child in children), bool(row["failed"])]),
        tags={
            "kind": "method",
            "lossless": str(row["lossless"]).lower(),
            "audit": "failed" if row["failed"] else "",
            NOTE: _method_note(row),
            **environment_tags(job.environment),
        },
        params={
            **{level: row[level] for level in LEVELS},
            "best_k": row["k"],
            **model_hashes(job.environment, "target", "draft"),
        },
        metrics={} if row["failed"] else {name: float(value) for name, value in metrics.items() if value is not None},
        series={} if row["failed"] else _sweeps(cells),
        artifacts=[environment] if environment.is_file() else [],
        children=children,
        measured=time_span(children),
        datasets=list(dict.fromkeys(each for child in children for each in child.datasets)),
    )


def _metric(task: str) -> str:
    """A task's name as a part of a metric's; MLflow takes no `@` there."""
    return task.replace(SIGN, ".")


def _sweeps(cells: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Metric -> its values at each k; none for a method that ran at one k."""
    if len({cell["k"] for cell in cells}) < 2:
        return {}
    found: dict[str, list[tuple[int, float]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["k"]):
        for name in SWEPT:
            found.setdefault(f"by_k/{name}/{_metric(cell['task'])}", []).append((cell["k"], float(cell[name])))
    return found


def _method_note(row: dict[str, Any]) -> str:
    if row["failed"]:
        return FAILED
    best = f" at k = {row['k']}, its best" if row["k"] else ""
    return (
        f"Speedup **{_with_interval(row, MEAN)}** over plain decoding, geometric "
        f"mean over {row['tasks']} tasks{best}. Its cells are the runs below."
    )


def _cell_runs(study: StudyData) -> dict[Identity, RunContent]:
    """Identity of a cell -> its run."""
    failed = study.table[audit_failures(study.table, study.audit())] if len(study.table) else study.table
    failures = set(failed[IDENTITY].fillna("").itertuples(index=False, name=None)) if len(failed) else set()
    rows = {row_identity(row): row for row in row_dicts(study.table)}
    found = {}
    for job in study.jobs:
        for slug, path in job.files.items():
            # `study.cells` has parsed every file already: found by its name, not read again.
            records = study.cells.get("/".join((*job.key, slug)))
            if records:
                cell = identity(records[0].cell)
                found[cell] = _cell_run(study, job, [path], records, rows[cell], failed=cell in failures)
    return found


def _cell_run(
    study: StudyData, job: MeasuredJob, paths: list[Path], records: list[Record], row: dict[str, Any], *, failed: bool
) -> RunContent:
    """row: the cell's row in the study's table."""
    cell = records[0].cell
    names = [method_name(cell.method, variant=cell.variant), f"k = {cell.k}" if cell.k else "", task_name(cell.task)]
    speedups = log_speedups(group_times(records))
    by_prompt: dict[str, list[Record]] = {}
    for record in records:
        by_prompt.setdefault(record.prompt_id, []).append(record)
    sha = file_sha256(paths[0]) if len(paths) == 1 else digest([file_sha256(path) for path in paths])
    note = (
        f"Speedup **{_with_interval(row, 'speedup')}** over plain decoding; "
        f"{grid.number(row['acceptance_length'])} tokens a target pass; {row['prompts']} prompts."
    )
    return RunContent(
        key=cell.name,
        name=", ".join(filter(None, [*names, *setting_names(cell.temperature, cell.batch_size)])),
        sha=f"{sha} failed the audit" if failed else sha,
        tags={
            "kind": "cell",
            "lossless": str(row["lossless"]).lower(),
            "audit": "failed" if failed else "",
            "digest": records[0].digest,
            NOTE: f"{FAILED} {note}" if failed else note,
            **{name: str(getattr(cell, name)) for name in IDENTITY},
            **environment_tags(job.environment),
        },
        params={
            **{name: getattr(cell, name) for name in IDENTITY},
            **{f"option.{name}": value for name, value in cell.options.items()},
            **{key: study.config[key] for key in ("seed", "max_new_tokens") if key in study.config},
            **model_hashes(job.environment, "target", "draft"),
        },
        metrics={
            name: float(row[name])
            for metric in METRICS.values()
            for name in ("prompts", "tokens", *metric.columns)
            if isinstance(row.get(name), int | float)
        },
        series={
            f"{'prompt' if cell.batch_size == 1 else 'batch'}/speedup": [
                (step, math.exp(value)) for step, value in zip(speedups.index.tolist(), speedups, strict=True)
            ],
            **{f"prompt/{name}": [*enumerate(map(of, by_prompt.values()))] for name, of in PROMPT.items()},
        },
        artifacts=paths,
        measured=time_measured(records),
        datasets=[_dataset(study, cell.task, records)],
    )


def _dataset(study: StudyData, task: str, records: list[Record]) -> PromptDataset:
    row = {name: value for name, value in study.config.get("rows", {}).get("tasks", {}).get(task, {}).items() if value}
    ids = sorted({record.prompt_id for record in records})
    file = study.folder / "prompts" / f"{variant_of(task).task}.jsonl"
    chosen = digest([row, ids, file_sha256(file) if file.is_file() else ""])
    return PromptDataset(task, chosen, json.dumps(row or {"task": task}), len(ids))


def _with_interval(row: dict[str, Any], column: str) -> str:
    return (f"{grid.number(row[column])} {grid.interval(row[f'{column}_low'], row[f'{column}_high'])}").strip()


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[level] for level in LEVELS)
