"""Tables of a synthetic study: what is in them, which k is best, and that the texts can be pasted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import write_job, write_study

from specrig.analysis.cells import COLUMNS
from specrig.cell import Cell
from specrig.measurement.records import RecordError, read_records
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import method_name
from specrig.report.latex import PACKAGES, STRIKING, latex
from specrig.report.method_tables import task_grid
from specrig.report.prose import power_sentence
from specrig.report.speed_tables import cells_grid
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.report.summary import audit_failures, best_rows, speedup_summary
from specrig.report.table_files import file_names, write_tables


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("tables") / "synthetic_study", tasks=("code", "creative_writing"))


@pytest.fixture(scope="module")
def written(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all its tables."""
    folder = tmp_path_factory.mktemp("written")
    assert write_tables(study, folder) == [folder / name for name in file_names()]
    return folder


def test_columns(written: Path) -> None:
    cells = pd.read_csv(written / "cells.csv")
    assert list(cells.columns[: len(COLUMNS)]) == COLUMNS
    assert len(cells) == (3 + 1 + 3 + 3) * 2
    speedups = pd.read_csv(written / "speedup.csv")
    assert list(speedups["method"]) == ["draft_model", "adaptive_k", "ngram", "medusa"]
    assert {"code", "code_low", "code_high", "creative_writing", "geometric_mean", "geometric_mean_low"} <= set(
        speedups
    )
    assert list(pd.read_csv(written / "acceptance.csv")["k"]) == list(speedups["k"])


def test_best_k_and_geometric_mean(written: Path) -> None:
    cells, speedups = (pd.read_csv(written / f"{name}.csv") for name in ("cells", "speedup"))
    for _, row in speedups.iterrows():
        sweep = cells[cells["method"] == row["method"]]
        means = np.log(sweep.set_index("k")["speedup"]).groupby(level="k").mean()
        assert row["k"] == means.idxmax()
        assert row["geometric_mean"] == pytest.approx(np.exp(means.max()), rel=1e-9)
        assert row["geometric_mean_low"] < row["geometric_mean"] < row["geometric_mean_high"]
        # The mean over tasks is surer than each task alone.
        assert row["geometric_mean_high"] - row["geometric_mean_low"] < row["code_high"] - row["code_low"]


def test_same_records_same_bytes(study: Path, written: Path, tmp_path: Path) -> None:
    for path in write_tables(study, tmp_path):
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name


def test_other_temperatures_take_the_k_chosen_when_cold() -> None:
    rows = [
        {"temperature": 0.0, "k": 2, "task": "code", "speedup": 1.5},
        {"temperature": 0.0, "k": 4, "task": "code", "speedup": 1.8},
        {"temperature": 1.0, "k": 2, "task": "code", "speedup": 1.6},
        {"temperature": 1.0, "k": 4, "task": "code", "speedup": 1.2},
        {"temperature": 0.7, "k": 2, "task": "code", "speedup": 1.1},
    ]
    cells = pd.DataFrame(rows).assign(engine="native", pair="p", method="draft_model", variant="", batch_size=1)
    best = best_rows(cells).set_index("temperature")["k"].to_dict()
    assert best == {0.0: 4, 1.0: 4, 0.7: 2}


def test_what_a_cell_suffers_from_stands_beside_its_speedup(study: Path) -> None:
    results = StudyResults(read_study(study))
    cells = results.best[results.best["task"] == "code"]
    noted = cells.assign(
        notes=[*["answers arrive in a few pieces", "", "answers were cached"], *[""] * (len(cells) - 3)]
    )
    results.cells = noted
    assert any(note.endswith("of native (tiny): answers were cached.") for note in results.notes)
    for table in (task_grid(noted, "code", results.study), cells_grid(noted, results.study)):
        marks = {row[table.header.index("speedup")].note.rpartition("] ")[2] for row in table.rows}
        assert {"a", "b"} <= marks and table.notes[-2:] == [
            "a: answers arrive in a few pieces.",
            "b: answers were cached.",
        ]


def test_a_k_that_lacks_a_task_does_not_win() -> None:
    rows = [("code", 4, 1.5), ("story", 4, 1.2), ("code", 8, 2.5)]
    cells = pd.DataFrame(rows, columns=["task", "k", "speedup"]).assign(
        engine="native", pair="p", method="draft_model", variant="", batch_size=1, temperature=0.0
    )
    assert set(best_rows(cells)["k"]) == {4}


def test_lossy_is_marked_and_never_bold(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", methods=("medusa",), ks=(2,), tasks=("code",))
    write_tables(study, tmp_path / "tables")
    text = (tmp_path / "tables" / "speedup.md").read_text()
    assert "medusa †" in text and "† lossy" in text and "**" not in text
    assert r"medusa $^\dagger$" in (tmp_path / "tables" / "speedup.tex").read_text()


def test_a_batch_without_drafts_is_never_bold(tmp_path: Path) -> None:
    """Its speedup has another denominator: single prompts, not the same batch."""
    cells = [
        Cell(engine="native", pair="tiny", method=method, k=k, task="code", temperature=0.0, batch_size=8)
        for method, k in (("naive_batching", 0), ("draft_model", 4))
    ]
    study = write_study(tmp_path / "s", methods=(), tasks=("code",))
    for cell in cells:
        write_job(study, [cell])
    results = StudyResults(read_study(study))
    for formatted in (results.speedup.formatted, results.headline, results.by_task["code"]):
        bold = {row[0].text: any(entry.bold for entry in row) for row in formatted.rows}
        assert bold == {"naive_batching": False, "draft_model": True}
        assert any("one after another" in note for note in formatted.notes)
    needed = results.cells.assign(
        prompts_needed=[9.0 if each == "draft_model" else 99.0 for each in results.cells["method"]]
    )
    assert "needs 72 prompts and the worst 72" in power_sentence(needed), "of the cells that draft"


def test_audit_strikes_through(study: Path, tmp_path: Path) -> None:
    audit = pd.DataFrame(
        [{"method": "ngram", "task": "code", "passed": False}, {"method": "draft_model", "passed": True}]
    )
    write_tables(study, tmp_path, audit)
    markdown, latex = ((tmp_path / f"speedup.{kind}").read_text() for kind in ("md", "tex"))
    rows = {line.split("|")[1].strip(): line for line in markdown.splitlines() if line.startswith("| ")}
    assert "~~" in rows["ngram"] and "~~" not in rows[r"draft\_model"]
    assert r"\struck{" in latex and r"\newcommand{\struck}" in latex
    cells = pd.read_csv(tmp_path / "cells.csv")
    assert set(cells[cells["failed"]][["method", "task"]].itertuples(index=False, name=None)) == {("ngram", "code")}


def test_a_verdict_on_one_variant_spares_the_others() -> None:
    cells = pd.DataFrame([{"method": "medusa", "variant": variant, "task": "code"} for variant in ("", "n2", "n3")])
    verdicts = [{"method": "medusa", "variant": variant, "task": None, "passed": False} for variant in (None, "n3")]
    assert audit_failures(cells, pd.DataFrame(verdicts)).tolist() == [True, False, True]
    assert not audit_failures(cells, None).any()


def test_the_studys_own_audit_is_read(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", methods=("draft_model",), ks=(2,), tasks=("code",))
    (study / "audit").mkdir()
    (study / "audit" / "records.csv").write_text("method,task,passed\ndraft_model,code,False\n")
    write_tables(study, tmp_path / "tables")
    assert "~~" in (tmp_path / "tables" / "speedup.md").read_text()


def test_settings_become_levels_when_they_vary(tmp_path: Path) -> None:
    study = write_study(
        tmp_path / "s",
        methods=("draft_model",),
        ks=(2, 4),
        tasks=("code",),
        engines=("native", "vllm"),
        temperatures=(0.0, 1.0),
    )
    write_tables(study, tmp_path / "tables")
    header = (tmp_path / "tables" / "speedup.md").read_text().splitlines()[2]
    assert header.startswith("| engine | temperature | method | k | code |")
    assert len(pd.read_csv(tmp_path / "tables" / "speedup.csv")) == 4


def test_latex_is_balanced_and_escaped() -> None:
    formatted = Grid(
        ["a_b", "50 %"],
        [[GridEntry("x & y_1", bold=True), GridEntry("1.0", "[0.9, 1.1]")]],
        caption="100 % of #1",
        label="tab:a_b",
    )
    text = latex(formatted)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert r"\textbf{x \& y\_1}" in text and r"50\,\%" in text and r"100\,\% of \#1" in text
    assert not [line for line in body if re.search(r"(?<!\\)[%#]", line.removesuffix("%"))]
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{")
    heading, row = [line for line in body if line.endswith(r"\\")]
    # The number and its interval are columns of their own.
    assert len(re.findall(r"(?<!\\)&", heading)) == 1 and len(re.findall(r"(?<!\\)&", row)) == 2
    assert r"\begin{tabular}{lS[table-format=1.1]@{\;}l}" in text and r"\multicolumn{2}{c}" in heading


def test_latex_says_once_what_rows_share_and_breaks_over_pages() -> None:
    rows = [
        [GridEntry(pair), GridEntry(f"m{number}"), GridEntry("-1.5")]
        for number in range(3)
        for pair in ("large", "small")
    ]
    text = latex(Grid(["pair", "method", "gain"], rows, labels=2, groups=1))
    assert text.count("large") == text.count("small") == 1
    assert text.index("large") < text.index("m2") < text.index("small")
    assert "S[table-format=-1.1]" in text and "-1.5" in text and r"\begin{longtable}" not in text
    long = latex(Grid(["method", "gain"], [[GridEntry("m"), GridEntry("1.5")]] * 60))
    assert r"\begin{longtable}{lS[table-format=1.1]}" in long and r"\endhead" in long and r"\begin{table}" not in long


def test_numbers_of_a_column_are_aligned_at_the_decimal_point() -> None:
    entries = [GridEntry("12.5"), GridEntry("1,234.25 †", bold=True), GridEntry("–"), GridEntry("0.5", struck=True)]
    text = latex(Grid(["m", "x"], [[GridEntry("m"), entry] for entry in entries]))
    assert r"S[table-format=4.2,table-space-text-post={$^\dagger$}]" in text, (
        "room for the widest number and for its sign"
    )
    assert r"\bfseries 1234.25 {\,$^\dagger$}" in text and "& {--}" in text and r"{\struck{0.5}}" in text
    shares = latex(Grid(["m", "rate"], [[GridEntry("m"), GridEntry("50 %")], [GridEntry("n"), GridEntry("5 %")]]))
    assert r"{rate (\%)}" in shares and "& 50 " in shares, "the heading says once that it is in per cent"


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed: the tables are not compiled here"
)
def test_every_table_compiles_and_fits_its_page(written: Path, tmp_path: Path) -> None:
    tables = [shutil.copy(path, tmp_path) for path in sorted(written.glob("*.tex"))]
    assert len(tables) > 5
    inputs = "".join(f"\\input{{{Path(path).name}}}\n\\clearpage\n" for path in tables)
    packages = r"\usepackage[T1]{fontenc}\usepackage[margin=1in]{geometry}" + PACKAGES + STRIKING
    document = rf"\documentclass{{article}}{packages}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "document.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout
    assert "Overfull" not in result.stdout and "too large" not in result.stdout, result.stdout


def test_markdown_survives_pipes() -> None:
    assert r"a\|b" in grid.markdown(Grid(["m"], [[GridEntry("a|b")]]))


@pytest.mark.parametrize(
    ("value", "formatted"), [(float("nan"), "–"), (None, "–"), (float("inf"), "–"), (1234.567, "1,234.57")]
)
def test_numbers_for_people(value: float | None, formatted: str) -> None:
    assert grid.number(value) == formatted


def test_a_study_without_records_still_has_tables(tmp_path: Path) -> None:
    study = tmp_path / "s"
    study.mkdir()
    (study / "study.json").write_text(json.dumps({"study": "s", "tasks": ["code"]}))
    write_tables(study, tmp_path / "tables")
    assert pd.read_csv(tmp_path / "tables" / "speedup.csv").empty


def test_a_missing_study_and_a_cut_record_are_named(study: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"study\.json does not exist"):
        write_tables(tmp_path / "nowhere", tmp_path)
    cut = write_study(tmp_path / "cut", methods=("draft_model",), ks=(2,), tasks=("code",))
    path = next(cut.rglob("code-*.jsonl"))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(RecordError, match=re.escape(path.name)):
        write_tables(cut, tmp_path)
    path.unlink()
    with pytest.raises(RecordError, match="measure the job again"):
        write_tables(cut, tmp_path)


def test_jobs_that_left_the_study_are_passed_over(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", methods=("draft_model",), ks=(2,), tasks=("code",))
    write_job(study, [Cell(engine="native", pair="tiny", method="eagle", k=5, task="code", temperature=0.0)])
    found = read_study(study)
    assert set(found.table["method"]) == {"draft_model"}


def test_summary_uses_prompts_not_cells(study: Path) -> None:
    """The interval of a task's column is that of its cell, over its prompts."""
    found = read_study(study)
    summary = speedup_summary(found.table, found.records, found.tasks)
    row = summary.iloc[0]
    cell = found.table[
        (found.table["method"] == row["method"]) & (found.table["k"] == row["k"]) & (found.table["task"] == "code")
    ]
    assert (row["code"], row["code_low"]) == (cell["speedup"].item(), cell["speedup_low"].item())
    files = [path for job in found.jobs for path in job.files.values()]
    assert sum(len(list(read_records(path))) for path in files) == len(found.records)


@pytest.mark.parametrize(
    ("method", "variant", "formatted"),
    [
        ("eagle2", "nodes12-top_k4", "eagle2 (nodes=12, top_k=4)"),
        ("tree", "branching2_2_1_1", "tree (branching=2-2-1-1)"),
        ("draft_model", "acceptanceblock", "draft_model (acceptance=block)"),
        ("of_another_version", "width3", "of_another_version (width3)"),
    ],
)
def test_variants_are_named_for_people(method: str, variant: str, formatted: str) -> None:
    assert method_name(method, variant=variant) == formatted


def test_what_has_left_the_study_is_in_no_audit_and_no_load(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made_up", methods=("ngram", "medusa"))
    (study / "audit").mkdir(exist_ok=True)
    for name in ("exact-native", "exact-vllm", "records"):
        rows = "".join(f"native,{method},code,exact,True,\n" for method in ("ngram", "medusa"))
        (study / f"audit/{name}.csv").write_text(f"engine,method,task,test,passed,p_value\n{rows}")
    audit = read_study(study).audit()
    assert audit is not None and audit["method"].tolist() == ["ngram", "medusa"] * 2, "no engine vllm in this study"
    config = json.loads((study / "study.json").read_text())
    config["methods"] = [entry for entry in config["methods"] if entry["method"] == "ngram"]
    (study / "study.json").write_text(json.dumps(config))
    found = read_study(study)
    audit = found.audit()
    assert audit is not None and audit["method"].tolist() == ["ngram"] * 2
    assert {record.cell.method for record in found.records} == {"ngram"}


def test_a_table_that_is_too_wide_has_fewer_columns_and_says_so() -> None:
    header = ["method", "reported", *(f"measured {number}" for number in range(9)), "mean", "reason"]
    row = [GridEntry("p_eagle"), *(GridEntry("12.34", "[10.00, 14.00]") for _ in range(11)), GridEntry("because " * 9)]
    wide = Grid(header, [row], labels=1, trailing=1)
    narrow = grid.fitting(wide, 80)
    assert narrow.header[:2] == ["method", "reported"] and narrow.header[-1] == "mean", (
        "the reason goes first, the result stays"
    )
    assert narrow.notes == [f"{len(header) - len(narrow.header)} more columns: page and CSV."]
    assert len(narrow.rows[0]) == len(narrow.header) and grid.fitting(narrow, 80) is narrow
