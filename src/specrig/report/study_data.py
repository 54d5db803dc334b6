"""Read once what a study left on disk: its configuration, records, environments and failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import cells_table
from specrig.analysis.cost_model import floor_share
from specrig.audit.multiple_testing import with_verdicts
from specrig.measurement.records import Record, RecordError, read_index, read_records
from specrig.measurement.traffic.records import Turn, study_turns
from specrig.report.damage import reading
from specrig.report.labels import short_names
from specrig.report.metrics import METRICS
from specrig.study.config import MethodEntry
from specrig.study.learning_curve import LearningPoint
from specrig.tables import read_table


@dataclass(slots=True)
class MeasuredJob:
    """A job, which is one folder below `records/`.

    files: cell slug -> record file. failed: cell slug -> the reason why the cell failed. environment: the content of
    environment.json.
    """

    engine: str
    pair: str
    method: str
    files: dict[str, Path]
    failed: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """(engine, pair, method), like `Cell.method_key`."""
        return self.engine, self.pair, self.method

    @property
    def name(self) -> str:
        """The job's name for readers, e.g. `native/small/ngram`."""
        return "/".join(self.key)


@dataclass
class StudyData:
    """The results folder of a study and its content. Most properties are computed on first use."""

    folder: Path
    config: dict[str, Any]
    jobs: list[MeasuredJob]

    @cached_property
    def cells(self) -> dict[str, list[Record]]:
        """`Cell.name` -> its records, without simulated cells, in path and index order."""
        return {name: records for name, records in self.every.items() if records[0].simulated_acceptance is None}

    @cached_property
    def simulated(self) -> dict[str, list[Record]]:
        """`Cell.name` -> records of the cells whose acceptance was declared. They are never mixed with measured cells."""
        return {name: records for name, records in self.every.items() if records[0].simulated_acceptance is not None}

    @cached_property
    def every(self) -> dict[str, list[Record]]:
        """`Cell.name` -> records of all cells, measured and simulated."""
        found: dict[str, list[Record]] = {}
        for _, _, records in self.files():
            for record in records:
                found.setdefault(record.cell.name, []).append(record)
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """environment.json of the first job that has one."""
        return next((job.environment for job in self.jobs if job.environment), {})

    @cached_property
    def captured(self) -> str:
        """When the first job began, as an ISO date; empty where no job says."""
        return min(
            (str(job.environment["captured"]) for job in self.jobs if job.environment.get("captured")), default=""
        )

    @cached_property
    def records(self) -> list[Record]:
        """All records of the study's measured cells."""
        return [record for members in self.cells.values() for record in members]

    @cached_property
    def table(self) -> pd.DataFrame:
        """`analysis.cells.cells_table` of `records`, with labels and, where known, the memory floor."""
        return self.with_floor(cells_table(self.records), self.cells)

    @cached_property
    def labels(self) -> dict[tuple[str, str], str]:
        """(method, variant) -> its name in figures and tables: the study's `label`, or a short one (`short_names`)."""
        cells = [records[0].cell for records in self.every.values()]
        cells += [turns[0].point.cell for turns in self.under_load[0].values()]
        found = short_names((cell.method, cell.variant) for cell in cells)
        for entry in self.config.get("methods") or []:
            if isinstance(entry, dict) and entry.get("label"):
                found |= MethodEntry.model_validate(entry).labels()
        return found

    def labelled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """`frame`, which has the columns method and variant, with the column `label`."""
        variants = frame["variant"].astype(object).fillna("") if "variant" in frame else [""] * len(frame)
        keys = zip(frame["method"], variants, strict=True)
        return frame.assign(label=[self.labels.get(key, "") for key in keys])

    def with_floor(self, table: pd.DataFrame, cells: dict[str, list[Record]]) -> pd.DataFrame:
        """`table` with labels and, where known, the memory floor. table: the `cells_table` of `cells`, in its order."""
        table = self.labelled(table)
        for metric in METRICS.values():
            if metric.of is not None:
                table[metric.name] = [metric.of(records) for records in cells.values()]
        shares = [
            floor_share(records, self.environments.get(records[0].cell.method_key, {})) for records in cells.values()
        ]
        return table.assign(floor_share=shares) if np.isfinite(shares).any() else table

    @cached_property
    def under_load(self) -> tuple[dict[Path, list[Turn]], dict[str, str]]:
        """(file of a point of the study's traffic -> its turns, name of a point that failed -> why), of the jobs that the
        configuration has.
        """
        if not self.config.get("traffic"):
            return {}, {}
        turns, failed = study_turns(self.folder)
        kept = {path: found for path, found in turns.items() if _in_study(self.config, *path.parts[-4:-1])}
        return kept, {name: why for name, why in failed.items() if _in_study(self.config, *name.split("/")[:3])}

    @cached_property
    def environments(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """(engine, pair, method) -> environment.json of the job."""
        return {job.key: job.environment for job in reversed(self.jobs)}

    @cached_property
    def unsettled(self) -> dict[str, tuple[int, int]]:
        """`Cell.name` -> (prompts in which timing did not settle, all prompts), of measured cells; empty if all did."""
        counts = {
            name: (
                len({record.prompt_id for record in records if not record.settled}),
                len({record.prompt_id for record in records}),
            )
            for name, records in self.cells.items()
        }
        return counts if any(count for count, _ in counts.values()) else {}

    @cached_property
    def tasks(self) -> list[str]:
        """The measured tasks: those of the configuration in its order, then others in order of first appearance."""
        measured = list(dict.fromkeys(record.cell.task for record in self.records))
        requested = [name for name in names(self.config.get("tasks")) or [] if name in measured]
        return requested + [task for task in measured if task not in requested]

    def files(self) -> Iterator[tuple[MeasuredJob, Path, list[Record]]]:
        """Yield (job, path, records) for each record file."""
        for job in self.jobs:
            for path in job.files.values():
                yield job, path, list(read_records(path))

    @cached_property
    def learning_points(self) -> pd.DataFrame:
        """What the drafts and heads of the study emitted by decoding after so much text: a row of the learning curves in
        study.json each (`study.learning_curve`), with its pair and model.
        """
        columns = ["pair", "model", *LearningPoint.model_fields]
        with reading(self.folder / "study.json"):
            curves = (self.config.get("rows") or {}).get("learning_curves") or {}
            rows = [
                {"pair": pair, "model": model, **LearningPoint.model_validate(point).model_dump()}
                for pair, models in curves.items()
                for model, points in models.items()
                for point in points
            ]
        return pd.DataFrame(rows, columns=columns)

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.config.get("study", self.folder.name))

    def audit_files(self) -> list[Path]:
        """`audit/*.csv`, without the exact audits of engines that have left the configuration."""
        audited = {"records", *(f"exact-{engine}" for engine in names(self.config.get("engines")) or [])}
        return [path for path in sorted((self.folder / "audit").glob("*.csv")) if path.stem in audited]

    def audit(self) -> pd.DataFrame | None:
        """The rows of all `audit_files` on methods of the study, judged as one family (`audit.multiple_testing`); None
        without an audit.
        """
        methods = ["autoregressive", *(names(self.config.get("methods")) or [])]
        frames = [_verdicts(path) for path in self.audit_files()]
        frames = [frame[frame["method"].isin(methods)] for frame in frames if not frame.empty]
        return with_verdicts(pd.concat(frames, ignore_index=True)) if frames else None


def read_study(folder: Path) -> StudyData:
    """Read `results/<study>`. Raises RecordError with the cause where there is no study, or a record file is missing.

    Folders of jobs that are no longer in the configuration are ignored. Records are read on first use; an
    unreadable one raises RecordError then.
    """
    config_path = folder / "study.json"
    if not config_path.is_file():
        raise RecordError(f"{config_path} does not exist: is {folder} a study's results folder?")
    config = _json(config_path)
    jobs = []
    for job_folder in sorted((folder / "records").glob("*/*/*")):
        engine, pair, method = parts = job_folder.parts[-3:]
        if _in_study(config, *parts) and any(job_folder.glob("*.json*")):
            jobs.append(_job(job_folder, engine, pair, method))
    return StudyData(folder, config, jobs)


def _in_study(config: dict[str, Any], engine: str, pair: str | None, method: str) -> bool:
    """Whether the configuration has such a job. pair: None asks of any pair."""
    pairs = config.get("rows", {}).get("pairs") or config.get("pairs")  # entries may name pairs of their own
    requested = (engine, names(config.get("engines"))), (pair, names(pairs)), (method, names(config.get("methods")))
    return all(part is None or allowed is None or part in allowed for part, allowed in requested)


def training_curves(models: Path) -> pd.DataFrame:
    """All training curves below `models` (`<pair>/<model>/training.jsonl`) as one table with one row per loss.

    Columns: pair, model, seconds since training began, kind ("training" or the name of a held-out task), loss.
    """
    rows: list[dict[str, Any]] = []
    for pair, model, entry in _training_lines(models):
        losses = {"training": entry.get("loss"), **(entry.get("heldout") or {})}
        rows += [
            {"pair": pair, "model": model, "seconds": entry.get("seconds"), "kind": kind, "loss": loss}
            for kind, loss in losses.items()
            if isinstance(loss, int | float)
        ]
    return pd.DataFrame(rows, columns=["pair", "model", "seconds", "kind", "loss"])


def learning_curves(models: Path) -> pd.DataFrame:
    """The acceptance to expect after so many texts, of every draft and head below `models`.

    Columns: pair, model, texts (a text counts each time that it was learnt from), tau_sim (`heads.acceptance`).
    """
    columns = ["pair", "model", "texts", "tau_sim"]
    rows = [
        {"pair": pair, "model": model, "texts": entry["texts"], "tau_sim": entry["tau_sim"]}
        for pair, model, entry in _training_lines(models)
        if all(isinstance(entry.get(name), int | float) for name in columns[2:])
    ]
    return pd.DataFrame(rows, columns=columns)


def _training_lines(models: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Pair, model and line of every training. Lines that are not JSON are left out, because a curve with a gap is
    better than no report.
    """
    for path in sorted(models.glob("*/*/training.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield path.parts[-3], path.parts[-2], entry


def names(value: Any) -> list[str] | None:
    """The names in a configuration value: a mapping's keys, or a list's strings, `name`s or `method`s."""
    if isinstance(value, dict):
        return [str(key) for key in value]
    if not isinstance(value, list):
        return None
    found = [item.get("name", item.get("method")) if isinstance(item, dict) else item for item in value]
    strings = [name for name in found if isinstance(name, str)]
    return strings if strings and len(strings) == len(found) else None


def _json(path: Path) -> dict[str, Any]:
    """A JSON object of the results folder. Raises RecordError with the path for another content."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("not a JSON object")
        return content


def _verdicts(path: Path) -> pd.DataFrame:
    """A table of the audit. Raises RecordError with the path for a file that is none."""
    with reading(path):
        return read_table(path)


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / "environment.json"
    return _json(path) if path.is_file() else {}


def _job(folder: Path, engine: str, pair: str, method: str) -> MeasuredJob:
    index_path, environment = folder / "index.json", _environment(folder)
    if not index_path.is_file():
        # A job cut before its end has no index yet; the cells it finished are whole files.
        files = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
        return MeasuredJob(engine, pair, method, files, environment=environment)
    index = read_index(index_path)
    files = {slug: folder / Path(entry["records"]).name for slug, entry in index["cells"].items()}
    for path in files.values():
        if not path.is_file():
            raise RecordError(f"{index_path} names {path.name}, which is not there: measure the job again")
    return MeasuredJob(engine, pair, method, files, index["failed"], environment)
