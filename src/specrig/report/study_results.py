"""What a finished study holds, by name: every table and every sentence of its report, each computed on first use.

`report.outline` says which of them a report shows, where, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.quality import loss_against_speed
from specrig.analysis.traffic import crossovers, traffic_table
from specrig.report import (
    audit_tables,
    claim_tables,
    conclusions,
    engine_table,
    machine,
    prose,
    variant_tables,
)
from specrig.report.advice import advice_grid, advised
from specrig.report.first_page import first_table, what_to_use
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import cell_name
from specrig.report.method_tables import headline_grid, methods_grid, task_grid
from specrig.report.quality_table import quality_grid, read_quality
from specrig.report.round_tables import efficiency_grid, positions_grid, repetition_grid
from specrig.report.simulated_table import simulated_grid, simulated_table
from specrig.report.speed_tables import acceptance_grid, cells_grid, speedup_grid
from specrig.report.study_data import StudyData, training_curves
from specrig.report.summary import acceptance_summary, audit_failures, best_rows, speedup_summary
from specrig.report.traffic_table import crossover_sentences, traffic_grid
from specrig.study.traffic import Limits


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table: the data with full precision, and the same for readers.

    paper: for print, instead of `formatted`, where that fits on no page.
    """

    frame: pd.DataFrame
    formatted: Grid
    paper: Grid | None = None

    @property
    def printed(self) -> Grid:
        """The table for a page of paper."""
        return self.paper or self.formatted


class StudyResults:
    """The results of a study."""

    def __init__(self, study: StudyData, audit: pd.DataFrame | None = None) -> None:
        """audit: see `summary.audit_failures`; None means the study's own."""
        self.study = study
        self.name = study.name
        audit = study.audit() if audit is None else audit
        self.audit = audit if audit is None or "method" not in audit else study.labelled(audit)
        self.folder = Path(study.config.get("results", "results"), study.name)

    # Data of which tables and sentences are made.

    cells = cached_property(lambda self: self.study.table.assign(failed=audit_failures(self.study.table, self.audit)))
    """Every cell, with the audit's verdict in the column `failed`."""
    best = cached_property(lambda self: best_rows(self.cells))
    """The cells at each method's best k."""

    @cached_property
    def speedups(self) -> pd.DataFrame:
        """`summary.speedup_summary`."""
        return speedup_summary(self.cells, self.study.records, self.study.tasks, self.audit)

    @cached_property
    def acceptances(self) -> pd.DataFrame:
        """`summary.acceptance_summary`."""
        return acceptance_summary(self.cells, self.study.records, self.study.tasks, self.audit)

    compared = cached_property(lambda self: engine_table.comparison(self.study))
    """`engine_table.comparison`."""
    judged = cached_property(lambda self: claim_tables.reproduction(self.study, self.cells))
    """`claim_tables.reproduction`: the verdicts on reported figures."""

    advised = cached_property(lambda self: advised(self.study, self.cells))
    """`advice.advised`: the fastest lossless cell of each pair and task."""

    curves = cached_property(lambda self: training_curves(self.study.folder / "models"))
    """`training_curves` of the study."""
    trained = cached_property(lambda self: not self.curves.empty)
    """Whether the study trained models."""
    target_trained = cached_property(lambda self: self.trained and "target" in set(self.curves["model"]))
    """Whether a target is among them."""
    learnt = cached_property(lambda self: self.trained or not self.study.learning_points.empty)
    """Whether it did, or has a draft or head with a learning curve."""

    def runs(self, of: Callable[[Any], object]) -> bool:
        """Whether any measured cell has `of`."""
        return any(of(members[0].cell) for members in self.study.cells.values())

    # Tables that are files too: data and the same for readers.

    @cached_property
    def speedup(self) -> DataTable:
        """Speedups by method and task."""
        formatted = speedup_grid(self.speedups, self.study.tasks, self.name)
        return DataTable(self.speedups, formatted)

    @cached_property
    def acceptance(self) -> DataTable:
        """Acceptance by method and task."""
        return DataTable(self.acceptances, acceptance_grid(self.acceptances, self.study.tasks, self.name))

    @cached_property
    def every_cell(self) -> DataTable:
        """Every measured cell."""
        return DataTable(self.cells, cells_grid(self.cells, self.study))

    @cached_property
    def engines(self) -> DataTable:
        """The same cells in several engines."""
        return DataTable(self.compared, engine_table.engines_grid(self.compared, self.study))

    @cached_property
    def simulated(self) -> DataTable:
        """The cells with declared acceptance."""
        frame = simulated_table(self.study)
        return DataTable(frame, simulated_grid(frame, self.name))

    @cached_property
    def traffic(self) -> DataTable:
        """Servers under load."""
        limits = Limits.model_validate((self.study.config.get("traffic") or {}).get("goodput") or {})
        frame = traffic_table(self.study.under_load[0].values(), limits)
        frame = self.study.labelled(frame)
        formatted, paper = (traffic_grid(frame, self.name, short=short) for short in (False, True))
        return DataTable(frame, formatted, paper)

    crossovers = cached_property(lambda self: self.study.labelled(crossovers(self.traffic.frame)))
    """`analysis.traffic.crossovers`."""
    crossover_sentences = cached_property(lambda self: crossover_sentences(self.crossovers))
    """From how many requests at once each method does not pay."""

    @cached_property
    def claims(self) -> DataTable:
        """Reported figures with their verdicts; print has their counts, since hundreds of claims fit on no page."""
        return DataTable(self.judged, claim_tables.reproduction_grid(self.judged, self.name), self.claim_counts)

    # Tables that only reports show. None: there is nothing to show.

    methods = cached_property(lambda self: methods_grid(self.study))
    """The methods: what they are, at which k they ran, whether they are lossless, where they come from."""
    headline = cached_property(lambda self: headline_grid(self.speedups, self.acceptances, self.name))
    """Each method's speedup and acceptance over all tasks."""

    @cached_property
    def by_task(self) -> dict[str, Grid]:
        """Task -> everything measured on it, each method at its best k."""
        return {task: task_grid(self.best[self.best["task"] == task], task, self.study) for task in self.study.tasks}

    positions = cached_property(lambda self: positions_grid(self.study, self.best))
    """Acceptance by draft position."""
    efficiency = cached_property(lambda self: efficiency_grid(self.cells, self.name))
    """Measured / predicted speedup, and where the time goes."""

    repetition = cached_property(lambda self: repetition_grid(self.cells, self.study.tasks, self.name))
    """How much plain outputs repeat themselves."""
    claim_counts = cached_property(lambda self: claim_tables.sources_grid(self.judged, self.name))
    """Reported figures by source and verdict."""

    @cached_property
    def decided_claims(self) -> Grid | None:
        """The reported figures that were measured, cannot be true, or contradict the theory."""
        found = self.judged[self.judged["verdict"].isin(claim_tables.DECIDED)]
        return claim_tables.decided_grid(found, self.name) if len(found) else None

    scored = cached_property(lambda self: self.study.labelled(read_quality(self.study.folder)))
    """`analysis.quality.quality_table`, as the study's folder has it."""
    quality = cached_property(lambda self: quality_grid(self.scored, self.name) if len(self.scored) else None)
    """Scores of the outputs."""
    losses = cached_property(lambda self: loss_against_speed(self.scored, self.best))
    """`analysis.quality.loss_against_speed`."""
    verdicts = cached_property(lambda self: None if self.audit is None else audit_tables.verdict_grid(self.audit))
    """The audit's verdicts, one row a test."""

    audit_summary = cached_property(lambda self: None if self.audit is None else audit_tables.summary_grid(self.audit))
    """The audit's verdicts by method and kind of test."""
    models = cached_property(lambda self: machine.models_grid(self.study))
    """The models that the study made or stored."""

    recorded = cached_property(lambda self: machine.environment_grid(self.study.jobs))
    """Everything that jobs recorded of their environment."""

    @cached_property
    def failed(self) -> Grid | None:
        """The cells that failed."""
        rows = [[job.name, slug, why] for job in self.study.jobs for slug, why in job.failed.items()]
        rows += [["under load", name, why] for name, why in self.study.under_load[1].items()]
        caption = "Cells that failed. The tables lack them."
        return _reasons(rows, caption, f"tab:{self.name}-failed")

    @cached_property
    def skipped(self) -> Grid | None:
        """The cells that their engine cannot run; None for a study that this version cannot plan."""
        from specrig.study.load import load_study
        from specrig.study.problems import StudyError

        try:
            refusals = load_study(self.study.folder / "study.json").grid.refusals
        except StudyError:
            return None
        # What this machine lacks, the machine that measured may have had.
        tried = {*self.study.every, *("/".join((*job.key, slug)) for job in self.study.jobs for slug in job.failed)}
        kept = [each for each in refusals if each.cell.name not in tried]
        rows = [["/".join(each.cell.method_key[:2]), cell_name(each.cell), each.reason] for each in kept]
        return _reasons(rows, "Cells that were not run, since their engine cannot.", f"tab:{self.name}-skipped")

    @cached_property
    def advice(self) -> Grid | None:
        """The fastest lossless method of each pair and task, with its memory."""
        return advice_grid(self.advised, self.cells) if len(self.advised) else None

    first_table = cached_property(
        lambda self: first_table(self.speedups, self.acceptances, self.study.tasks, self.name)
    )
    """The table of the first page."""
    what_to_use = cached_property(lambda self: what_to_use(self.advised, self.speedups))
    """The first page's sentences on what to use when."""

    contexts = cached_property(lambda self: variant_tables.along(self.best, self.study.cells, "context"))
    """What was measured at several contexts."""
    contexts_grid = cached_property(lambda self: variant_tables.along_grid(self.contexts, "context", self.name))
    """The same for readers."""
    turns = cached_property(lambda self: variant_tables.along(self.best, self.study.cells, "turn"))
    """What was measured turn by turn."""
    turns_grid = cached_property(lambda self: variant_tables.along_grid(self.turns, "turn", self.name))
    """The same for readers."""

    # Sentences. Empty: there is nothing to say.

    @cached_property
    def byline(self) -> str:
        """The line below the title in print: device, day and how much was measured."""
        day = f"measured {self.study.captured[:10]}" if self.study.captured else ""
        if self.study.simulated and not len(self.cells):
            extent = prose.extent(self.simulated.frame, " whose acceptance was declared,")
        else:
            extent = prose.extent(self.cells)
        return " · ".join(filter(None, [machine.device(self.study.environment), day, extent]))

    @cached_property
    def facts(self) -> list[str]:
        """Machine, date, code, and how much was measured."""
        commit = machine.commit(self.study.environment)
        facts = [
            machine.machine(self.study.environment),
            f"measured {self.study.captured[:16].replace('T', ' ')} UTC" if self.study.captured else "",
            f"code {commit}" if commit else "",
            prose.scope(self.cells, self.simulated.frame, self.study.tasks),
        ]
        return [fact for fact in facts if fact]

    findings = cached_property(lambda self: conclusions.findings(self.speedups, self.best, self.study.tasks))
    """`conclusions.findings`: the fastest method of each engine and pair."""
    certainty = cached_property(lambda self: prose.certainty(self.study.unsettled))
    """In how many prompts timing did not settle."""

    @cached_property
    def abstract(self) -> list[str]:
        """That plain decoding failed the audit, the conclusions, and what the audit found."""
        found = [finding.paragraph for finding in self.findings]
        wrong = [self.baseline_warning] if self.baseline_warning else []
        return [*wrong, *found, *([self.audit_sentence] if self.audit is not None else [])]

    @cached_property
    def warnings(self) -> list[str]:
        """What a reader must know before trusting a figure."""
        failed = {"/".join((*job.key, slug)) for job in self.study.jobs for slug in job.failed}
        lost = len(failed - self.study.every.keys()) + len(self.study.under_load[1])
        untested = engine_table.untested(self.study).items()
        return [
            *conclusions.repetition_warnings(self.cells),
            *(
                f"Untested on hardware: the engine {engine} ({reason}). Check its figures."
                for engine, reason in untested
            ),
            *([f"{_cells(lost)} failed. The tables lack what failed."] if lost else []),
        ]

    @property
    def later_warnings(self) -> list[str]:
        """The warnings that `abstract` does not hold."""
        return [text for text in self.warnings if text not in self.abstract]

    @cached_property
    def notes(self) -> list[str]:
        """What engines, device and machine did while the study ran."""
        study = self.study
        energy = machine.energy_note(study.jobs)
        return [
            *machine.engine_notes(study.jobs, self.cells),
            *(
                f"{_cells(len(rows))} of {engine} ({', '.join(rows['pair'].unique())}): {note}."
                for (engine, note), rows in self.cells[self.cells["notes"] != ""].groupby(
                    ["engine", "notes"], sort=False
                )
            ),
            *([energy] if energy else []),
        ]

    @cached_property
    def differing(self) -> str:
        """What was not the same in all jobs."""
        keys = machine.differing(self.study.jobs)
        return f"Jobs did not all run in the same environment. These differ: {', '.join(keys)}." if keys else ""

    contexts_sentences = cached_property(
        lambda self: variant_tables.sentences(self.contexts, "context", self.study.cells)
    )
    """Which method falls below plain decoding first as the context grows, and why."""
    turns_sentences = cached_property(lambda self: variant_tables.sentences(self.turns, "turn", self.study.cells))
    """Which method loses most over the turns of conversations, and why."""
    best_k_sentences = cached_property(lambda self: conclusions.best_k_sentences(self.cells, self.speedups))
    """The best k of each method that ran at several."""
    low_efficiency = cached_property(lambda self: prose.low_efficiency(self.cells))
    """A warning where much of the possible speed is lost outside forward passes."""

    engines_sentence = cached_property(lambda self: engine_table.sentence(self.compared))
    """In how many comparisons the engines' acceptance agrees."""
    audit_sentence = cached_property(lambda self: audit_tables.sentence(self.audit) if self.audit is not None else "")
    """What the audit found."""

    baseline_warning = cached_property(
        lambda self: audit_tables.baseline_warning(self.audit) if self.audit is not None else ""
    )
    """That plain decoding itself failed the audit."""

    claims_sentence = cached_property(lambda self: claim_tables.sentence(self.judged))
    """How many reported figures have each verdict."""
    limits = cached_property(
        lambda self: prose.limits(self.study, self.cells, self.speedups, trained=self.target_trained)
    )
    """What the figures do not say."""


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def _reasons(rows: list[list[str]], caption: str, label: str) -> Grid | None:
    """A table of cells with reasons; None without rows."""
    entries = [[GridEntry(text) for text in row] for row in rows]
    return Grid(["job", "cell", "reason"], entries, labels=3, caption=caption, label=label) if rows else None
