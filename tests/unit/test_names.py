"""Names that look like numbers, truth values or missing values are names in every stage and in every table."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pandas as pd

from runs import own_study, run
from specrig import cli
from specrig.tables import read_table, write_table

PAIRS, TASKS = ("70",), ("2024", "NA", "007", "1e5", "true")


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    names = ["70", "2024", "NA", "007", "1e5", "true", "", "nan", "None"]
    frame = pd.DataFrame(
        {"pair": names, "task": names[::-1], "variant": "", "speedup": [1.5, float("nan")] + [2.0] * 7}
    )
    write_table(tmp_path / "cells.csv", frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "cells.csv"), frame)


def test_a_failed_audit_is_struck_where_names_look_like_numbers(letters: Path) -> None:
    table = "pair\ttarget\tdraft\n" + "".join(f"{name}\ttarget\tdraft\n" for name in PAIRS)
    methods = [{"method": "ngram", "k": 3, "label": "4e2"}]
    keys = {"methods": methods, "max_new_tokens": 8, "audit_samples": 1000}
    config = own_study("names", table, ["thequick", "brownfox"], task=TASKS[0], **keys)
    lines = Path("configs/tasks.tsv").read_text() + "".join(f"{name}\tprompts.jsonl\n" for name in TASKS[1:])
    Path("configs/tasks.tsv").write_text(lines)
    config.write_text(config.read_text().replace("- '2024'", "".join(f"- '{name}'\n" for name in TASKS).rstrip()))

    finished = run(Path.cwd(), config=str(config))
    assert finished.returncode == 0, finished.stdout
    root = Path("results/names").absolute()
    cells = read_table(root / "tables/cells.csv")
    assert set(cells["pair"]) == set(PAIRS) and set(cells["task"]) == set(TASKS) and not cells["failed"].any()

    audit = read_table(root / "audit/records.csv")
    wrong = (audit["pair"] == "70") & (audit["task"] == "007") & (audit["method"] == "ngram")
    assert wrong.sum() == 1
    write_table(root / "audit/records.csv", audit.assign(passed=audit["passed"].where(~wrong, False)))
    assert cli.main(["stage", "tables", "--study", str(root / "study.json")]) == 0
    failed = read_table(root / "tables/cells.csv").query("failed")
    assert failed[["pair", "task", "method"]].to_numpy().tolist() == [["70", "007", "ngram"]]

    page = Path("reports/names/report.html").read_text()
    assert all(name in page for name in (*PAIRS, *TASKS, "4e2"))
    with sqlite3.connect(root / "mlflow.db") as store:
        logged = {value for (value,) in store.execute("select value from params where key in ('task', 'pair')")}
    assert logged >= {*PAIRS, *TASKS}
    assert set(json.loads((root / "study.json").read_text())["rows"]["tasks"]) == set(TASKS)
