"""MLflow: every run once, changed records replaced, and never an exception for MLflow's sake."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from synthetic import write_job, write_study

from specrig import tracking
from specrig.cell import Cell
from specrig.measurement.records import read_records, write_records
from specrig.report.table_files import write_tables
from specrig.tracking import FAILURE_FILE, ORIGIN_FILE, TrackingResult, sqlite, track, tracking_uri
from specrig.tracking.experiment import VIEW_TAG


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without runs: its many migrations take seconds, so they run once."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def study(tmp_path: Path, empty_store: Path) -> Path:
    folder = write_study(
        tmp_path / "tracked", methods=("draft_model",), ks=(2, 4), tasks=("code",), prompts=3, length=24
    )
    write_tables(folder, folder / "tables")
    shutil.copyfile(empty_store, folder / "mlflow.db")
    return folder


def runs(study: Path, view: int = ViewType.ACTIVE_ONLY) -> dict[str, list[Run]]:
    client = MlflowClient(tracking_uri(study))
    experiment = client.get_experiment_by_name("tracked")
    found: dict[str, list[Run]] = {}
    for run in client.search_runs([experiment.experiment_id], run_view_type=view):
        found.setdefault(run.data.tags["cell"], []).append(run)
    return found


def files(study: Path, run: Run) -> list[str]:
    """The names in a run's folder, whose address says nothing of where the study's folder is."""
    assert run.info.artifact_uri == f"mlflow-artifacts:/{run.info.run_id}/artifacts"
    return sorted(path.name for path in (study / "mlartifacts" / run.info.run_id / "artifacts").iterdir())


METHOD = "native/tiny/0.0/1/draft_model/"
CELLS = [f"native/tiny/draft_model/code-k{k}-t0-b1" for k in (2, 4)]


def ids(study: Path) -> dict[str, list[str]]:
    return {key: [run.info.run_id for run in found] for key, found in runs(study).items()}


def test_a_study_and_again_and_changed(study: Path) -> None:
    assert track(study) == TrackingResult(added=4)
    first = runs(study)
    assert set(first) == {"native/tiny", METHOD, *CELLS}
    [pair], [method], [child] = first["native/tiny"], first[METHOD], first[CELLS[1]]
    assert child.data.tags["mlflow.parentRunId"] == method.info.run_id and "mlflow.parentRunId" not in method.data.tags
    assert {run.info.status for found in first.values() for run in found} == {"FINISHED"}
    assert (pair.info.run_name, method.info.run_name) == ("tiny in native: tables, figures, report", "draft_model")
    assert child.info.run_name == "draft_model, k = 4, code"
    assert child.data.params["k"] == "4" and child.data.metrics["speedup"] > 0
    assert child.data.tags["mlflow.source.git.commit"] == "0" * 40
    assert child.data.tags["cpu"] == "synthetic processor"
    client = MlflowClient(tracking_uri(study))
    assert [metric.step for metric in client.get_metric_history(child.info.run_id, "prompt/speedup")] == [0, 1, 2]
    assert files(study, child) == ["code-k4-t0-b1.jsonl"]
    assert files(study, pair) == ["study.json", "tables"]
    assert files(study, method) == ["environment.json"]

    assert track(study) == TrackingResult(kept=4)
    assert ids(study) == {key: [run.info.run_id for run in found] for key, found in first.items()}

    cells = [
        Cell(engine="native", pair="tiny", method="draft_model", k=k, task="code", temperature=0.0) for k in (2, 4)
    ]
    keep = {path.name: path.read_bytes() for path in study.rglob("*k2*.jsonl")}
    write_job(study, cells, prompts=3, length=24, seed=5)
    next(study.rglob("*k2*.jsonl")).write_bytes(keep["code-k2-t0-b1.jsonl"])
    assert track(study) == TrackingResult(replaced=4), "a method that changed takes its cells along"
    [after] = runs(study)[CELLS[1]]
    assert after.info.run_id != child.info.run_id
    assert after.data.tags["mlflow.parentRunId"] == ids(study)[METHOD][0] != method.info.run_id
    [binned] = runs(study, ViewType.DELETED_ONLY)[CELLS[1]]
    assert binned.info.run_id == child.info.run_id and binned.data.tags["superseded"] == "true"


def test_folders_of_one_name_on_one_server_keep_their_runs(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a store without a server keeps files
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(study))
    other = shutil.copytree(study, tmp_path / "elsewhere" / "tracked")
    for folder in (study, other):
        assert track(folder) == TrackingResult(added=4)
    assert [track(folder) for folder in (study, other)] == [TrackingResult(kept=4)] * 2
    origins = {(folder / ORIGIN_FILE).read_text().strip() for folder in (study, other)}
    assert {run.data.tags["origin"] for run in runs(study)[METHOD]} == origins and len(origins) == 2


def test_a_method_that_ran_at_several_k_is_a_line_over_k(study: Path) -> None:
    track(study)
    [method] = runs(study)[METHOD]
    client = MlflowClient(tracking_uri(study))
    lines = {
        name: client.get_metric_history(method.info.run_id, f"by_k/{name}/code")
        for name in ("speedup", "acceptance_rate")
    }
    assert all([point.step for point in line] == [2, 4] for line in lines.values())
    best = max(lines["speedup"], key=lambda point: point.value)
    assert method.data.params["best_k"] == str(best.step)
    assert method.data.metrics["speedup"] == method.data.metrics["speedup/code"] == pytest.approx(best.value)
    assert 1 <= method.data.metrics["acceptance_length"] <= 5


def test_the_saved_views_list_runs_with_what_their_columns_show(study: Path) -> None:
    track(study)
    client = MlflowClient(tracking_uri(study))
    experiment = client.get_experiment_by_name("tracked")
    views = {
        name.removeprefix(VIEW_TAG): json.loads(value)
        for name, value in experiment.tags.items()
        if name.startswith(VIEW_TAG)
    }
    found = {}
    for key, view in views.items():
        state = json.loads(view["state"])
        found[key] = client.search_runs(
            [experiment.experiment_id], state["searchFilter"], order_by=[f"{state['orderByKey']} DESC"]
        )
        for run in found[key]:
            columns = {f"metrics.`{name}`" for name in run.data.metrics} | {
                f"params.`{name}`" for name in run.data.params
            }
            assert set(state["selectedColumns"]) - {"attributes.`Dataset`"} <= columns
    assert {key: [run.data.tags["cell"] for run in listed] for key, listed in found.items()} == {
        "methods": [METHOD],
        "cells": sorted(CELLS, key=lambda cell: -runs(study)[cell][0].data.metrics["speedup"]),
        "report": ["native/tiny"],
    }
    assert "&viewStateShareKey=methods" in Path(__file__, "../../../Makefile").resolve().read_text(), (
        "`make ui` leads to it"
    )

    mine = json.dumps({"name": "mine"})
    client.set_experiment_tag(experiment.experiment_id, VIEW_TAG + "methods", mine)
    client.delete_experiment_tag(experiment.experiment_id, VIEW_TAG + "cells")
    track(study)
    tags = client.get_experiment(experiment.experiment_id).tags
    assert tags[VIEW_TAG + "methods"] == mine, "a view that a person changed stays"
    assert VIEW_TAG + "cells" in tags


def test_runs_name_the_prompts_and_have_the_times_of_measuring(study: Path) -> None:
    for minute, path in enumerate(sorted(study.rglob("*-k*.jsonl"))):
        records = [*read_records(path)]
        times = [f"2026-01-01T10:{2 * minute + (number > 0):02}:00+00:00" for number in range(len(records))]
        write_records(
            path, [record.model_copy(update={"when": when}) for record, when in zip(records, times, strict=True)]
        )
    track(study)
    ten = 1767261600000  # 2026-01-01T10:00 UTC in milliseconds
    minutes = {
        key: tuple((time - ten) / 60_000 for time in (run.info.start_time, run.info.end_time))
        for key, [run] in runs(study).items()
    }
    assert minutes == {CELLS[0]: (0, 1), CELLS[1]: (2, 3), METHOD: (0, 3), "native/tiny": (0, 3)}

    first = {}
    for key in (METHOD, *CELLS):
        [options] = runs(study)[key][0].inputs.dataset_inputs
        assert (options.dataset.name, options.dataset.profile) == ("code", '{"num_rows": 3}')
        first[key] = options.dataset.digest
    assert len(set(first.values())) == 1, "cells on the same prompts have the same dataset"
    (study / "prompts").mkdir()
    (study / "prompts" / "code.jsonl").write_text('{"id": "code-0", "prompt": "another text"}')
    for key in CELLS:
        client = MlflowClient(tracking_uri(study))
        client.set_terminated(runs(study)[key][0].info.run_id, status="FAILED")
    track(study)
    assert all(runs(study)[key][0].inputs.dataset_inputs[0].dataset.digest != first[key] for key in CELLS)
    store = (study / "mlflow.db").read_bytes()
    assert b"another text" not in store, "texts of prompts stay where they are"


def test_what_the_audit_said_stands_in_the_runs(study: Path) -> None:
    report = study / "report.html"
    report.write_text("<html></html>")
    (study / "audit").mkdir()
    verdict = "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,passed,finding\n"
    (study / "audit" / "records.csv").write_text(
        f"{verdict}native,tiny,draft_model,,code,0.0,token identity,2,3,,True,fine\n"
    )
    assert track(study, report) == TrackingResult(added=4)
    [pair] = runs(study)["native/tiny"]
    assert "report.html" in files(study, pair)
    assert runs(study)[METHOD][0].data.metrics["speedup"] > 0

    (study / "audit" / "records.csv").write_text(
        f"{verdict}native,tiny,draft_model,,code,0.0,token identity,2,3,,False,bad\n"
    )
    assert track(study, report) == TrackingResult(replaced=4)
    for key in (METHOD, *CELLS):
        [run] = runs(study)[key]
        assert run.data.tags["audit"] == "failed"
        assert "audit failed this method" in run.data.tags["mlflow.note.content"]
    assert not runs(study)[METHOD][0].data.metrics, "no figure of a method whose output is not the target's"


def test_runs_of_what_left_the_study_go_too(study: Path) -> None:
    track(study)
    client = MlflowClient(tracking_uri(study))
    experiment = client.get_experiment_by_name("tracked")
    foreign = client.create_run(experiment.experiment_id, tags={"cell": "somebody else's"}).info.run_id
    index = next((study / "records").rglob("index.json"))
    content = json.loads(index.read_text())
    del content["cells"]["code-k4-t0-b1"]
    index.write_text(json.dumps(content))
    done = track(study)
    assert (done.added, done.removed) == (0, 1), done
    left = runs(study)
    assert CELLS[1] not in left and {CELLS[0], METHOD, "somebody else's"} <= set(left)
    assert client.get_run(foreign).info.lifecycle_stage == "active"
    assert {run.data.tags["superseded"] for run in runs(study, ViewType.DELETED_ONLY)[CELLS[1]]} == {"true"}


def test_a_line_over_prompts_has_a_step_for_each(tmp_path: Path, empty_store: Path) -> None:
    folder = write_study(tmp_path / "tracked", methods=("draft_model",), ks=(2,), tasks=("code",), prompts=3, length=24)
    write_tables(folder, folder / "tables")
    shutil.copyfile(empty_store, folder / "mlflow.db")
    track(folder)
    [run] = runs(folder)[CELLS[0]]
    client = MlflowClient(tracking_uri(folder))
    for name in ("speedup", "acceptance_rate", "acceptance_length", "tokens", "ttft_ms"):
        assert [each.step for each in client.get_metric_history(run.info.run_id, f"prompt/{name}")] == [0, 1, 2], name


def test_a_run_that_was_cut_is_replaced(study: Path) -> None:
    track(study)
    client = MlflowClient(tracking_uri(study))
    key = CELLS[1]
    client.set_terminated(runs(study)[key][0].info.run_id, status="FAILED")
    assert track(study) == TrackingResult(replaced=1, kept=3)
    assert [run.info.status for run in runs(study)[key]] == ["FINISHED"]


def test_no_sqlite_on_storage_that_machines_share(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = sqlite.file_system(study)
    if not kind:
        pytest.skip("this machine does not say what its file systems are")
    assert kind not in sqlite.SHARED, "the tests run on a disk of this machine"
    assert not Path("/proc/self").exists() or sqlite.file_system(Path("/proc")) == "proc"
    monkeypatch.setattr(sqlite, "SHARED", frozenset([kind]))
    done = track(study)
    assert f"shared by machines ({kind})" in done.error and "MLFLOW_TRACKING_URI" in done.error
    monkeypatch.undo()
    assert track(study) == TrackingResult(added=4)


def test_the_users_store_is_used(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study / "mlflow.db").rename(tmp_path / "elsewhere.db")
    uri = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    assert track(study).added == 4
    assert not (study / "mlflow.db").exists()
    assert {run.data.tags["kind"] for found in runs(study).values() for run in found} == {"pair", "method", "cell"}


def test_a_broken_store_costs_a_warning_only(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "mlflow.db").write_text("this is no database, but long enough to be taken for one " * 20)
    done = track(study)
    assert "mlflow.db is damaged (file is not a database): move it away" in done.error
    assert "tracking failed" in capsys.readouterr().err
    assert "specrig stage track --study" in (study / FAILURE_FILE).read_text()


def test_a_damaged_store_can_be_moved_away(study: Path) -> None:
    store, content = study / "mlflow.db", bytearray((study / "mlflow.db").read_bytes())
    for page in range(4096, len(content), 3 * 4096):  # the header stands
        content[page : page + 100] = bytes(100)
    store.write_bytes(content)
    assert "mlflow.db is damaged" in track(study).error
    store.rename(study / "moved.db")
    done = track(study)
    assert not done.error and done.added > 0


def test_a_dead_server_costs_a_warning_only(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert track(study).error
    assert (study / FAILURE_FILE).is_file()


def test_a_locked_store_costs_a_warning_only(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    track(study)
    next(study.rglob("*k2*.jsonl")).touch()
    (study / "tables" / "cells.csv").write_text("changed")
    monkeypatch.setattr(
        tracking, "_log_content", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("database is locked"))
    )
    assert "database is locked" in track(study).error
    assert (study / FAILURE_FILE).is_file()
    monkeypatch.undo()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = track(study)
    assert not done.error and done.added == 0
    assert not (study / FAILURE_FILE).exists()


def test_loss_curves_are_runs_too(study: Path) -> None:
    folder = study / "models" / "tiny" / "draft"
    folder.mkdir(parents=True)
    lines = [{"step": 0, "seconds": 1.0, "loss": 5.0}, {"step": 9, "seconds": 9.4, "heldout": {"code": 4.0}}]
    (folder / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert track(study) == TrackingResult(added=5)
    [run] = runs(study)["training/tiny/draft"]
    assert run.data.tags["mlflow.parentRunId"] == ids(study)["native/tiny"][0]
    assert run.data.metrics["loss"] == 5.0 and run.data.metrics["heldout/code"] == 4.0
