"""MLflow: every run once, other content in its place, and never an exception for MLflow's sake."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from synthetic import write_study

from specrig import tracking
from specrig.measurement.records import read_records, write_records
from specrig.report.table_files import write_tables
from specrig.tracking import FAILURE_FILE, TrackingResult, store, track, tracking_uri
from specrig.tracking.views import VIEW_TAG

STUDY, HEAD, METHOD = "tracked: report, tables, figures", "medusa of tiny", "medusa"
CELLS = [f"medusa, k = {k}, code" for k in (2, 4)]
RUNS = {STUDY, HEAD, METHOD, *CELLS}


@pytest.fixture(autouse=True)
def no_store_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A study with a trained head, as it was entered; only to be read."""
    folder = write_study(
        tmp_path_factory.mktemp("study") / "tracked",
        methods=("medusa",),
        ks=(2, 4),
        tasks=("code",),
        prompts=3,
        length=24,
    )
    head = folder / "models" / "tiny" / "medusa"
    head.mkdir(parents=True)
    lines = [{"step": 0, "seconds": 1.0, "loss": 5.0}, {"step": 9, "seconds": 9.4, "heldout": {"code": 4.0}}]
    (head / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_tables(folder, folder / "tables")
    (folder / "report.html").write_text("<html></html>")
    shutil.copyfile(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert track(folder, folder / "report.html") == TrackingResult(entered=5)
    return folder


@pytest.fixture
def study(tracked: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(tracked, tmp_path / "tracked"))


def client(study: Path) -> MlflowClient:
    return MlflowClient(tracking_uri(study))


def runs(study: Path, view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
    experiment = client(study).get_experiment_by_name("tracked")
    return {run.info.run_name: run for run in client(study).search_runs([experiment.experiment_id], run_view_type=view)}


def ids(study: Path) -> dict[str, str]:
    return {name: run.info.run_id for name, run in runs(study).items()}


def files(study: Path, run: Run) -> set[str]:
    """The files of a run, whose address says nothing of where the study's folder is."""
    assert run.info.artifact_uri == f"mlflow-artifacts:/{run.info.run_id}/artifacts"
    folder = study / "mlartifacts" / run.info.run_id / "artifacts"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}


def measure_again(study: Path, k: int) -> None:
    """Other times in the records of one cell."""
    [path] = (study / "records").rglob(f"code-k{k}-*.jsonl")
    records = list(read_records(path))
    for record in records:
        record.run.decode_s *= 2
    write_records(path, records)


def test_a_study_in_mlflow(tracked: Path) -> None:
    entered = runs(tracked)
    assert set(entered) == RUNS and {run.info.status for run in entered.values()} == {"FINISHED"}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in entered.items()}
    top, method = entered[STUDY].info.run_id, entered[METHOD].info.run_id
    assert parents == {STUDY: None, HEAD: top, METHOD: top, CELLS[0]: method, CELLS[1]: method}
    cell = entered[CELLS[1]]
    assert cell.data.params["k"] == "4" and cell.data.params["target_sha256"] == "0" * 64
    assert cell.data.metrics["speedup"] > 0 and cell.data.tags["cpu"] == "synthetic processor"
    assert cell.data.tags["mlflow.source.git.commit"] == "0" * 40
    assert cell.data.tags["command"].endswith("study.json --engine native --pair tiny --method medusa")
    assert cell.info.start_time == 946_684_800_000 < cell.info.end_time, "when the job began, in 2000"
    assert files(tracked, cell) == {"records/native/tiny/medusa/code-k4-t0-b1.jsonl"}
    assert files(tracked, entered[METHOD]) == {"records/native/tiny/medusa/environment.json"}
    assert {"report.html", "study.json", "tables/cells.csv"} <= files(tracked, entered[STUDY])


def test_a_sweep_is_a_line_over_k(tracked: Path) -> None:
    method = runs(tracked)[METHOD]
    for name in ("speedup", "acceptance_rate"):
        line = client(tracked).get_metric_history(method.info.run_id, f"by_k/{name}/code")
        assert [point.step for point in line] == [2, 4]
    best = max(
        client(tracked).get_metric_history(method.info.run_id, "by_k/speedup/code"), key=lambda point: point.value
    )
    assert method.data.params["best_k"] == str(best.step)
    assert method.data.metrics["speedup"] == method.data.metrics["speedup/code"] == pytest.approx(best.value)


def test_a_trained_head_is_a_model_with_its_acceptance(tracked: Path) -> None:
    entered = runs(tracked)
    [model] = client(tracked).search_logged_models([entered[HEAD].info.experiment_id])
    assert (model.name, str(model.status), model.source_run_id) == (
        "tiny_medusa",
        "READY",
        entered[HEAD].info.run_id,
    )
    assert model.params["source"] == "models/tiny/medusa"
    values = {(metric.key, metric.dataset_name): metric.value for metric in model.metrics}
    measured = entered[METHOD].data.metrics
    assert values["acceptance_length/code", "code"] == measured["acceptance_length/code"] >= 1
    assert values["acceptance_length", None] == measured["acceptance_length"]
    [used] = client(tracked).get_run(entered[METHOD].info.run_id).inputs.model_inputs
    assert used.model_id == model.model_id
    assert entered[HEAD].data.metrics == {"loss": 5.0, "heldout/code": 4.0}


def test_the_saved_views_list_runs_with_what_their_columns_show(tracked: Path) -> None:
    experiment = client(tracked).get_experiment_by_name("tracked")
    listed = {}
    for name, value in experiment.tags.items():
        if name.startswith(VIEW_TAG):
            state = json.loads(json.loads(value)["state"])
            order = [f"{state['orderByKey']} DESC"]
            shown = client(tracked).search_runs([experiment.experiment_id], state["searchFilter"], order_by=order)
            listed[name.removeprefix(VIEW_TAG)] = [run.info.run_name for run in shown]
            for run in shown:
                columns = {f"metrics.`{name}`" for name in run.data.metrics} | {
                    f"params.`{name}`" for name in run.data.params
                }
                assert set(state["selectedColumns"]) - {"attributes.`Dataset`"} <= columns
    by_speedup = sorted(CELLS, key=lambda cell: -runs(tracked)[cell].data.metrics["speedup"])
    assert listed == {"methods": [METHOD], "cells": by_speedup, "models": [HEAD], "report": [STUDY]}
    assert "&viewStateShareKey=methods" in Path(__file__, "../../../Makefile").resolve().read_text(), (
        "`make ui` opens it"
    )


def test_datasets_change_with_their_prompts_and_hold_no_text(study: Path) -> None:
    before = runs(study)
    digests = {name: before[name].inputs.dataset_inputs[0].dataset.digest for name in (METHOD, *CELLS)}
    assert len(set(digests.values())) == 1, "cells on the same prompts have the same dataset"
    assert before[METHOD].inputs.dataset_inputs[0].dataset.profile == '{"num_rows": 3}'
    (study / "prompts").mkdir()
    (study / "prompts" / "code.jsonl").write_text('{"id": "code-0", "prompt": "another text"}')
    assert track(study, study / "report.html").entered == 4, "all but the study's"
    assert runs(study)[METHOD].inputs.dataset_inputs[0].dataset.digest not in digests.values()
    assert b"another text" not in (study / "mlflow.db").read_bytes()


def test_entered_again_and_changed(study: Path) -> None:
    before = ids(study)
    client(study).set_tag(before[CELLS[0]], "mine", "noted")
    client(study).set_experiment_tag("1", VIEW_TAG + "methods", "mine")
    assert track(study, study / "report.html") == TrackingResult(kept=5)
    assert ids(study) == before

    measure_again(study, 4)
    assert track(study, study / "report.html") == TrackingResult(entered=3, kept=2, removed=3)
    after = runs(study)
    assert {name for name, run in after.items() if run.info.run_id != before[name]} == {HEAD, METHOD, CELLS[1]}
    assert after[CELLS[0]].data.tags["mine"] == "noted"
    assert after[CELLS[0]].data.tags["mlflow.parentRunId"] == after[METHOD].info.run_id
    assert {name: run.info.run_id for name, run in runs(study, ViewType.DELETED_ONLY).items()}.items() <= before.items()
    assert len(client(study).search_logged_models(["1"])) == 1
    assert client(study).get_experiment("1").tags[VIEW_TAG + "methods"] == "mine", "a view that a person changed stays"


def test_what_left_the_study_leaves_mlflow(study: Path) -> None:
    other = client(study).create_run("1", run_name="somebody else's").info.run_id
    index = next((study / "records").rglob("index.json"))
    content = json.loads(index.read_text())
    del content["cells"]["code-k4-t0-b1"]
    index.write_text(json.dumps(content))
    assert track(study).error == ""
    assert ids(study)["somebody else's"] == other and set(ids(study)) == RUNS - {CELLS[1]} | {"somebody else's"}


def test_what_the_audit_said_stands_in_the_runs(study: Path) -> None:
    (study / "audit").mkdir()
    (study / "audit" / "records.csv").write_text(
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,passed,finding\n"
        "native,tiny,medusa,,code,0.0,token identity,2,3,,False,bad\n"
    )
    track(study)
    for name in (METHOD, *CELLS):
        tags = runs(study)[name].data.tags
        assert tags["audit"] == "failed" and "audit failed this method" in tags["mlflow.note.content"]
    assert not runs(study)[METHOD].data.metrics, "no figure of a method whose output is not the target's"


def test_folders_of_one_name_in_a_store_of_the_users(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copyfile(study / 'mlflow.db', tmp_path / 'ours.db')}")
    other = shutil.copytree(study, tmp_path / "elsewhere" / "tracked")
    (other / "tracking-origin.txt").unlink()
    assert track(study, study / "report.html") == TrackingResult(kept=5)
    assert track(other) == TrackingResult(entered=5)
    assert track(study, study / "report.html") == TrackingResult(kept=5)


def test_files_that_nothing_takes_are_entered_later(
    study: Path, empty_store: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copyfile(empty_store, study / "mlflow.db")
    client(study).create_experiment("tracked", artifact_location="file:///proc/nowhere")
    done = track(study)
    assert done.entered == 5 and "metrics are entered, files are not: file:///proc/nowhere/" in done.error
    assert done.error in (study / FAILURE_FILE).read_text() and done.error in capsys.readouterr().err
    assert runs(study)[METHOD].data.metrics["speedup"] > 0
    assert {run.info.status for run in runs(study).values()} == {"FINISHED"}
    with sqlite3.connect(study / "mlflow.db") as database:
        database.execute("update experiments set artifact_location = ?", [(study / "files").as_uri()])
    assert track(study) == TrackingResult(entered=5, removed=5)
    assert not (study / FAILURE_FILE).exists() and list(study.glob("files/*/artifacts/tables/cells.csv"))


def test_a_run_that_is_cut_says_so_and_is_replaced(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("database is locked")

    measure_again(study, 4)
    monkeypatch.setattr(tracking.Writer, "_log_files", fail)
    assert "database is locked" in track(study).error
    assert "FAILED" in {run.info.status for run in client(study).search_runs(["1"])}, "beside one of the same name"
    monkeypatch.undo()
    assert not track(study).error
    assert set(ids(study)) == RUNS and {run.info.status for run in runs(study).values()} == {"FINISHED"}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("scheme", ["postgresql", "http"])
@pytest.mark.parametrize("dead", ["silent", "closed"])
def test_a_dead_store_costs_one_line_without_its_password(
    study: Path, scheme: str, dead: str, silent_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    pytest.importorskip("psycopg2")
    monkeypatch.setattr(store, "PATIENCE_S", 1 if dead == "silent" else store.PATIENCE_S)
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", f"{scheme}://me:hunter2@127.0.0.1:{silent_port if dead == 'silent' else 9}/db"
    )
    begin = time.monotonic()
    done = track(study)
    assert time.monotonic() - begin < 30, "by itself MLflow would wait for 40 s"
    assert f"MLflow at {scheme}://me:***@127.0.0.1" in done.error
    output = capfd.readouterr()
    assert len((output.out + output.err).splitlines()) == 1
    for text in (output.out, output.err, (study / FAILURE_FILE).read_text(), done.error):
        assert "hunter2" not in text


def test_a_store_that_is_damaged(study: Path) -> None:
    content = bytearray((study / "mlflow.db").read_bytes())
    for page in range(4096, len(content), 3 * 4096):  # the header stands
        content[page : page + 100] = bytes(100)
    (study / "mlflow.db").write_bytes(content)
    assert "mlflow.db is damaged" in track(study).error
    assert "specrig stage track --study" in (study / FAILURE_FILE).read_text()
    (study / "mlflow.db").write_text("this is no database, but long enough to be taken for one " * 20)
    assert "mlflow.db is damaged (file is not a database): move it away" in track(study).error


@pytest.mark.parametrize(
    ("version", "message"), [("84291f40a231", "run: mlflow db upgrade sqlite:///"), ("ffff", "newer")]
)
def test_a_store_of_another_mlflow(study: Path, version: str, message: str) -> None:
    with sqlite3.connect(study / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = ?", [version])
    error = track(study).error
    assert error.startswith(str(study / "mlflow.db")) and message in error


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_folders_of_files_are_refused(study: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlruns").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", form.format(tmp_path / "mlruns"))
    assert (
        f"export MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db (its runs go along: mlflow mig"
        in track(study).error
    )
