"""The first page of a report: the answer, one table of methods and tasks, and what to use when."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.report import grid
from specrig.report.advice import SHOWN
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import BASELINES, named, task_name
from specrig.report.speed_tables import mean_units, setting, with_bold
from specrig.report.summary import LEVELS, MEAN, base_setting, in_order

ROWS = 8
"""The table has at most this many methods, the fastest ones."""
TASKS = 6
"""With more tasks than these the table has only their mean, so that it is readable at arm's length."""


def first_table(speedups: pd.DataFrame, acceptances: pd.DataFrame, tasks: list[str], study: str) -> Grid | None:
    """Speedup and acceptance length by method and task for one engine and pair; None without speedups.

    speedups, acceptances: `speedup_summary` and `acceptance_summary`. study: its name.
    """
    rows = _of_page(speedups, speedups)
    rows = rows[~rows["method"].isin(list(BASELINES))]
    if rows.empty:
        return None
    tasks = tasks if len(tasks) <= TASKS else []
    rows = with_bold(rows, [*tasks, MEAN]).merge(acceptances, on=[*LEVELS, "k"], suffixes=("", "_accepted"))
    shown = in_order(rows).head(ROWS)

    def entry(row: dict[str, Any], column: str, length: str) -> GridEntry:
        known = f"τ {grid.number(row[length], 1)}" if row[length] == row[length] else ""
        return GridEntry(grid.number(row[column]), known, bool(row[f"{column}_bold"]), bool(row["failed"]))

    entries = [
        [
            GridEntry(named(row, lossless=row["lossless"])),
            GridEntry(str(row["k"] or "–")),
            entry(row, MEAN, "mean_acceptance_length"),
            GridEntry(
                grid.interval(row[f"{MEAN}_low"], row[f"{MEAN}_high"], units=mean_units(row))
                .strip("[]")
                .replace(", ", "–")
                or "–"
            ),
            *(entry(row, task, f"{task}_acceptance_length") for task in tasks),
        ]
        for row in row_dicts(shown)
    ]
    more = len(rows) - len(shown)
    return Grid(
        ["method", "k", "mean of tasks", "95 % interval", *map(task_name, tasks)],
        entries,
        labels=2,
        caption=(
            "Speedup over plain decoding at each method's best k, and tokens a pass (τ)"
            f"{setting(rows)}.{f' {more} more under Speedup.' if more else ''}"
        ),
        label=f"tab:{study}-first",
    )


def what_to_use(advised: pd.DataFrame, speedups: pd.DataFrame) -> list[str]:
    """Two sentences: which method to use on which task, and how sure that is; empty where nothing can be advised.

    advised: see `advice.advised`. speedups: `speedup_summary`, which decides the engine and pair.
    """
    rows = row_dicts(_of_page(advised, speedups))
    if not rows:
        return []
    tasks: dict[str, list[str]] = {}
    for row in rows:
        k = f" (k {row['k']})" if row["k"] else ""
        name = f"{named(row)}{k}" if row["speedup"] > 1 else "plain decoding"
        tasks.setdefault(name, []).append(task_name(row["task"]))
    use = "; ".join(f"{name} for {_and(names)}" for name, names in tasks.items())
    unsure = [task_name(row["task"]) for row in rows if row["speedup"] > 1 and not row["speedup_low"] > 1]
    close = {task_name(row["task"]): row["rivals"] for row in rows if row["rivals"] and row["speedup"] > 1}
    if unsure:
        sure = f"On {_and(unsure)} these prompts show no certain gain (the interval holds 1)."
    elif close:
        rivals = list(dict.fromkeys(rival for names in close.values() for rival in names))[:SHOWN]
        where = "every task" if len(close) == len(rows) else _and([*close])
        sure = f"On {where} others' intervals reach into the best one's ({', '.join(rivals)}), so what a method needs may decide."
    else:
        sure = "On each task the interval of the best method lies above those of all others."
    return [f"Use {use}.", sure]


def _of_page(frame: pd.DataFrame, speedups: pd.DataFrame) -> pd.DataFrame:
    """The rows, in their base setting, of the first engine and pair with two methods, which the ranking above shows; of
    the first of all where none has two.
    """
    if frame.empty or speedups.empty:
        return frame
    settings = [(key, base_setting(rows)) for key, rows in speedups.groupby(["engine", "pair"], sort=False)]
    engine, pair = next((key for key, rows in settings if len(rows) > 1), settings[0][0])
    return base_setting(frame[(frame["engine"] == engine) & (frame["pair"] == pair)])


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
