"""The figure of throughput against batch size: a panel for each task that ran at several sizes, and for no other."""

from __future__ import annotations

import pytest
from synthetic import cell_records

from specrig.analysis.cells import cells_table
from specrig.cell import Cell
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.figures.sweeps import batching

SIZES = {"code": (1, 2, 4), "translation": (1,)}


def measured(task: str) -> list[Cell]:
    return [
        Cell(engine="native", pair="p", method="draft_model", k=4, task=task, temperature=0, batch_size=size)
        for size in SIZES[task]
    ]


def test_a_task_of_one_batch_size_has_no_panel() -> None:
    cells = [*measured("code"), *measured("translation")]
    table = cells_table([record for cell in cells for record in cell_records(cell, alpha=0.6)])
    figure = batching(table, ["translation", "code"], SCREEN)
    [panel] = [ax for ax in figure.axes if ax.get_visible()]
    assert panel.get_title() == "code"
    assert list(panel.get_lines()[0].get_xdata()) == [1, 2, 4]


def test_without_batches_there_is_nothing_to_show() -> None:
    table = cells_table([record for cell in measured("translation") for record in cell_records(cell, alpha=0.6)])
    with pytest.raises(NothingError, match="several batch sizes"):
        batching(table, ["translation"], SCREEN)
