"""What a printed report says, section by section. The PDF and the folder for papers render this one outline."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from specrig.results import audit_tables as verdicts
from specrig.results import claim_tables as reproduction
from specrig.results import disturbed_cells as disturbance
from specrig.results import engine_table as engines
from specrig.results import machine as environment
from specrig.results import order_tables as order
from specrig.results import prose
from specrig.results import simulated_table as simulated
from specrig.results.conclusions import conclusion, drift_sentence, repetition_warnings
from specrig.results.floors import floor_notes
from specrig.results.grid import Grid, GridEntry, number
from specrig.results.optimal_k_table import optimal_k_sentence
from specrig.results.quality_table import read_quality
from specrig.results.study_data import StudyData, training_curves
from specrig.results.study_results import StudyResults

LONGEST = 1000
"""Rows of the longest table that is printed. Setting one takes Typst .7 MB of memory a row."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The place of a figure."""

    name: str


@dataclass(frozen=True, slots=True)
class Caution:
    """A paragraph that warns."""

    text: str


@dataclass(slots=True)
class Section:
    """A section: paragraphs, tables and figures in the order of reading.

    appendix: it stands behind the references. detail: likewise in the paper, whose columns it would flood.
    """

    title: str
    items: list[str | Caution | Grid | Shown] = field(default_factory=list)
    appendix: bool = False
    detail: bool = False


@dataclass(slots=True)
class Outline:
    """The whole report. facts: lines below the title. definitions: term -> meaning."""

    title: str
    facts: list[str]
    abstract: list[str]
    sections: list[Section]
    definitions: dict[str, str]

    def tables(self) -> Iterator[Grid]:
        """All tables, in order."""
        for section in self.sections:
            yield from (item for item in section.items if isinstance(item, Grid))


def outline(results: StudyResults, figures: Collection[str]) -> Outline:
    """The outline of a study's report; sections without content are left out. figures: the names of those that have
    data.
    """
    study = results.study
    first = next((job.environment for job in study.jobs if job.environment), {})
    captured = sorted({str(job.environment["captured"]) for job in study.jobs if job.environment.get("captured")})
    commit = environment.commit(first)
    facts = [
        environment.machine(first),
        f"measured {captured[0][:16].replace('T', ' ')} UTC" if captured else "",
        f"code {commit}" if commit else "",
        prose.scope(results),
    ]
    long = _too_long(results)
    found = [
        replace(section, items=[long.get(id(item), item) for item in section.items])
        for section in _sections(results, figures)
        if section.items
    ]
    abstract = conclusion(results.speedups, results.best, study.tasks)
    if results.orders:
        abstract.append(order.sentence(results.tables["order"].frame))
    if results.audit is not None:
        abstract.append(verdicts.sentence(results.audit))
    return Outline(
        f"Speculative decoding: {study.name}", [fact for fact in facts if fact], abstract, found, prose.DEFINITIONS
    )


def _sections(results: StudyResults, figures: Collection[str]) -> Iterator[Section]:
    study, tables, cells = results.study, results.tables, results.cells
    trained = not training_curves(study.folder / "models").empty
    warnings = [
        disturbance.warning(cells, Path(study.config.get("results", "results"), study.name)),
        *repetition_warnings(cells),
        *(f"Untested on hardware: the engine {engine} ({why})." for engine, why in engines.untested(study).items()),
    ]
    notes = [
        *environment.engine_notes(study.jobs, cells),
        *floor_notes([*study.cells.values(), *study.simulated.values()], study.environments),
        *filter(None, [environment.energy_note(study.jobs)]),
        *disturbance.notes(study, cells),
    ]
    yield Section("Machine and models", [*notes, *_models(study), *(Caution(text) for text in warnings if text)])
    yield Section("Methods", [results.methods])
    yield Section("Headline results", [results.headline, Shown("heatmap"), Shown("speedup_bars")])
    yield Section("Results by task", list(results.by_task.values()), detail=True)
    drafts = [tables["optimal_k"].printed] if len(results.optimal) else []
    yield Section(
        "How many tokens to draft", [prose.SWEEP, Shown("k_sweep"), optimal_k_sentence(results.optimal), *drafts]
    )
    yield Section(
        "Acceptance", [tables["acceptance"].printed, results.positions, Shown("emitted_lengths"), results.repetition]
    )
    low = prose.low_efficiency(results)
    yield Section(
        "Measured against predicted",
        [prose.PREDICTION, Shown("predicted"), results.efficiency, *([Caution(low)] if low else [])],
    )
    yield Section("Batches", [prose.BATCHES, Shown("batching")] if "batching" in figures else [])
    yield Section(
        "A network between draft and target", [prose.NETWORK, Shown("latency")] if "latency" in figures else []
    )
    if len(results.compared):
        said = f"{prose.ENGINES} {engines.sentence(results.compared)}"
        yield Section("Engines", [said, tables["engines"].printed, Shown("engines")])
    if results.audit is not None:
        yield Section(
            "Audit", [f"{verdicts.sentence(results.audit)} {prose.AUDIT}", verdicts.summary_grid(results.audit)]
        )
    if results.orders:
        reasons = order.reasons_sentence(tables["order_changes"].frame)
        said = f"{prose.ORDER} {order.sentence(tables['order'].frame)}"
        yield Section(
            "Order against the literature", [said, Shown("order"), tables["order"].printed, *filter(None, [reasons])]
        )
    if len(results.judged):
        said = f"{reproduction.sentence(results.judged)} {prose.REPORTED}"
        telling = results.judged[results.judged["verdict"].isin(reproduction.TELLING)]
        shown = [reproduction.telling_grid(telling, study.name)] if len(telling) else []
        yield Section("Reported against measured", [said, Shown("reported"), tables["reproduction"].printed, *shown])
    quality = read_quality(study.folder, study.name)
    yield Section("Quality of the outputs", [quality] if quality else [])
    if study.simulated:
        yield Section("Simulated acceptance", [simulated.LABEL.capitalize() + ".", tables["simulated"].printed])
    yield Section("Training", [Shown("training")] if "training" in figures else [])
    yield Section("What these numbers do not say", list(prose.limits(results, trained=trained)))
    drift = drift_sentence(cells)
    every: list[str | Caution | Grid | Shown] = [
        tables["speedup"].printed,
        *([drift] if drift else []),
        tables["cells"].printed,
    ]
    yield Section("Every cell", every if len(cells) else [], appendix=True)
    if results.orders and len(tables["order_changes"].printed.rows):
        yield Section("Methods that changed places", [tables["order_changes"].printed], appendix=True)
    yield Section("Every verdict of the audit", [results.verdicts] if results.verdicts else [], appendix=True)


def _too_long(results: StudyResults) -> dict[int, str]:
    """Id of each table that is too long for print -> a sentence that says in which of the study's files it stands."""
    folder = Path(results.study.config.get("results", "results"), results.study.name)
    places = [(table.printed, folder / "tables" / f"{name}.csv") for name, table in results.tables.items()]
    places += [(results.verdicts, folder / "audit" / "records.csv")] if results.verdicts else []
    return {
        id(
            grid
        ): f"{grid.caption.partition('. ')[0].rstrip('.')}: {len(grid.rows):,} rows, too many to print. {file} has them."
        for grid, file in places
        if len(grid.rows) > LONGEST
    }


def _models(study: StudyData) -> list[Grid]:
    rows = environment.model_rows(study.folder)
    if not rows:
        return []
    entries = [[GridEntry(row["pair"]), GridEntry(row["name"]), GridEntry(_size(row["parameters"]))] for row in rows]
    return [
        Grid(
            ["pair", "model", "parameters (millions)"],
            entries,
            labels=2,
            caption="Models made or stored by the study.",
            label=f"tab:{study.name}-models",
        )
    ]


def _size(parameters: int | None) -> str:
    return number(parameters / 1e6, 1 if parameters >= 1e6 else 3) if parameters else "–"
