"""The runs of cells in MLflow: one for each cell, with its replicates' records and a step a prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specrig.analysis.acceptance import acceptance_length, acceptance_rate
from specrig.analysis.cells import IDENTITY, Identity, identity, row_dicts, row_identity
from specrig.analysis.speedup import group_times, log_speedups
from specrig.cell import Cell, digest
from specrig.measurement.records import Record
from specrig.results import grid
from specrig.results.labels import method_name, task_name
from specrig.results.study_data import MeasuredJob, StudyData, file_sha256
from specrig.results.summary import audit_failures
from specrig.tracking.entry import NOTE, Entry, Prompts, digests, measured, setting_names, surroundings


def cell_entries(study: StudyData) -> dict[Identity, Entry]:
    """What identifies a cell -> its run. Raises RecordError for an unreadable record."""
    failed, rows = _failed(study), {row_identity(row): row for row in row_dicts(study.table)}
    return {key: entry for job in study.jobs for key, entry in _of_job(study, job, rows, failed)}


def _of_job(
    study: StudyData, job: MeasuredJob, rows: dict[Identity, dict[str, Any]], failed: set[Identity]
) -> Iterator[tuple[Identity, Entry]]:
    again = [other for other in study.jobs if other.key == job.key]
    if job is not again[0]:
        return  # its cells are entered once, with the records of all replicates
    for slug in dict.fromkeys(slug for each in again for slug in each.files):
        # `study.cells` has parsed every file already: found by its name, not read again.
        records = study.cells.get("/".join((*job.key, slug)))
        if records:
            key = identity(records[0].cell)
            paths = [each.files[slug] for each in again if slug in each.files]
            yield key, _entry(study, job, paths, records, rows[key], failed=key in failed)


def _failed(study: StudyData) -> set[Identity]:
    """The identities (values of `IDENTITY`) of the cells that the audit failed."""
    failed = study.table[audit_failures(study.table, study.audit())] if len(study.table) else study.table
    return set(failed[IDENTITY].fillna("").itertuples(index=False, name=None)) if len(failed) else set()


def _entry(
    study: StudyData, job: MeasuredJob, paths: list[Path], records: list[Record], row: dict[str, Any], *, failed: bool
) -> Entry:
    """The run of a cell. row: the cell's row in the study's table, whose intervals include how much whole runs differ."""
    cell = records[0].cell
    settings: dict[str, Any] = {key: study.config[key] for key in ("seed", "max_new_tokens") if key in study.config}
    logs = log_speedups(group_times(records))
    sha = file_sha256(paths[0]) if len(paths) == 1 else digest([file_sha256(path) for path in paths])
    return Entry(
        key=cell.name,
        name=_name(cell),
        sha=f"{sha} failed the audit" if failed else sha,
        tags={
            "kind": "cell",
            "lossless": str(row["lossless"]).lower(),
            "audit": "failed" if failed else "",
            "digest": records[0].digest,
            NOTE: _note(row, failed=failed),
            **{name: str(getattr(cell, name)) for name in IDENTITY},
            **surroundings(job.environment),
        },
        params={
            **{name: getattr(cell, name) for name in IDENTITY},
            **{f"option.{name}": value for name, value in cell.options.items()},
            **settings,
            **digests(job.environment, "target", "draft"),
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
        measured=measured(records),
        prompts=[_prompts(study, cell.task, records)],
    )


def _prompts(study: StudyData, task: str, records: list[Record]) -> Prompts:
    row = {name: value for name, value in study.config.get("rows", {}).get("tasks", {}).get(task, {}).items() if value}
    ids = sorted({record.prompt_id for record in records})
    file = study.folder / "prompts" / f"{task}.jsonl"
    chosen = digest([row, ids, file_sha256(file) if file.is_file() else ""])
    return Prompts(task, chosen, json.dumps(row or {"task": task}), len(ids))


def _name(cell: Cell) -> str:
    """As a person would name it: `draft_model, k = 4, code, T = 1, batch 8`."""
    parts = [method_name(cell.method, variant=cell.variant), f"k = {cell.k}" if cell.k else "", task_name(cell.task)]
    return ", ".join(filter(None, [*parts, *setting_names(cell.temperature, cell.batch_size)]))


def _note(row: dict[str, Any], *, failed: bool) -> str:
    speedup = f"{grid.number(row['speedup'])} {grid.interval(row['speedup_low'], row['speedup_high'])}".strip()
    text = f"Speedup **{speedup}** over plain decoding; {grid.number(row['acceptance_length'])} tokens a target pass; {row['prompts']} prompts."
    return f"**The audit failed this method: its output is not the target's own.** {text}" if failed else text
