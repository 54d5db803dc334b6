"""Names that look like numbers, truth values or missing values are names in every stage and in every table."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from runs import own_study, run
from specrig import cli
from specrig.study.load import load_study
from specrig.tables import read_table, write_table
from specrig.tracking import track

PAIRS, TASKS = ("70",), ("2024", "NA", "007", "1e5", "true")


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    names = ["70", "2024", "NA", "007", "1e5", "true", "", "nan", "None"]
    frame = pd.DataFrame(
        {"pair": names, "task": names[::-1], "variant": "", "speedup": [1.5, float("nan")] + [2.0] * 7}
    )
    write_table(tmp_path / "cells.csv", frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "cells.csv"), frame)


def test_a_failed_audit_is_struck_where_names_look_like_numbers(
    letters: Path, empty_store: Path, report_text: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake plans the study; its stages run here, as the jobs call them."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    table = "pair\ttarget\tdraft\n" + "".join(f"{name}\ttarget\tdraft\n" for name in PAIRS)
    methods = [{"method": "ngram", "k": 3, "label": "4e2"}]
    config = own_study("names", table, ["thequick", "brownfox"], task=TASKS[0], methods=methods, max_new_tokens=8)
    lines = Path("configs/tasks.tsv").read_text() + "".join(f"{name}\tprompts.jsonl\n" for name in TASKS[1:])
    Path("configs/tasks.tsv").write_text(lines)
    config.write_text(config.read_text().replace("- '2024'", "".join(f"- '{name}'\n" for name in TASKS).rstrip()))

    planned = run(Path.cwd(), "--dry-run", "--printshellcmds", config=str(config))
    assert planned.returncode == 0 and "--engine native --pair 70 " in planned.stdout, planned.stdout
    study = load_study(config)
    root = study.root.absolute()
    root.mkdir(parents=True)
    (root / "study.json").write_text(study.model_dump_json())

    def stage(name: str, *options: str) -> None:
        assert cli.main(["stage", name, "--study", str(root / "study.json"), *options]) == 0

    stage("measure", "--engine", "native", "--pair", "70")
    stage("audit")
    stage("tables")
    cells = read_table(root / "tables/cells.csv")
    assert set(cells["pair"]) == set(PAIRS) and set(cells["task"]) == set(TASKS) and not cells["failed"].any()

    audit = read_table(root / "audit/records.csv")
    wrong = (audit["pair"] == "70") & (audit["task"] == "007") & (audit["method"] == "ngram")
    assert wrong.sum() == 1
    write_table(root / "audit/records.csv", audit.assign(passed=audit["passed"].where(~wrong, False)))
    stage("tables")
    failed = read_table(root / "tables/cells.csv").query("failed")
    assert failed[["pair", "task", "method"]].to_numpy().tolist() == [["70", "007", "ngram"]]

    page = report_text(root)
    assert all(name in page for name in (*PAIRS, *TASKS, "4e2"))
    shutil.copyfile(empty_store, root / "mlflow.db")
    assert not track(root).error
    with sqlite3.connect(root / "mlflow.db") as store:
        logged = {value for (value,) in store.execute("select value from params where key in ('task', 'pair')")}
    assert logged >= {*PAIRS, *TASKS}
    assert set(json.loads((root / "study.json").read_text())["rows"]["tasks"]) == set(TASKS)
