"""Log a study to MLflow, in one process and after measuring.

Each study is an experiment. `study_runs` lists its runs. MLflow chooses the ids of runs, and names are not unique, so a
run is identified by its tags `origin`, `cell` and `record_sha`: a finished run with the same three tags is kept, any
other run of the same cell and origin is replaced. Tracking may fail; measurements do not depend on it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from specrig.errors import with_type
from specrig.files import write_atomically
from specrig.report.study_data import StudyData, read_study
from specrig.tracking.experiment import DESCRIPTION, saved_views
from specrig.tracking.run_content import NOTE, PromptDataset, RunContent
from specrig.tracking.sqlite import check_sqlite
from specrig.tracking.study_runs import study_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"
"""The name of the folder beside the study's own store that holds the files of its runs."""
SERVED = "mlflow-artifacts:/"
"""MLflow's address of a file in the folder of its server (`make ui`), so that a study's folder may be moved."""
PARENT = "mlflow.parentRunId"
FAILURE_FILE = "tracking-failed.txt"
"""File in the study's folder that states why tracking failed and how to repeat it."""
ORIGIN_FILE = "tracking-origin.txt"
"""File in the study's folder with an id of the folder, so that two folders of one name do not replace each other's runs."""


@dataclass(frozen=True, slots=True)
class TrackingResult:
    """The outcome of `track`.

    added, replaced, kept, removed: numbers of runs that are new, that had other records, that are unchanged, whose cells
    have left the study. error: why tracking failed; empty if it did not.
    """

    added: int = 0
    replaced: int = 0
    kept: int = 0
    removed: int = 0
    error: str = ""


def track(study_dir: Path, report: Path | None = None) -> TrackingResult:
    """Bring MLflow up to date with `results/<study>` and its report. Never raises: no measurement may be lost because
    of MLflow.

    Writes to `MLFLOW_TRACKING_URI` if it is set, else to `mlflow.db` and `ARTIFACTS` in the study's folder. A failure
    prints a warning, writes `FAILURE_FILE` and returns with `error` set. The next successful call deletes that file.
    """
    study_dir = study_dir.resolve()
    marker = study_dir / FAILURE_FILE
    try:
        done = _track(read_study(study_dir), report)
    except Exception as error:
        reason = with_type(error)
        message = (
            f"MLflow tracking failed ({reason}).\nMeasurements, tables and report are complete without it. "
            f"To log the runs later: specrig stage track --study {study_dir / 'study.json'}"
        )
        print(f"warning: {message}", file=sys.stderr)
        if study_dir.is_dir():
            write_atomically(marker, message + "\n")
        return TrackingResult(error=reason)
    marker.unlink(missing_ok=True)
    gone = f", {done.removed} of cells that have left the study removed" if done.removed else ""
    print(f"MLflow: {done.added} runs added, {done.replaced} replaced, {done.kept} as they were{gone}")
    return done


def tracking_uri(study_dir: Path) -> str:
    """The address that `track` writes to: `MLFLOW_TRACKING_URI`, or the SQLite store in the study's folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{study_dir.resolve() / 'mlflow.db'}"


def _track(study: StudyData, report: Path | None) -> TrackingResult:
    client = _client(study.folder)
    experiment = _experiment(client, study)
    origin = _origin(study.folder)
    runs = _runs(client, experiment, origin)
    counts, keys = {"added": 0, "replaced": 0, "kept": 0}, set[str]()
    for content in study_runs(study, report):
        _log_run(client, experiment, runs, content, {"origin": origin}, counts)
        keys.update((content.key, *(child.key for child in content.children)))
    # Runs without the tags were logged by somebody else, or by a version that did not name this folder.
    left = [run for key, found in runs.items() if key and key not in keys for run in found if "origin" in run.data.tags]
    for run in left:
        _remove(client, run)
    return TrackingResult(counts["added"], counts["replaced"], counts["kept"], len(left))


def _origin(study_dir: Path) -> str:
    """The id of a study's folder, made on first use."""
    file = study_dir / ORIGIN_FILE
    if not file.is_file():
        write_atomically(file, uuid4().hex + "\n")
    return file.read_text(encoding="utf-8").strip()


def _client(study_dir: Path) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A dead server must cost seconds, not MLflow's default minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(name).setLevel(logging.WARNING)
    uri = tracking_uri(study_dir)
    if uri.startswith(SQLITE):
        check_sqlite(Path(uri.removeprefix(SQLITE)))
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, study: StudyData) -> str:
    # Some versions of MLflow choose by the kind which page an experiment opens on; the others have the views.
    tags = {"mlflow.experimentKind": "custom_model_development", NOTE: DESCRIPTION, **saved_views()}
    found = client.get_experiment_by_name(study.name)
    if found is None:
        location = None if os.environ.get("MLFLOW_TRACKING_URI") else SERVED
        return str(client.create_experiment(study.name, artifact_location=location, tags=tags))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    for name, value in tags.items():
        if name not in found.tags:  # what a person changed stays
            client.set_experiment_tag(found.experiment_id, name, value)
    return str(found.experiment_id)


def _runs(client: MlflowClient, experiment: str, origin: str) -> dict[str, list[Run]]:
    """Map each value of the tag `cell` to its runs of this origin, with one search instead of one per cell.

    Runs of older versions have no origin. They count as this folder's.
    """
    found: dict[str, list[Run]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        for run in (run for run in page if run.data.tags.get("origin", origin) == origin):
            found.setdefault(run.data.tags.get("cell", ""), []).append(run)
        token = page.token
        if not token:
            return found


def _log_run(
    client: MlflowClient,
    experiment: str,
    runs: dict[str, list[Run]],
    content: RunContent,
    above: dict[str, str],
    counts: dict[str, int],
) -> None:
    """Log a run and those below it, unless they are there. Where a run is replaced, so are those below it.

    above: its tags of origin and of the run above it.
    """
    found, parent = runs.get(content.key, []), above.get(PARENT)
    current = [run for run in found if _is_current(run, content) and run.data.tags.get(PARENT) == parent][:1]
    for run in found:
        if run not in current:
            _remove(client, run)  # its record has changed, or its tracking was interrupted
    counts["kept" if current else "replaced" if found else "added"] += 1
    if current:
        own = current[0].info.run_id
        if "origin" not in current[0].data.tags:
            client.set_tag(own, "origin", above["origin"])
    else:
        tags = {"cell": content.key} | above
        begin = content.measured[0] if content.measured else None  # None: now
        own = client.create_run(experiment, run_name=content.name, tags=tags, start_time=begin).info.run_id
    for child in content.children:
        _log_run(client, experiment, runs, child, above | {PARENT: own}, counts)
    if not current:  # last, so that a run says FINISHED only when those below it are in
        _log_content(client, own, content)


def _remove(client: MlflowClient, run: Run) -> None:
    """Into MLflow's bin."""
    client.set_tag(run.info.run_id, "superseded", "true")
    client.delete_run(run.info.run_id)


def _is_current(run: Run, content: RunContent) -> bool:
    return run.info.status == "FINISHED" and run.data.tags.get("record_sha") == content.record_sha


def _log_content(client: MlflowClient, run: str, content: RunContent) -> None:
    """Log values in batches, then artifacts, then sha and FINISHED: an interrupted run never looks complete."""
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in content.metrics.items() if math.isfinite(value)]
    metrics += [Metric(name, y, now, x) for name, line in content.series.items() for x, y in line if math.isfinite(y)]
    params = [Param(name, str(value)[:6000]) for name, value in content.params.items()]
    tags = [RunTag(name, value[:5000]) for name, value in content.tags.items() if value]
    for part in _chunks(metrics, 1000):
        client.log_batch(run, metrics=part)
    for part in _chunks(params, 100):
        client.log_batch(run, params=part)
    for part in _chunks(tags, 100):
        client.log_batch(run, tags=part)
    if content.datasets:
        client.log_inputs(run, datasets=[_dataset(each) for each in content.datasets])
    own = _own_folder(client, run)
    for path in content.artifacts:
        name = path.parent.name
        folder = name if name in ("tables", "figures") else None
        if own:
            (own / (folder or "")).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, own / (folder or "") / path.name)
        else:
            client.log_artifact(run, str(path), artifact_path=folder)
    client.set_tag(run, "record_sha", content.record_sha)
    client.set_terminated(run, status="FINISHED", end_time=content.measured[1] if content.measured else None)


def _own_folder(client: MlflowClient, run: str) -> Path | None:
    """The folder of a run's files if they lie beside the study's own store, where no server is needed to write them."""
    files = client.get_run(run).info.artifact_uri
    if not (client.tracking_uri.startswith(SQLITE) and files.startswith(SERVED)):
        return None
    return Path(client.tracking_uri.removeprefix(SQLITE)).parent / ARTIFACTS / files.removeprefix(SERVED)


def _dataset(prompts: PromptDataset) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = json.dumps({"num_rows": prompts.count})
    dataset = Dataset(prompts.task, prompts.digest, "specrig", prompts.source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
