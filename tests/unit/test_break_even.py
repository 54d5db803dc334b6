"""The acceptance that pays, against runs that have exactly this acceptance; and what money buys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import DRAFT_PASS_S, LOOP_S, TARGET_PASS_S, WIDTH_COST, cell_records, write_study

from specrig import cli
from specrig.analysis.break_even import break_even
from specrig.analysis.cells import cells_table
from specrig.cell import Cell
from specrig.models.facts.devices import find_device
from specrig.planning.advice import size_of
from specrig.planning.break_even import predicted_needs
from specrig.reporting.figures.break_even_figure import break_even_figure
from specrig.reporting.figures.panels import SCREEN
from specrig.results.study_data import read_study
from specrig.results.study_results import StudyResults


def cell(method: str = "draft_model", k: int = 4, task: str = "code") -> Cell:
    return Cell(engine="native", pair="p", method=method, k=k, task=task, temperature=0.0)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_the_acceptance_that_is_said_to_pay_pays_exactly(k: int) -> None:
    table = break_even(cells_table(cell_records(cell(k=k), alpha=0.6, prompts=8, length=400)))
    (row,) = table.to_dict("records")
    cost = (TARGET_PASS_S * (1 + WIDTH_COST * k) + k * DRAFT_PASS_S + LOOP_S) / (TARGET_PASS_S + LOOP_S)
    assert row["round_cost"] == pytest.approx(cost, rel=0.03)
    assert row["draft_cost_per_round"] == pytest.approx(k * DRAFT_PASS_S / TARGET_PASS_S, rel=0.03)
    for speedup in ("1", "1.5"):
        assert row[f"tokens_for_{speedup}"] == pytest.approx(float(speedup) * row["round_cost"])
        alpha = row[f"alpha_for_{speedup}"]
        again = cells_table(cell_records(cell(k=k), alpha=alpha, prompts=32, length=400, seed=5))
        assert again["speedup"].item() == pytest.approx(float(speedup), rel=0.05)


def test_alpha_is_stated_for_full_chains_only_and_not_where_none_is_enough() -> None:
    records = [*cell_records(cell("ngram"), alpha=0.5), *cell_records(cell("ngram", task="chat"), alpha=0.5)]
    slow = cell_records(cell(k=1), alpha=0.9)
    for record in slow:
        record.run.decode_s *= 2
    table = break_even(cells_table([*records, *slow])).set_index("method")
    assert table.loc["ngram", "tasks"] == 2 and np.isnan(table.loc["ngram", "alpha_for_1"])
    assert table.loc["ngram", "tokens_for_1"] > 1
    assert table.loc["draft_model", "tokens_for_1"] > 2 and np.isnan(table.loc["draft_model", "alpha_for_1"])


def test_contexts_have_rows_and_curves_of_their_own(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path / "study", methods=("draft_model",), ks=(4,), tasks=("code@256", "code@1024", "chat@256")
    )
    results = StudyResults(read_study(folder))
    frame = results.break_even.frame
    assert frame.set_index("context")["tasks"].to_dict() == {256: 2, 1024: 1}
    grid = results.break_even.formatted
    assert grid.header[2] == "context" and {row[2].text for row in grid.rows} == {"256", "1024"}
    figure = break_even_figure(results.cells, results.study.tasks, SCREEN)
    (panel,) = figure.axes
    assert panel.get_xlabel() == "context (tokens)"
    assert [list(line.get_xdata()) for line in panel.lines] == [[256, 1024], [256, 1024], [256, 1024], [256]]


def test_batch_sizes_have_a_curve(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", methods=("draft_model",), ks=(4,), tasks=("code",))
    cells = StudyResults(read_study(folder)).cells
    figure = break_even_figure(pd.concat([cells, cells.assign(batch_size=8)]), ["code"], SCREEN)
    (panel,) = figure.axes
    assert panel.get_xlabel() == "batch size" and list(panel.lines[0].get_xdata()) == [1, 8]


def test_a_study_has_the_table_and_advice_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_study(tmp_path / "study", ks=(2, 4), tasks=("code", "translation"))
    results = StudyResults(read_study(folder))
    frame = results.break_even.frame
    assert len(frame) == 2 + 1 + 2 + 2 and set(frame["tasks"]) == {2}
    assert "faster than plain decoding in" in results.break_even_sentence
    (folder / "tables").mkdir()
    for name, table in (("cells", results.cells), ("break_even", frame)):
        table.to_csv(folder / "tables" / f"{name}.csv", index=False)
    assert cli.main(["advise", "embedded", "--study", str(folder)]) == 0
    printed = capsys.readouterr().out
    row = frame[(frame["method"] == "draft_model") & (frame["k"] == 4)].iloc[0]
    assert "Acceptance needed: costs as measured" in printed
    assert f"{row['round_cost']:.2f}" in printed and f"{row['alpha_for_1.5']:.2f}" in printed


def test_without_measurements_the_roofline_says_what_a_batch_takes() -> None:
    target, draft = size_of("meta-llama/Llama-3.1-8B-Instruct"), size_of("meta-llama/Llama-3.2-1B-Instruct")
    assert target and draft
    needs = {
        (row.k, row.batch_size): row for row in predicted_needs(target, draft, find_device("RTX 4090"), "bfloat16")
    }
    assert needs[4, 1].cost < needs[4, 128].cost, "a large batch computes, so verification costs"
    alpha, more = needs[4, 1].alphas
    assert alpha and more and 0 < alpha < more < 1


@pytest.mark.parametrize("price", [None, 2.5])
def test_a_price_adds_what_money_buys(price: float | None, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", methods=("draft_model",), ks=(4,), tasks=("code",), replicates=2)
    config = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(config | {"price_per_hour": price}))
    results = StudyResults(read_study(folder))
    assert ("tokens_per_unit" in results.cells) == (price is not None)
    assert ("tokens per unit of currency" in results.every_cell.formatted.header) == (price is not None)
    if price is None:
        return
    records = results.study.records
    for column, runs in (
        ("tokens_per_unit", [record.run for record in records]),
        ("baseline_tokens_per_unit", [record.baseline for record in records]),
    ):
        hours = sum(run.prefill_s + run.decode_s for run in runs) / 3600
        assert results.cells[column].item() == pytest.approx(sum(len(run.tokens) for run in runs) / hours / price)
