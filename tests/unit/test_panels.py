"""Figures of many tasks: panels in rows that a reader can take in, alike in their limits, labelled at their edges."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from synthetic import write_study

from specrig.report.figures import plots, sweeps
from specrig.report.figures.panels import COLUMN, PAGE, PAPER_SHEETS, SCREEN, Sheet
from specrig.report.figures.style import rc
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults

TASKS = tuple(f"task{number}" for number in range(14))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    folder = tmp_path_factory.mktemp("tasks") / "many"
    study = write_study(folder, methods=("draft_model", "ngram"), ks=(2, 4), tasks=TASKS, prompts=2, length=24)
    return StudyResults(read_study(study))


def _sweep(results: StudyResults, sheet: Sheet) -> Figure:
    with plt.rc_context(rc(sheet.size)):
        figure = sweeps.k_sweep(results.cells, list(TASKS), sheet)
        plt.close(figure)
    return figure


def _panels(figure: Figure) -> list[Axes]:
    return [panel for panel in figure.axes if panel.get_visible()]


@pytest.mark.parametrize(("sheet", "side"), [(PAGE, 5), (COLUMN, 2)], ids=["page", "column"])
def test_a_sweep_of_many_tasks_wraps_into_rows(results: StudyResults, sheet: Sheet, side: int) -> None:
    """Fourteen tasks make rows of 5, 5 and 4. Before, they stood in one row, which no screen could show."""
    figure = _sweep(results, sheet)
    panels = _panels(figure)
    assert len(panels) == 2 * len(TASKS)
    assert len({round(panel.get_position().x0, 3) for panel in panels}) == side
    assert figure.get_figheight() <= sheet.tallest


def test_panels_of_a_measure_have_the_same_limits_and_labels_at_their_edges(results: StudyResults) -> None:
    figure = _sweep(results, SCREEN)
    figure.draw_without_rendering()
    panels = _panels(figure)
    assert len({panel.get_xlim() for panel in panels}) == 1
    assert len({panel.get_ylim() for panel in panels}) == 2
    labelled = [panel for panel in panels if panel.get_ylabel()]
    assert len(labelled) == 6 and len({round(panel.get_position().x0, 3) for panel in labelled}) == 1
    assert len({round(panel.get_position().x0, 3) for panel in panels}) == 5
    for panel in panels:
        numbered = any(label.get_visible() and label.get_text() for label in panel.get_yticklabels())
        assert numbered == bool(panel.get_ylabel())


@pytest.mark.parametrize(("tasks", "numbered"), [(4, True), (14, False)])
def test_a_map_on_paper_has_no_numbers_that_would_overlap(results: StudyResults, tasks: int, numbered: bool) -> None:
    with plt.rc_context(rc(PAGE.size)):
        figure = plots.heat_map(results.speedups, list(TASKS[:tasks]), PAGE)
        plt.close(figure)
    assert bool(figure.axes[0].texts) == numbered


@pytest.mark.parametrize(
    ("panels", "most", "side"), [(5, 4, 3), (8, 4, 4), (9, 4, 3), (6, 6, 6), (7, 6, 4), (1, 4, 1), (0, 4, 0)]
)
def test_rows_are_about_equally_long(panels: int, most: int, side: int) -> None:
    assert SCREEN.columns(panels, most) == side


def test_no_text_on_paper_is_smaller_than_seven_and_a_half_points() -> None:
    for sheet in PAPER_SHEETS:
        sizes = [size for name, size in rc(sheet.size).items() if name.endswith(("labelsize", "fontsize", "font.size"))]
        assert min(sheet.small, *sizes) >= 7.5, sheet.name
