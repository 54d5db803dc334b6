"""The runs that a study has in MLflow, made from its records, curves, tables, figures and report.

One run of the study holds tables, figures and the report. Below it are a run of each draft and head, with its training,
and one of each method in each setting. Below a method are its cells.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.cell import digest
from specrig.decoding.drafters import registry
from specrig.files import file_sha256
from specrig.measurement.records import Record
from specrig.report.labels import named, task_name
from specrig.report.study_data import MeasuredJob, StudyData, training_curves
from specrig.report.summary import LEVELS, MEAN, acceptance_summary, audit_failures, speedup_summary
from specrig.tasks.variants import variant_of

SWEPT = ("speedup", "tokens_per_s", "acceptance_rate", "acceptance_length")
"""The columns of cells that become lines over k, one for each task."""
ACCEPTANCE = ("acceptance_length", "acceptance_rate", "alpha")
FAILED = "**The audit failed this method: its output is not the target's own.**"
ENVIRONMENT_TAGS = {
    "measured": ("captured",), "cpu": ("cpu", "model"), "gpu": ("gpus", 0, "name"), "device": ("device",),
    "threads": ("torch", "threads"), "torch": ("packages", "torch"), "transformers": ("packages", "transformers"),
    "mlflow.source.git.commit": ("git", "commit"),
}  # fmt: skip
"""Tag -> where its value stands in environment.json. The whole file is an artifact of the methods' runs."""


@dataclass(frozen=True, slots=True)
class PromptDataset:
    """The prompts of a task, as MLflow lists data sets; never their texts.

    source: the task's row in the table of tasks, as JSON. digest: changes with that row, the chosen prompts and their
    file.
    """

    task: str
    digest: str
    source: str
    prompts: int


@dataclass(eq=False)
class StudyRun:
    """The content of one run in MLflow.

    key: what it is a run of; no two of a study share it. note: its description, in Markdown. parent: the run above it.
    series: metric -> its (step, value) pairs; a step is a k or a second of training. measured: begin and end in
    milliseconds since 1970. datasets: metrics whose name ends in `/<task>` belong to that task's. model: name of the
    LoggedModel that this run is about. drafts_with: the runs of the models that a method drafts with, whose acceptance the
    method's then is; drafted_by: the other way.
    """

    kind: str
    key: str
    name: str
    command: str
    note: str
    parent: StudyRun | None = None
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    datasets: list[PromptDataset] = field(default_factory=list)
    artifacts: list[Path] = field(default_factory=list)
    measured: tuple[int, int] | None = None
    model: str = ""
    drafts_with: list[StudyRun] = field(default_factory=list)
    drafted_by: list[StudyRun] = field(default_factory=list)

    @cached_property
    def own_digest(self) -> str:
        """A digest of all that the run says by itself, but for times and command, which moving a study changes."""
        said = [self.kind, self.key, self.name, self.note, self.params, self.metrics, self.series]
        data = [(dataset.task, dataset.digest) for dataset in self.datasets]
        return digest([*said, self.tags, data, self.model, *(file_sha256(path) for path in self.artifacts)])

    @cached_property
    def digest(self) -> str:
        """`own_digest`, and those of the runs that give a model its metrics: MLflow cannot take single ones back."""
        models = [model.digest for model in self.drafts_with]
        return digest([self.own_digest, *models, *(method.own_digest for method in self.drafted_by)])


def study_runs(study: StudyData, report: Path | None) -> list[StudyRun]:
    """All runs of a study, each after the one above it. Raises RecordError for an unreadable record."""
    top = _study_run(study, report)
    models = {(run.params["pair"], run.params["model"]): run for run in _model_runs(study, top)}
    cells = _cell_runs(study)
    methods = _method_runs(study, top, models, cells)
    top.measured = _span(cells)
    return [top, *models.values(), *methods, *cells]


def _study_run(study: StudyData, report: Path | None) -> StudyRun:
    artifacts = [path for name in ("tables", "figures") for path in sorted((study.folder / name).glob("*.*"))]
    artifacts += [study.folder / "study.json", *([report] if report is not None and report.is_file() else [])]
    return StudyRun(
        kind="study",
        key="study",
        name=f"{study.name}: report, tables, figures",
        command=f"specrig run {_study_file(study)}",
        note="The report, tables and figures are among the artifacts.",
        params={name: study.config[name] for name in ("seed", "prompts", "max_new_tokens") if name in study.config},
        tags=_environment_tags(study.environment),
        artifacts=artifacts,
    )


def _model_runs(study: StudyData, top: StudyRun) -> list[StudyRun]:
    """The runs of the drafts and heads that the study trained or drafted with."""
    described = {
        (job.pair, name): model
        for job in study.jobs
        for name, model in (job.environment.get("models") or {}).items()
        if name != "target"
    }
    curves = training_curves(study.folder / "models")
    trained = {(str(pair), str(name)) for pair, name in zip(curves["pair"], curves["model"], strict=True)}
    runs = []
    for pair, name in dict.fromkeys([*described, *sorted(trained)]):
        model = described.get((pair, name), {})
        curve = curves[(curves["pair"] == pair) & (curves["model"] == name)]
        lines = {
            "loss" if kind == "training" else f"heldout/{kind}": [
                (round(second), float(loss)) for second, loss in zip(line["seconds"], line["loss"], strict=True)
            ]
            for kind, line in curve.groupby("kind", sort=False)
        }
        file = study.folder / "models" / pair / name / "training.jsonl"
        target = (model.get("trained_for") or {}).get("target")
        runs.append(
            StudyRun(
                kind="model",
                key=f"model/{pair}/{name}",
                name=f"{name} of {pair}",
                command=f"specrig run {_study_file(study)}",
                note="A step is a second of training." if lines else "The study did not train this model.",
                parent=top,
                params={
                    "pair": pair,
                    "model": name,
                    "source": model.get("source") or f"models/{pair}/{name}",
                    **{key: model[key] for key in ("sha256", "revision") if model.get(key)},
                    **({"trained_for": target} if target else {}),
                },
                series=lines,
                artifacts=[file] if file.is_file() else [],
                model=re.sub(r"[/:.%\"']", "_", f"{pair}_{name}"),
            )
        )
    return runs


def _method_runs(
    study: StudyData, top: StudyRun, models: Mapping[tuple[str, str], StudyRun], cells: Iterable[StudyRun]
) -> list[StudyRun]:
    """The runs of all methods in the order of the tables. They are put above their cells, and beside their models."""
    if study.table.empty:
        return []
    cells_by_method: dict[tuple[Any, ...], list[StudyRun]] = {}
    for cell in cells:
        cells_by_method.setdefault(_levels(cell.params), []).append(cell)
    audit, table = study.audit(), study.table.assign(variant=study.table["variant"].fillna(""))
    acceptance = {_levels(row): row for row in row_dicts(acceptance_summary(table, study.records, study.tasks, audit))}
    runs = []
    for row in row_dicts(speedup_summary(table, study.records, study.tasks, audit)):
        below = cells_by_method[_levels(row)]
        run = _method_run(study, top, row, acceptance.get(_levels(row), {}), below)
        for cell in below:
            cell.parent = run
        needs = registry()[row["method"]].needs if row["method"] in registry() else ()
        run.drafts_with = [models[row["pair"], name] for name in needs if (row["pair"], name) in models]
        for model in run.drafts_with:
            model.drafted_by.append(run)
        runs.append(run)
    return runs


def _method_run(
    study: StudyData, top: StudyRun, row: dict[str, Any], acceptance: dict[str, Any], cells: list[StudyRun]
) -> StudyRun:
    """row, acceptance: the method's rows in the two summaries. A method that failed the audit has no metrics."""
    # MLflow cuts long names, so the study's first engine and pair are left out.
    elsewhere = [str(row[name]) for name in ("engine", "pair") if row[name] != study.table[name].iloc[0]]
    metrics = {
        **{f"speedup{end}": row[f"{MEAN}{end}"] for end in ("", "_low", "_high")},
        **{f"speedup/{_task(task)}": row[task] for task in study.tasks},
        **{name: acceptance.get(f"mean_{name}") for name in ACCEPTANCE},
        **{f"acceptance_length/{_task(task)}": acceptance.get(f"{task}_acceptance_length") for task in study.tasks},
    }
    job = _job(study, row)
    best = f" at k = {row['k']}, its best" if row["k"] else ""
    speedup = f"Speedup **{_times(row, MEAN)}** over plain decoding, geometric mean over {row['tasks']} tasks{best}."
    environment = study.folder / "records" / "/".join(job.key) / "environment.json"
    return StudyRun(
        kind="method",
        key="/".join(str(row[level]) for level in LEVELS),
        name=", ".join([named(row), *_setting(row), *elsewhere]),
        command=_measuring(study, row),
        note=FAILED if row["failed"] else speedup,
        parent=top,
        params={**{level: row[level] for level in LEVELS}, "best_k": row["k"], **_target(job)},
        metrics={} if row["failed"] else _numbers(metrics),
        series={} if row["failed"] else _sweeps(cells),
        tags=_verdict(row, failed=row["failed"]) | _environment_tags(job.environment),
        datasets=list(dict.fromkeys(dataset for cell in cells for dataset in cell.datasets)),
        artifacts=[environment] if environment.is_file() else [],
        measured=_span(cells),
    )


def _cell_runs(study: StudyData) -> list[StudyRun]:
    """The runs of all cells in the order of the table."""
    records = {identity(members[0].cell): members for members in study.cells.values()}
    failures = audit_failures(study.table, study.audit())
    return [
        _cell_run(study, row, records[row_identity(row)], failed=bool(failed))
        for row, failed in zip(row_dicts(study.table), failures, strict=True)
    ]


def _cell_run(study: StudyData, row: dict[str, Any], records: list[Record], *, failed: bool) -> StudyRun:
    """row: the cell's row in the study's table."""
    cell, job = records[0].cell, _job(study, row)
    file = job.files[cell.slug]
    note = f"Speedup **{_times(row, 'speedup')}** over plain decoding; {row['prompts']} prompts."
    k = [f"k = {cell.k}"] if cell.k else []
    return StudyRun(
        kind="cell",
        key=cell.name,
        name=", ".join([named(row), *k, task_name(cell.task), *_setting(row)]),
        command=_measuring(study, row),
        note=f"{FAILED} {note}" if failed else note,
        params={
            **{name: getattr(cell, name) for name in IDENTITY},
            **{f"option.{name}": value for name, value in cell.options.items()},
            **{name: study.config[name] for name in ("seed", "max_new_tokens") if name in study.config},
            **_target(job),
        },
        metrics=_numbers({name: value for name, value in row.items() if name not in IDENTITY}),
        tags=_verdict(row, failed=failed)
        | {"cell": cell.name, "digest": records[0].digest}
        | _environment_tags(job.environment),
        datasets=[_dataset(study, cell.task, records)],
        artifacts=[file],
        measured=_measured(job, file),
    )


def _dataset(study: StudyData, task: str, records: list[Record]) -> PromptDataset:
    row = {name: value for name, value in study.config.get("rows", {}).get("tasks", {}).get(task, {}).items() if value}
    ids = sorted({record.prompt_id for record in records})
    file = study.folder / "prompts" / f"{variant_of(task).task}.jsonl"
    chosen = digest([row, ids, file_sha256(file) if file.is_file() else ""])
    return PromptDataset(_task(task), chosen, json.dumps(row or {"task": task}), len(ids))


def _sweeps(cells: list[StudyRun]) -> dict[str, list[tuple[int, float]]]:
    """Metric -> its values at each k; none for a method that ran at one k."""
    series: dict[str, list[tuple[int, float]]] = {}
    if len({cell.params["k"] for cell in cells}) > 1:
        for cell in sorted(cells, key=lambda cell: cell.params["k"]):
            for name in SWEPT:
                if name in cell.metrics:
                    line = series.setdefault(f"by_k/{name}/{_task(cell.params['task'])}", [])
                    line.append((cell.params["k"], cell.metrics[name]))
    return series


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among `values`; NaN means undefined, which MLflow shows by no value."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _times(row: Mapping[str, Any], column: str) -> str:
    """A speedup with its interval, where it has one: `1.56 [1.48, 1.64]`."""
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return f"{row[column]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) and math.isfinite(high) else "")


def _setting(row: Mapping[str, Any]) -> list[str]:
    """The parts of a setting that a name states: none for greedy decoding of single prompts."""
    temperature, batch = row["temperature"], row["batch_size"]
    return [*([f"T = {temperature:g}"] if temperature else []), *([f"batch {batch}"] if batch > 1 else [])]


def _verdict(row: Mapping[str, Any], *, failed: bool) -> dict[str, str]:
    return {"lossless": str(row["lossless"]).lower()} | ({"audit": "failed"} if failed else {})


def _levels(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[level] for level in LEVELS)


def _task(task: str) -> str:
    """A task's name as a part of a metric's, where MLflow takes few signs (no `@`)."""
    return re.sub(r"[^\w.: -]", ".", task)


def _job(study: StudyData, row: Mapping[str, Any]) -> MeasuredJob:
    return next(job for job in study.jobs if job.key == (row["engine"], row["pair"], row["method"]))


def _target(job: MeasuredJob) -> dict[str, str]:
    sha256 = ((job.environment.get("models") or {}).get("target") or {}).get("sha256")
    return {"target_sha256": sha256} if sha256 else {}


def _environment_tags(environment: dict[str, Any]) -> dict[str, str]:
    """Tags that name machine, versions and commit."""
    tags = {}
    for tag, keys in ENVIRONMENT_TAGS.items():
        value: Any = environment
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else value[0] if value else None
        if value:
            tags[tag] = str(value)
    return tags


def _study_file(study: StudyData) -> str:
    return os.path.relpath(study.folder / "study.json")


def _measuring(study: StudyData, row: Mapping[str, Any]) -> str:
    """The command that measures a method's cells again where their records are not there."""
    job = f"--engine {row['engine']} --pair {row['pair']} --method {row['method']}"
    return f"specrig stage measure --study {_study_file(study)} {job}"


def _measured(job: MeasuredJob, file: Path) -> tuple[int, int] | None:
    """When the job began and when the file was written, in milliseconds since 1970."""
    captured = job.environment.get("captured")
    if not captured:
        return None
    begin = int(1000 * datetime.fromisoformat(captured).timestamp())
    return begin, max(begin, int(1000 * file.stat().st_mtime))


def _span(runs: Iterable[StudyRun]) -> tuple[int, int] | None:
    """From the earliest begin to the latest end of measuring of any of these."""
    times = [run.measured for run in runs if run.measured]
    return (min(begin for begin, _ in times), max(end for _, end in times)) if times else None
