"""The figure of speedup against latency shows each latency's own speedup, and the same draft without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import cell_records, write_job, write_study

from specrig.analysis.cells import cells_table
from specrig.cell import Cell
from specrig.report.documents.contents import contents
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.figures.sweeps import latency, with_latency
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.study.config import MethodEntry


def swept(task: str) -> list[Cell]:
    entry = MethodEntry.model_validate({"method": "remote_draft", "latency_ms": [20, 0, 5]})
    remote = [
        ("remote_draft", k, variant, options)
        for k in (2, 4)
        for variant, options in entry.variants()
        if k == 4 or "5" in variant
    ]
    cells = [*remote, ("draft_model", 4, "", {"acceptance": "exact"})]
    return [
        Cell(engine="native", pair="p", method=method, k=k, task=task, temperature=0, variant=variant, options=options)
        for method, k, variant, options in cells
    ]


def test_a_line_goes_through_the_speedups_in_the_order_of_latency() -> None:
    measured = [cell for task in ("code", "translation") for cell in swept(task)]
    table = cells_table([record for cell in measured for record in cell_records(cell, alpha=0.6)])
    found = with_latency(table, measured)
    assert set(found["method"]) == {"remote_draft"} and set(found["k"]) == {4}, "the k that ran with most latencies"
    figure = latency(table, measured, ["code", "translation"], SCREEN)
    for ax, task in zip(figure.axes, ("code", "translation"), strict=True):
        line, local, one = ax.get_lines()
        assert list(line.get_xdata()) == [0, 5, 20]
        own = found[found["task"] == task].set_index("latency_ms")["speedup"]
        assert list(line.get_ydata()) == [own[0], own[5], own[20]]
        alone = table[(table["task"] == task) & (table["method"] == "draft_model")]["speedup"].item()
        assert set(local.get_ydata()) == {alone} and set(one.get_ydata()) == {1.0}


def test_without_a_network_there_is_nothing_to_show() -> None:
    plain = [cell for cell in swept("code") if cell.method == "draft_model"]
    table = cells_table([record for cell in plain for record in cell_records(cell, alpha=0.6)])
    with pytest.raises(NothingError, match="no method of this study drafted over a network"):
        latency(table, plain, ["code"], SCREEN)


@pytest.mark.parametrize("remote", [False, True])
def test_the_report_speaks_of_a_network_only_where_there_was_one(tmp_path: Path, remote: bool) -> None:
    folder = write_study(
        tmp_path / "study", methods=["draft_model", "remote_draft"][: 1 + remote], ks=[4], tasks=["code"]
    )
    if remote:
        write_job(
            folder,
            [cell.model_copy(update={"pair": "tiny"}) for cell in swept("code") if cell.method == "remote_draft"],
        )
    document = contents(StudyResults(read_study(folder)), "html", ["latency"] if remote else [])
    assert ("A network between draft and target" in [ready.section.title for ready in document.sections]) is remote
