"""The verdicts of a study's tests, as one family: a study of correct methods seldom has any failure.

A study has dozens of tests, in files that are written one by one with p-values and an empty `passed`. `with_verdicts`
fills it when all are read (`StudyData.audit`). Holm's procedure (1979) keeps the family's rate however tests depend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from specrig.cell import Cell

EXACT, UNIFORMITY, REFERENCE = (
    "exact distribution",
    "per-position uniformity",
    "baseline against transformers' generate",
)
LLAMA_CPP = "baseline against llama.cpp on the file"
BASELINE_TESTS = {REFERENCE: "transformers' own generate", LLAMA_CPP: "llama.cpp on the GGUF file"}
"""The tests of plain decoding itself -> what it is compared with."""
IDENTITY, UNDER_LOAD = "token identity", "token identity under load"
"""Names of the tests. The last two are of records, and of servers' answers to many requests at once."""
LOSSY = "lossy by design; "
"""Beginning of a finding on a method that does not claim to be lossless."""
FAMILY_WISE = 0.01
"""Probability that a study whose methods are all correct has even one failed test."""


def holm_failures(p_values: Sequence[float], level: float = FAMILY_WISE) -> NDArray[np.bool_]:
    """Which tests fail by Holm's procedure: the smallest of m p-values at level / m, the next at level / (m - 1), and
    so on to the first that passes.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    failed = np.zeros(len(values), dtype=bool)
    failed[order] = np.logical_and.accumulate(values[order] <= level / np.arange(len(values), 0, -1))
    return failed


def with_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with verdicts: those with a p-value and no verdict are one family, the others keep theirs."""
    if not {"p_value", "passed"} <= set(rows):
        return rows
    undecided = rows["passed"].isna() & rows["p_value"].notna()
    passed = rows["passed"].astype(object)
    passed[undecided] = ~holm_failures(rows.loc[undecided, "p_value"].tolist())
    return rows.assign(passed=passed)


def audited_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of the exact audit: each engine, method, variant and temperature, with the smallest and the largest k.

    The temperatures are those above 0 at which the study runs the method in any variant; 1 where it runs greedily only.
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
                setting = {"pair": "", "task": "", "temperature": temperature, "batch_size": 1}
                found += [own[k].model_copy(update=setting) for k in sorted({min(own), max(own)})]
    return found


def strictest_level(cells: Sequence[Cell]) -> float:
    """The level for the smallest p-value of a study with these `cells`: the family's rate over the number of its tests.

    Lossy methods count here though they get no verdict, so the level that is applied is a little less strict.
    """
    sampled = [cell for cell in cells if cell.temperature > 0]
    records = {(cell.engine, cell.pair, cell.method, cell.variant, cell.task, cell.temperature) for cell in sampled}
    return FAMILY_WISE / max(1, len(records) + len(audited_cells(cells)))
