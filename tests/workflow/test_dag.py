"""The DAG on configs/test.yaml: whole, again, with one k more, and cut midway; run as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import runs
from runs import REPOSITORY, run

CELLS = "results/test/tables/cells.csv"
"""As a target: measuring and the tables, without figures, MLflow and report."""
RECORDS = Path("results/test/records/native/tiny")
MEASURED = "results/test/measured/native/tiny/together"

pytestmark = pytest.mark.workflow


def stamps(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Record file -> (time of writing, content)."""
    return runs.stamps(folder / RECORDS)


def jobs_run(output: str) -> int:
    """How many jobs Snakemake finished, by its own account."""
    return output.count("Finished jobid:")


def edit(folder: Path, source: str, target: str, **changes: object) -> str:
    config = yaml.safe_load((folder / source).read_text()) | changes
    (folder / target).write_text(yaml.safe_dump(config))
    return target


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished study, with Snakemake's own notes, to be changed."""
    return runs.copied(finished, tmp_path / "study")


def test_it_makes_what_the_readme_promises(finished: Path) -> None:
    results = finished / "results/test"
    assert "<html" in (finished / "reports/test/report.html").read_text().lower()
    header, *rows = (results / "tables/cells.csv").read_text().splitlines()
    expected = (
        "engine pair method k task temperature batch_size prompts tokens tokens_per_s baseline_tokens_per_s speedup "
        "speedup_low speedup_high end_to_end_speedup ttft_ms acceptance_rate acceptance_length alpha draft_cost "
        "verify_cost predicted_speedup efficiency peak_memory_mb"
    )
    assert set(expected.split()) <= set(header.split(","))
    assert len(rows) == 8
    for name in ("speedup", "acceptance"):
        for kind in ("csv", "md", "tex"):
            assert (results / f"tables/{name}.{kind}").stat().st_size
    assert all(path.stat().st_size for path in (results / "figures").glob("*.svg"))
    assert (results / "mlflow.db").is_file()
    index = json.loads((finished / RECORDS / "draft_model/index.json").read_text())
    assert set(index["cells"]) == {"code-k2-t0-b1", "code-k4-t0-b1", "translation-k2-t0-b1", "translation-k4-t0-b1"}
    assert index["failed"] == {}


def test_no_secret_is_written_anywhere(finished: Path) -> None:
    """The fixture plants them. Neither into what the run said, nor into records, logs, models, MLflow's store, the
    report or Snakemake's own notes.
    """
    files = [path for path in finished.rglob("*") if path.is_file()]
    assert {"output.txt", "mlflow.db", "report.html", "environment.json"} <= {path.name for path in files}
    found = [path for path in files if b"plantedForThisTest" in path.read_bytes()]
    assert not found


def test_a_second_run_has_nothing_to_do(copied: Path) -> None:
    before = stamps(copied)
    result = run(copied)
    assert result.returncode == 0, result.stdout
    assert "Nothing to be done" in result.stdout and jobs_run(result.stdout) == 0
    assert stamps(copied) == before


def test_a_run_ends_with_the_answer_and_the_reports_path(finished: Path) -> None:
    output = (finished / "output.txt").read_text()
    answer, report, results = re.findall(r"^(?:Fastest|Report:|Results:) .*", output, flags=re.MULTILINE)
    assert answer.startswith("Fastest lossless method on tiny (native): ") and " at 95 %" in answer
    assert (report, results) == (
        "Report: reports/test/report.html",
        "Results: results/test",
    ) and "reports/test/report.html" not in output.partition(report)[2]


def test_a_longer_study_measures_its_new_cells_alone_and_what_leaves_it_leaves_the_tables(copied: Path) -> None:
    """One k more, and a task whose second turn is longer than the context: that fails with the reason, the rest stands."""
    rows = [{"id": "long", "prompt": ["Name a river.", "word " * 5000]}]
    (copied / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = copied / "configs/tasks.tsv"
    row = {"task": "long", "source": "long.jsonl", "turns": "2"}
    header = tasks.read_text().splitlines()[0].split("\t")
    tasks.write_text(tasks.read_text() + "\t".join(row.get(name, "") for name in header) + "\n")
    changes = {"methods": [{"method": "draft_model", "k": [2, 3, 4]}, {"method": "ngram", "k": 3}]}
    changes["tasks"] = ["code", "translation", "long"]
    before = stamps(copied)
    result = run(copied, CELLS, config=edit(copied, "configs/test.yaml", "configs/more.yaml", **changes))
    assert "Traceback" not in result.stdout
    assert result.returncode == 1 and "\nNot measured (4):" in result.stdout.replace(", the next run tries again", "")
    assert "native/tiny/ngram/long@turn2-k3-t0-b1: prompt 'long' of task 'long@turn2'" in result.stdout
    assert jobs_run(result.stdout) > 0, "else counting them shows nothing elsewhere"
    for stage in ("Training the", "Writing, with"):
        assert stage not in result.stdout
    after = stamps(copied)
    new = {f"draft_model/{task}-k3-t0-b1.jsonl" for task in ("code", "translation")}
    new |= {f"draft_model/long@turn1-k{k}-t0-b1.jsonl" for k in (2, 3, 4)} | {"ngram/long@turn1-k3-t0-b1.jsonl"}
    assert after.keys() - before.keys() == new
    assert {name: after[name] for name in before} == before
    index = json.loads((copied / RECORDS / "ngram/index.json").read_text())
    assert set(index["failed"]) == {"long@turn2-k3-t0-b1"}
    assert rows_of_cells(copied) == 12
    # And back, with a task less: nothing is measured again, the cells stay on disk, the tables show the study's own.
    result = run(copied, CELLS, "--config", "tasks=code")
    assert result.returncode == 0, result.stdout
    assert rows_of_cells(copied) == 4
    assert stamps(copied) == after


def rows_of_cells(folder: Path) -> int:
    return len((folder / CELLS).read_text().splitlines()) - 1


def cut_after(folder: Path, config: str, cells: int, how: signal.Signals, log: Path) -> dict[str, tuple[int, bytes]]:
    """Run until so many cells are measured, send the signal to all processes of the run, and say what is finished."""
    for name in ("Snakefile", "workflow", "profiles"):
        if not (folder / name).exists():
            (folder / name).symlink_to(REPOSITORY / name)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "specrig", "run", config, CELLS],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Shells ignore Ctrl-C for what they run in the background, and so would we if the tests run there.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        deadline = time.monotonic() + 900
        while len(stamps(folder)) < cells and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, log.read_text()
        length = len(log.read_text())
        os.killpg(process.pid, how)
        code = process.wait(300)
    assert code == (130 if how is signal.SIGINT else -how), log.read_text()
    if how is signal.SIGINT:
        assert "Error" not in log.read_text()[length:]
        assert log.read_text().endswith("\nInterrupted. Finished cells are kept; the same command continues.\n")
    assert "Traceback" not in log.read_text()
    return stamps(folder)


def test_a_run_cut_midway_goes_on_where_it_was(copied: Path) -> None:
    """Cut by Ctrl-C, then by a power cut, after which Snakemake's lock is left."""
    methods = [{"method": "draft_model", "k": [2, 3, 4, 5]}]
    # The cells of a task are written together, so that of three tasks one is left whatever the moment of the second
    # cut.
    tasks = ["code", "translation", "summarization"]
    config = edit(
        copied, "configs/test.yaml", "configs/long.yaml", methods=methods, tasks=tasks, prompts=4, max_new_tokens=100
    )
    shutil.rmtree(copied / RECORDS)
    first = cut_after(copied, config, 1, signal.SIGINT, copied / "interrupted.txt")
    assert {name.split("-")[0] for name in first} == {"draft_model/code"}
    second = cut_after(copied, config, len(first) + 1, signal.SIGKILL, copied / "killed.txt")
    assert len(first) < len(second) < 12
    locked = run(copied, MEASURED, config=config)
    assert locked.returncode == 1 and "--unlock" in locked.stdout, locked.stdout
    assert run(copied, "--unlock", config=config).returncode == 0
    result = run(copied, MEASURED, config=config)
    assert result.returncode == 0, result.stdout
    after = stamps(copied)
    assert len(after) == 12
    for name, stamp in (first | second).items():
        assert after[name] == stamp, f"{name} was measured again"
    for name, stamp in first.items():
        assert second[name] == stamp, f"{name} was measured again"


def test_mlflow_out_of_reach_fails_nothing_and_the_next_run_tries_again(copied: Path) -> None:
    results = copied / "results/test"
    store, tracked, failed = results / "mlflow.db", results / "tracked.txt", results / "tracking-failed.txt"
    store.unlink()
    store.mkdir()  # no store can be opened here, whoever asks
    tracked.unlink()
    result = run(copied)
    assert result.returncode == 0, result.stdout
    assert "Entering the runs into MLflow" in result.stdout
    assert "MLflow tracking failed" in result.stdout and "The next run tries again" in result.stdout
    assert (copied / "reports/test/report.html").is_file()
    assert failed.is_file() and not tracked.exists(), "so that there is something to do"
    store.rmdir()
    result = run(copied)
    assert result.returncode == 0 and "runs entered" in result.stdout, result.stdout
    assert store.is_file() and "tracking failed" not in result.stdout
    assert tracked.is_file() and not failed.exists(), "so that there is nothing to do"


def test_snakemake_writes_its_own_report(finished: Path) -> None:
    result = run(finished, "--report", "snakemake.html")
    assert result.returncode == 0, result.stdout
    assert (finished / "snakemake.html").stat().st_size > 10_000


def test_the_default_study_is_quick_and_config_changes_it(copied: Path) -> None:
    result = run(copied, "--dry-run", "--config", "prompts=4", "study=mine", config=None)
    assert result.returncode == 0, result.stdout
    assert "reports/mine/report.html" in result.stdout


def test_a_part_of_the_full_grid_is_planned_and_what_it_needs_is_said(workplace: Path) -> None:
    result = run(Path(), "--dry-run", "--config", "pairs=llama31_8b", config="configs/paper.yaml")
    output = result.stdout
    assert result.returncode == 0, output
    assert re.search(r"[\d]+ cells in \d+ jobs · up to [\d.]+ GB \(\w+\) of GPU memory · about [\d.,]+ hours", output)
    assert re.search(r"prompts +8\n", output), "each data set is fetched by a job of its own"
    assert not Path("results").exists()
