"""The order of methods, reported and measured: two tables and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.order import FACTORS, METRICS, OrderComparison, compare_orders
from specrig.results import grid
from specrig.results.citations import with_paper
from specrig.results.claim_tables import reported_claims
from specrig.results.grid import Column, Grid, GridEntry
from specrig.results.labels import task_name
from specrig.results.study_data import StudyData
from specrig.results.summary import best_rows

SETTING = "source target reported_task temperature hardware batch metric engine pair tasks exact".split()
COLUMNS = [*SETTING, "methods", "tau", "tau_low", "tau_high", "changed", "surely_changed", "reported", "measured"]
CHANGES = [*SETTING, "ahead", "behind", "reported", "measured", "certainty", *FACTORS]
WORDS = dict(zip(FACTORS, ("acceptance", "draft cost", "verification cost", "the loop"), strict=True))
SURE = 0.975
PANELS = (6, 4)
"""The figure shows at most so many rankings, on a wide sheet and on a narrow one: those of the most methods."""


def comparisons(study: StudyData, cells: pd.DataFrame) -> list[OrderComparison]:
    """`analysis.order.compare_orders` for a study's claims. cells: the table of cells with the column `failed`."""
    claims = reported_claims(study)
    return compare_orders(claims, best_rows(cells), study.cells) if claims and len(cells) else []


def order_table(found: Sequence[OrderComparison]) -> pd.DataFrame:
    """One row per comparison with the columns `COLUMNS`. The orders are written `best > next > …`, with their figures."""
    rows = []
    for each in found:
        own = each.ranking.figures
        rows.append(
            {
                **_setting(each),
                "methods": len(each.measured),
                "tau": each.tau,
                "tau_low": each.low,
                "tau_high": each.high,
                "changed": len(each.changes),
                "surely_changed": sum(change.certainty >= SURE for change in each.changes),
                "reported": _order({name: own[name] for name in each.measured}),
                "measured": _order(each.measured),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def changes_table(found: Sequence[OrderComparison]) -> pd.DataFrame:
    """One row per pair of methods that changed places, with the columns `CHANGES` (see `analysis.order.Change`)."""
    rows = [
        {
            **_setting(each),
            **{name: getattr(change, name) for name in ("ahead", "behind", "reported", "measured", "certainty")},
            **change.factors,
        }
        for each in found
        for change in each.changes
    ]
    return pd.DataFrame(rows, columns=CHANGES)


def _setting(each: OrderComparison) -> dict[str, Any]:
    claim = each.ranking.claim
    shared = {name: getattr(claim, name) for name in ("source", "target", "hardware", "batch", "metric")}
    here = {
        "engine": each.engine,
        "pair": each.pair,
        "temperature": each.temperature,
        "tasks": " ".join(each.tasks),
        "exact": each.exact,
    }
    return {**shared, **here, "reported_task": claim.task}


def _ranked(figures: Mapping[str, float]) -> list[str]:
    """The methods by falling figure."""
    return sorted(figures, key=lambda name: -figures[name])


def _order(figures: Mapping[str, float]) -> str:
    return " > ".join(f"{name} {figures[name]:.2f}" for name in _ranked(figures))


def sentence(table: pd.DataFrame) -> str:
    """A sentence on how far the orders agree, over the rankings of speeds and over those of acceptance."""
    if table.empty:
        return "No source ranks two methods that this study measured."
    parts = []
    for column, words in (("speedup", "speed"), ("acceptance_length", "acceptance length")):
        rows = table[table["metric"].map(METRICS) == column]
        if len(rows):
            surely, against = int((rows["tau_low"] > 0).sum()), int((rows["tau_high"] < 0).sum())
            parts.append(
                f"over {len(rows)} reported orders by {words}, the median of Kendall's τ is {grid.number(rows['tau'].median())} "
                f"({grid.number(rows['tau'].min())} to {grid.number(rows['tau'].max())}); τ is certainly above "
                f"zero in {surely} and certainly below in {against}"
            )
    text = ", and ".join(parts)
    exact = int(table["exact"].astype(bool).sum())
    return (
        f"{text[0].upper()}{text[1:]}. In {exact} of {len(table)} comparisons the prompts are the source's own; in the "
        "others only the kind of task is the same."
    )


def reasons_sentence(changes: pd.DataFrame) -> str:
    """A sentence on what most often decided that two methods changed places; empty where none did for a known reason."""
    known = changes.dropna(subset=list(FACTORS))
    if known.empty:
        return ""
    main = known[list(FACTORS)].idxmax(axis=1).value_counts()
    counts = ", ".join(f"{WORDS[str(name)]} in {count}" for name, count in main.items())
    return f"What most favoured the method that moved up, over the {len(known)} changes in orders by speed: {counts}."


def order_grid(table: pd.DataFrame, study: str) -> Grid:
    """`order_table` for readers."""
    columns: dict[str, Column] = {
        "source": _source,
        "by": lambda row: str(row["metric"]).replace("_", " "),
        "reported for": _conditions,
        "measured on": _measured_on,
        "reported order": lambda row: _names(row["reported"]),
        "measured order": lambda row: _names(row["measured"]),
        "Kendall's τ": grid.range_of("tau", "tau_low", "tau_high"),
        "changed": lambda row: GridEntry(
            str(row["changed"]), f"({row['surely_changed']} surely)" if row["changed"] else ""
        ),
    }
    return Grid.of(
        row_dicts(table),
        columns,
        labels=6,
        caption=(
            "The order of methods, reported and measured, each method at its best k. Kendall's τ is 1 for the same "
            "order and -1 for the reverse, with a 95 % interval over prompts. Changed: pairs of methods that changed "
            "places. * not the source's own prompts."
        ),
        label=f"tab:{study}-order",
        groups=2,
    )


def changes_grid(changes: pd.DataFrame, study: str) -> Grid:
    """`changes_table` for readers, orders by speed only: why methods changed places."""
    known = changes.dropna(subset=list(FACTORS)).sort_values("certainty", ascending=False, kind="stable")

    def factor(name: str) -> Column:
        return lambda row: GridEntry(grid.number(row[name]), bold=name == max(FACTORS, key=lambda each: row[each]))

    columns: dict[str, Column] = {
        "source": _source,
        "reported for": _conditions,
        "measured on": _measured_on,
        "changed places": lambda row: f"{row['behind']} before {row['ahead']}",
        "reported": grid.figure("reported"),
        "measured": grid.figure("measured"),
        "certainty": grid.share("certainty"),
        **{word: factor(name) for name, word in WORDS.items()},
    }
    return Grid.of(
        row_dicts(known),
        columns,
        labels=4,
        caption=(
            "Methods that changed places in orders by speed, and why. Reported, measured: speed of the method that is "
            "ahead here as a multiple of the other's. Certainty: share of random draws over prompts in which this method is ahead. The "
            "product of the last four columns is the measured quotient (the loop: time outside forward passes); bold: the "
            "factor that favours this method most."
        ),
        label=f"tab:{study}-order-changes",
        groups=1,
    )


def _source(row: Mapping[str, Any]) -> str:
    """The source without what its rows in the table would repeat: its first two parts."""
    return with_paper(", ".join(row["source"].split(", ")[:2]))


def _conditions(row: Mapping[str, Any]) -> str:
    parts = [
        row["target"].rsplit("/", 1)[-1],
        task_name(row["reported_task"]),
        f"T = {row['temperature']:g}",
        row["hardware"],
    ]
    return ", ".join(str(part) for part in parts if part and part == part)


def _measured_on(row: Mapping[str, Any]) -> str:
    tasks = str(row["tasks"]).split()
    what = task_name(tasks[0]) if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    sign = "" if row["exact"] else " *"
    return f"{row['pair']}: {what}{sign}"


def _names(order: str) -> str:
    return " > ".join(part.split(" ")[0] for part in order.split(" > "))
