"""Enter a study into MLflow, in one process and after measuring.

Each study is an experiment, whose runs `runs` lists. A run carries a digest of its content: one that is there is kept,
so that entering a study again adds nothing, and what people noted on a run stays. Runs of other content go to MLflow's
bin. Tracking may fail; measurements do not depend on it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from specrig.errors import with_type
from specrig.files import write_atomically
from specrig.redaction import RedactedStream, redacted
from specrig.report.study_data import StudyData, read_study
from specrig.tracking.runs import PromptDataset, StudyRun, study_runs
from specrig.tracking.store import SQLITE, StoreError, open_store, tracking_uri
from specrig.tracking.views import DESCRIPTION, saved_views

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ARTIFACTS = "mlartifacts"
"""The name of the folder in the study's that holds the files of its runs."""
SERVED = "mlflow-artifacts:/"
"""MLflow's address of a file in the folder of its server (`make ui`), so that a study's folder may be moved."""
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"
SOURCE = {"mlflow.source.name": "specrig", "mlflow.source.type": "LOCAL"}
CONTENT = "content"
"""The tag with the digest of all that a run holds. A run without it is incomplete."""
FAILURE_FILE = "tracking-failed.txt"
"""File in the study's folder that states why tracking failed and how to repeat it."""
ORIGIN_FILE = "tracking-origin.txt"
"""File in the study's folder with an id of the folder, so that two folders of one name do not replace each other's runs."""
AT_ONCE = 1000
"""The most values that MLflow takes in one call."""


@dataclass(frozen=True, slots=True)
class TrackingResult:
    """The outcome of `track`: numbers of runs entered, kept as they were and removed, and why it failed, if it did."""

    entered: int = 0
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
    with redirect_stdout(RedactedStream(sys.stdout)), redirect_stderr(RedactedStream(sys.stderr)):
        try:
            done = _track(read_study(study_dir), report)
        except Exception as error:
            done = TrackingResult(error=redacted(str(error) if isinstance(error, StoreError) else with_type(error)))
        if done.error:
            again = f"specrig stage track --study {os.path.relpath(study_dir / 'study.json')}"
            message = f"MLflow tracking failed ({done.error}). All else is complete; to enter the runs later: {again}"
            print(f"warning: {message}", file=sys.stderr)
            if study_dir.is_dir():
                write_atomically(marker, message + "\n")
            return done
        marker.unlink(missing_ok=True)
        print(f"MLflow: {done.entered} runs entered, {done.kept} kept, {done.removed} removed")
        return done


def _track(study: StudyData, report: Path | None) -> TrackingResult:
    uri = tracking_uri(study.folder)
    client = open_store(uri)
    experiment = _experiment(client, study)
    writer = Writer(client, experiment, _origin(study.folder), study.folder)
    return writer.write(study_runs(study, report))


def _origin(study_dir: Path) -> str:
    """The id of a study's folder, made on first use."""
    file = study_dir / ORIGIN_FILE
    if not file.is_file():
        write_atomically(file, uuid4().hex + "\n")
    return file.read_text(encoding="utf-8").strip()


def _experiment(client: MlflowClient, study: StudyData) -> str:
    # Some versions of MLflow choose by the kind which page an experiment opens on; the others have the views.
    tags = {"mlflow.experimentKind": "custom_model_development", NOTE: DESCRIPTION, **saved_views()}
    experiment = client.get_experiment_by_name(study.name)
    if experiment is None:
        uri = client.tracking_uri
        own = SERVED if not os.environ.get("MLFLOW_TRACKING_URI") else (study.folder / ARTIFACTS).as_uri()
        location = None if uri.startswith(("http:", "https:")) else own  # a server knows where its files go
        return str(client.create_experiment(study.name, artifact_location=location, tags=tags))
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    for name, value in tags.items():
        if name not in experiment.tags:  # what a person changed stays
            client.set_experiment_tag(experiment.experiment_id, name, value)
    return str(experiment.experiment_id)


@dataclass
class Writer:
    """Enters the runs of one study's folder. origin: the folder's id. no_files: why MLflow takes none, once it took one
    not.
    """

    client: MlflowClient
    experiment: str
    origin: str
    study_dir: Path
    no_files: str = ""
    run_ids: dict[str, str] = field(default_factory=dict)
    model_ids: dict[str, str] = field(default_factory=dict)

    def write(self, runs: list[StudyRun]) -> TrackingResult:
        """Enter the runs that are not there, then remove what else there is of this folder."""
        stored = self._stored()
        complete = {run.data.tags[CONTENT]: run for run in stored if CONTENT in run.data.tags}
        kept = set()
        for run in runs:
            tags = {PARENT: self.run_ids[run.parent.key]} if run.parent else {}
            if there := complete.get(run.digest):
                run_id = there.info.run_id
                kept.add(run_id)
                for name, value in tags.items():
                    if there.data.tags.get(name) != value:
                        self.client.set_tag(run_id, name, value)
                if run.model:
                    self.model_ids[run.key] = there.outputs.model_outputs[0].model_id
            else:
                run_id = self._enter(run, tags)
            self.run_ids[run.key] = run_id
        outdated = [run for run in stored if run.info.run_id not in kept]
        for run in outdated:
            for output in run.outputs.model_outputs if run.outputs else []:
                self.client.delete_logged_model(output.model_id)
            self.client.delete_run(run.info.run_id)
        files = f"metrics are entered, files are not: {self.no_files}" if self.no_files else ""
        return TrackingResult(len(runs) - len(kept), len(kept), len(outdated), files)

    def _stored(self) -> list[Run]:
        """The runs of this folder, whatever their content."""
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs([self.experiment], f"tags.origin = '{self.origin}'", page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    def _enter(self, run: StudyRun, above: dict[str, str]) -> str:
        """Enter a run and return its id. It says FINISHED at the end, and FAILED where MLflow fails before."""
        tags = {
            "kind": run.kind,
            "origin": self.origin,
            NOTE: run.note,
            "command": run.command,
            **SOURCE,
            **run.tags,
            **above,
        }
        begin, end = run.measured or (None, None)  # None: now
        created = self.client.create_run(self.experiment, begin, tags, run.name)
        run_id: str = created.info.run_id
        try:
            self._log_model(run, run_id)
            self._log_values(run, run_id)
            self._log_files(run, run_id, created.info.artifact_uri)
            if not self.no_files or not run.artifacts:
                self.client.set_tag(run_id, CONTENT, run.digest)
        except BaseException:
            self.client.set_terminated(run_id, status="FAILED")
            raise
        self.client.set_terminated(run_id, status="FINISHED", end_time=end)
        return run_id

    def _log_model(self, run: StudyRun, run_id: str) -> None:
        """A draft or head as MLflow's LoggedModel, without weights: they stay where they are."""
        from mlflow.entities import LoggedModelOutput

        if run.model:
            params = {name: str(value) for name, value in run.params.items()}
            model = self.client.create_logged_model(
                self.experiment, run.model, run_id, params=params, model_type="draft"
            )
            self.client.finalize_logged_model(model.model_id, "READY")
            self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
            self.model_ids[run.key] = model.model_id

    def _log_values(self, run: StudyRun, run_id: str) -> None:
        from mlflow.entities import LoggedModelInput, Metric, Param

        now = int(time.time() * 1000)
        models = [self.model_ids[model.key] for model in run.drafts_with]
        datasets = {dataset.task: dataset for dataset in run.datasets}
        if datasets or models:
            inputs = [_dataset_input(dataset) for dataset in run.datasets]
            self.client.log_inputs(run_id, inputs, [LoggedModelInput(model) for model in models])
        metrics = [Metric(name, y, now, x) for name, line in run.series.items() for x, y in line]
        for name, value in run.metrics.items():
            dataset = datasets.get(name.partition("/")[2])
            about = {"dataset_name": dataset.task, "dataset_digest": dataset.digest} if dataset else {}
            used: list[str | None] = [*models] if models and name.startswith("acceptance_") else [None]
            metrics += [Metric(name, value, now, 0, model, run_id=run_id, **about) for model in used]
        for start in range(0, len(metrics), AT_ONCE):
            self.client.log_batch(run_id, metrics=metrics[start : start + AT_ONCE])
        self.client.log_batch(
            run_id, params=[Param(name, str(value)[:6000]) for name, value in run.params.items()][:100]
        )

    def _log_files(self, run: StudyRun, run_id: str, address: str) -> None:
        """Store a run's files below their folders in the study's. After a failure no file is tried again."""
        uri = self.client.tracking_uri
        beside = uri.startswith(SQLITE) and address.startswith(SERVED)  # no server is needed to write them
        for path in run.artifacts if not self.no_files else []:
            inside = path.parent.relative_to(self.study_dir) if path.is_relative_to(self.study_dir) else Path()
            try:
                if beside:
                    folder = Path(uri.removeprefix(SQLITE)).parent / ARTIFACTS / address.removeprefix(SERVED) / inside
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, folder / path.name)
                else:
                    self.client.log_artifact(run_id, str(path), None if inside == Path() else inside.as_posix())
            except Exception as error:
                self.no_files = f"{redacted(address)}: {with_type(error)}"
                return


def _dataset_input(prompts: PromptDataset) -> object:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = json.dumps({"num_rows": prompts.prompts})
    dataset = Dataset(prompts.task, prompts.digest, "specrig", prompts.source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])
