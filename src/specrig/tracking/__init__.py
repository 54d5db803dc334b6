"""Enter a study into MLflow, in one process and after measuring.

Each study is an experiment, each method in a setting a run, each cell a run below its method's, and each pair a run
with the tables and the report (see `entries`). MLflow chooses the ids of runs, and names are not unique. A run is
therefore identified by its tags `cell` and `record_sha`: a finished run with the same two tags is kept, any other run
of the same cell is replaced. Tracking may fail; measurements do not depend on it.
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

from specrig.measurement.records import replicate_of, write_atomically
from specrig.results.study_data import StudyData, read_study
from specrig.tracking.entries import EXPERIMENT, entries
from specrig.tracking.entry import NOTE, Entry, Prompts
from specrig.tracking.sqlite_store import try_store
from specrig.tracking.views import saved_views

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"
"""The name of the folder beside the study's own store that holds the files of its runs."""
SERVED = "mlflow-artifacts:/"
"""How MLflow names a file in the folder that its server is started with (`make ui`): so a study's folder may be moved."""
MARKER = "tracking-failed.txt"
"""The name of the file that a failure leaves in the study's folder. It says why tracking failed and how to repeat it."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """What a call of `track` did.

    added: number of new runs. replaced: number of runs replaced because their records changed. kept: number of
    unchanged runs.
    error: why tracking failed, empty if it did not.
    """

    added: int = 0
    replaced: int = 0
    kept: int = 0
    error: str = ""


def track(study_dir: Path, report: Path | None = None) -> Tracked:
    """Bring MLflow up to date with `results/<study>` and its report. Never raises: no measurement may be lost because
    of MLflow.

    Writes to `MLFLOW_TRACKING_URI` if it is set, else to `mlflow.db` and `ARTIFACTS` in the study's folder. A failure
    prints a warning, writes the file `MARKER` and returns with `error` set. The next successful call deletes that file.
    """
    study_dir = study_dir.resolve()
    marker = study_dir / MARKER
    try:
        done = _track(read_study(study_dir), report)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        message = (
            f"MLflow tracking failed ({reason}).\nMeasurements, tables and report are complete without it. "
            f"To enter the runs later: specrig track --study {study_dir / 'study.json'}"
        )
        print(f"warning: {message}", file=sys.stderr)
        if study_dir.is_dir():
            write_atomically(marker, message + "\n")
        return Tracked(error=reason)
    marker.unlink(missing_ok=True)
    print(f"MLflow: {done.added} runs added, {done.replaced} replaced, {done.kept} as they were")
    return done


def tracking_uri(study_dir: Path) -> str:
    """The address that `track` writes to: `MLFLOW_TRACKING_URI`, or the SQLite store in the study's folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{study_dir.resolve() / 'mlflow.db'}"


def _track(study: StudyData, report: Path | None) -> Tracked:
    client = _client(study.folder)
    experiment = _experiment(client, study)
    runs = _runs(client, experiment)
    counts = {"added": 0, "replaced": 0, "kept": 0}
    for entry in entries(study, report):
        _ensure(client, experiment, runs, entry, None, counts)
    return Tracked(counts["added"], counts["replaced"], counts["kept"])


def _client(study_dir: Path) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A dead server must cost seconds, not MLflow's default minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(name).setLevel(logging.WARNING)
    uri = tracking_uri(study_dir)
    if uri.startswith(SQLITE):
        try_store(Path(uri.removeprefix(SQLITE)))
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, study: StudyData) -> str:
    # A kind for versions of MLflow whose pages choose by it what an experiment opens on; for others the views.
    tags = {"mlflow.experimentKind": "custom_model_development", NOTE: EXPERIMENT, **saved_views()}
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


def _runs(client: MlflowClient, experiment: str) -> dict[str, list[Run]]:
    """Map each value of the tag `cell` to its runs, with one search instead of one per cell."""
    found: dict[str, list[Run]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        for run in page:
            found.setdefault(run.data.tags.get("cell", ""), []).append(run)
        token = page.token
        if not token:
            return found


def _ensure(
    client: MlflowClient,
    experiment: str,
    runs: dict[str, list[Run]],
    entry: Entry,
    parent: str | None,
    counts: dict[str, int],
) -> None:
    """Enter a run and those below it unless they are there. A run that is replaced takes those below it along."""
    found = runs.get(entry.key, [])
    current = [run for run in found if _is_current(run, entry) and run.data.tags.get("mlflow.parentRunId") == parent][
        :1
    ]
    for run in found:
        if run not in current:
            # Of a record that has changed, or of a tracker that was cut: out of sight, in MLflow's bin.
            client.set_tag(run.info.run_id, "superseded", "true")
            client.delete_run(run.info.run_id)
    counts["kept" if current else "replaced" if found else "added"] += 1
    if current:
        own = current[0].info.run_id
    else:
        tags = {"cell": entry.key} | ({"mlflow.parentRunId": parent} if parent else {})
        begin = entry.measured[0] if entry.measured else None  # None: now
        own = client.create_run(experiment, run_name=entry.name, tags=tags, start_time=begin).info.run_id
    for child in entry.children:
        _ensure(client, experiment, runs, child, own, counts)
    if not current:  # last, so that a run says FINISHED only when those below it are in
        _fill(client, own, entry)


def _is_current(run: Run, entry: Entry) -> bool:
    return run.info.status == "FINISHED" and run.data.tags.get("record_sha") == entry.content


def _fill(client: MlflowClient, run: str, entry: Entry) -> None:
    """Log an entry: values in batches, then artifacts, then sha and FINISHED, so that an interrupted run never looks
    complete.
    """
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in entry.metrics.items() if math.isfinite(value)]
    metrics += [Metric(name, y, now, x) for name, line in entry.series.items() for x, y in line if math.isfinite(y)]
    params = [Param(name, str(value)[:6000]) for name, value in entry.params.items()]
    tags = [RunTag(name, value[:5000]) for name, value in entry.tags.items() if value]
    for part in _chunks(metrics, 1000):
        client.log_batch(run, metrics=part)
    for part in _chunks(params, 100):
        client.log_batch(run, params=part)
    for part in _chunks(tags, 100):
        client.log_batch(run, tags=part)
    if entry.prompts:
        client.log_inputs(run, datasets=[_dataset(prompts) for prompts in entry.prompts])
    own = _own_folder(client, run)
    for path in entry.artifacts:
        name = path.parent.name
        folder = (
            name if name in ("tables", "figures") or replicate_of(name) else None
        )  # a replicate's records have the first one's names
        if own:
            (own / (folder or "")).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, own / (folder or "") / path.name)
        else:
            client.log_artifact(run, str(path), artifact_path=folder)
    client.set_tag(run, "record_sha", entry.content)
    client.set_terminated(run, status="FINISHED", end_time=entry.measured[1] if entry.measured else None)


def _own_folder(client: MlflowClient, run: str) -> Path | None:
    """The folder of a run's files if they lie beside the study's own store, where no server is needed to write them."""
    files = client.get_run(run).info.artifact_uri
    if not (client.tracking_uri.startswith(SQLITE) and files.startswith(SERVED)):
        return None
    return Path(client.tracking_uri.removeprefix(SQLITE)).parent / ARTIFACTS / files.removeprefix(SERVED)


def _dataset(prompts: Prompts) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = json.dumps({"num_rows": prompts.count})
    dataset = Dataset(prompts.task, prompts.digest, "specrig", prompts.source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
