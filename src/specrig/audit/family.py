"""The tests of a study as one family: which rows fail, so that a study of correct methods seldom has any failure at
all.

A study holds some dozens of tests, in files that are written one by one. Each states its p-value and leaves `passed`
empty; who reads them all (`StudyData.audit`) asks `judged` for the verdicts. Holm's procedure (1979) holds the family's
rate whatever the tests have to do with each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from specrig.cell import Cell
    from specrig.study.study import Study

FAMILY_WISE = 0.01
"""Chance that a study whose methods are all correct has even one failed test."""


def failures(p_values: Sequence[float], level: float = FAMILY_WISE) -> NDArray[np.bool_]:
    """Which tests fail by Holm's procedure: the smallest of m p-values at level / m, the next at level / (m - 1), to
    the first that passes.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    failed = np.zeros(len(values), dtype=bool)
    failed[order] = np.logical_and.accumulate(values[order] <= level / np.arange(len(values), 0, -1))
    return failed


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Verdicts for the rows that hold a p-value and no verdict yet, as one family; the other rows keep theirs."""
    if not {"p_value", "passed"} <= set(rows):
        return rows
    undecided = rows["passed"].isna() & rows["p_value"].notna()
    passed = rows["passed"].astype(object)
    passed[undecided] = ~failures(rows.loc[undecided, "p_value"].tolist())
    return rows.assign(passed=passed)


def probes(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each row of the exact audit: each engine, method, variant and temperature, of a sweep the smallest
    and the largest k.

    The temperatures are those above 0 at which the study runs the method, whatever the variant; 1 where it only decodes
    greedily.
    """
    methods: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        methods.setdefault((cell.engine, cell.method), []).append(cell)
    found = []
    for members in methods.values():
        for variant in sorted({cell.variant for cell in members}):
            for temperature in sorted({cell.temperature for cell in members if cell.temperature > 0}) or [1.0]:
                every = [cell for cell in members if cell.variant == variant]
                own = {cell.k: cell for cell in [cell for cell in every if cell.temperature == temperature] or every}
                place = {"pair": "", "task": "", "temperature": temperature, "batch_size": 1}
                found += [own[k].model_copy(update=place) for k in sorted({min(own), max(own)})]
    return found


def strictest(study: Study) -> float:
    """The level at which the smallest p-value of the study is judged: the family's rate over the tests that it plans.

    Rows of lossy methods count here though nobody judges them, so the smallest p-value is in fact judged a little less
    strictly.
    """
    sampled = [cell for cell in study.grid.cells if cell.temperature > 0]
    records = {(cell.engine, cell.pair, cell.method, cell.variant, cell.task, cell.temperature) for cell in sampled}
    return FAMILY_WISE / max(1, len(records) + len(probes(study.grid.cells)))
