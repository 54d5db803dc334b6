"""Which tables and figures a study has. The HTML report, the PDF and the folder for papers all show these same objects.

A new table is a property of `StudyResults` and, if it is a file of its own, a name in `names.TABLES`. A new figure is a
name in `names.FIGURES` and its drawing in `figures`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from specrig.analysis.disturbance import undisturbed
from specrig.analysis.optimal_k import optimal_k
from specrig.analysis.order import OrderComparison
from specrig.results import audit_tables as verdicts
from specrig.results import order_tables as order
from specrig.results.advice import advised
from specrig.results.claim_tables import reproduction, reproduction_grid, sources_grid
from specrig.results.engine_table import comparison, engines_grid
from specrig.results.grid import Grid
from specrig.results.method_tables import headline_grid, methods_grid, task_grid
from specrig.results.names import TABLES
from specrig.results.optimal_k_table import optimal_k_grid
from specrig.results.round_tables import efficiency_grid, positions_grid, repetition_grid
from specrig.results.simulated_table import simulated_grid, simulated_table
from specrig.results.speed_tables import acceptance_grid, cells_grid, speedup_grid
from specrig.results.study_data import StudyData
from specrig.results.summary import acceptance_summary, audit_failures, best_rows, speedup_summary


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the data with full precision, and the same for readers. paper: instead of `shown` where that fits on no
    page.
    """

    frame: pd.DataFrame
    shown: Grid
    paper: Grid | None = None

    @property
    def printed(self) -> Grid:
        """The table for a page."""
        return self.paper or self.shown


class StudyResults:
    """The tables of a study, each computed on first use."""

    def __init__(self, study: StudyData, audit: pd.DataFrame | None = None) -> None:
        """audit: see `summary.audit_failures`; None means the study's own."""
        self.study = study
        self.audit = study.audit() if audit is None else audit

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every cell, with the audit's verdict in the column `failed`."""
        return self.study.table.assign(failed=audit_failures(self.study.table, self.audit))

    @cached_property
    def best(self) -> pd.DataFrame:
        """The cells at each method's best k."""
        return best_rows(self.cells)

    @cached_property
    def speedups(self) -> pd.DataFrame:
        """`summary.speedup_summary`."""
        return speedup_summary(self.cells, self.study.records, self.study.tasks, self.audit)

    @cached_property
    def acceptance(self) -> pd.DataFrame:
        """`summary.acceptance_summary`."""
        return acceptance_summary(self.cells, self.study.records, self.study.tasks, self.audit)

    @cached_property
    def compared(self) -> pd.DataFrame:
        """`engines.comparison`."""
        return comparison(self.study)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """`reproduction.reproduction`: the verdicts on reported figures."""
        return reproduction(self.study)

    @cached_property
    def optimal(self) -> pd.DataFrame:
        """`analysis.optimal_k.optimal_k` over undisturbed cells."""
        return optimal_k(undisturbed(self.cells), self.study.records)

    @cached_property
    def advised(self) -> pd.DataFrame:
        """`advised.advised`: the fastest lossless cell of each pair and task."""
        return advised(self.study, self.cells, self.optimal)

    @cached_property
    def orders(self) -> list[OrderComparison]:
        """Reported orders of methods against the measured ones."""
        return order.comparisons(self.study, self.cells)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Name in `TABLES` -> table."""
        study, label = self.study, self.study.name
        simulated = simulated_table(study)
        orders, changes = order.order_table(self.orders), order.changes_table(self.orders)
        found = {
            "cells": Table(self.cells, cells_grid(self.cells, study)),
            "speedup": Table(self.speedups, speedup_grid(self.speedups, study.tasks, label, study.replicates)),
            "acceptance": Table(self.acceptance, acceptance_grid(self.acceptance, study.tasks, label)),
            "engines": Table(self.compared, engines_grid(self.compared, study)),
            # Hundreds of claims fit on no page.
            "reproduction": Table(self.judged, reproduction_grid(self.judged, label), sources_grid(self.judged, label)),
            "optimal_k": Table(self.optimal, optimal_k_grid(self.optimal, label)),
            "simulated": Table(simulated, simulated_grid(simulated, label)),
            "order": Table(orders, order.order_grid(orders, label)),
            "order_changes": Table(changes, order.changes_grid(changes, label)),
        }
        return {name: found[name] for name in TABLES}

    @cached_property
    def methods(self) -> Grid:
        """The methods of the study: what they are, at which k they ran, whether they are lossless, where they come
        from.
        """
        return methods_grid(self.study)

    @cached_property
    def headline(self) -> Grid:
        """Each method's speedup and acceptance over all tasks."""
        return headline_grid(self.speedups, self.acceptance, self.study.name)

    @cached_property
    def by_task(self) -> dict[str, Grid]:
        """Task -> everything measured on it, each method at its best k."""
        return {task: task_grid(self.best[self.best["task"] == task], task, self.study) for task in self.study.tasks}

    @cached_property
    def positions(self) -> Grid:
        """Acceptance by draft position."""
        return positions_grid(self.study, self.best)

    @cached_property
    def efficiency(self) -> Grid:
        """Measured / predicted speedup, and where the time goes."""
        return efficiency_grid(self.cells, self.study.name)

    @cached_property
    def repetition(self) -> Grid:
        """How much plain outputs repeat themselves."""
        return repetition_grid(self.cells, self.study.tasks, self.study.name)

    @cached_property
    def verdicts(self) -> Grid | None:
        """The audit's verdicts; None where it has not run."""
        return None if self.audit is None else verdicts.verdict_grid(self.audit)
