"""The table of servers under load, and the sentence that says from how many requests at once speculation does not pay."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.statistics import LEVEL
from specrig.analysis.traffic import TAIL
from specrig.report import grid
from specrig.report.grid import Column, Grid, GridEntry, percent, text
from specrig.report.labels import named, task_name
from specrig.report.speed_tables import device_columns

CAPTION = (
    f"Servers under load, method and baseline in turns, with {percent(LEVEL)} intervals over blocks of time. Load: "
    "requests at once, or arriving per second. Errors: requests without an answer, time-outs first; each counts as infinitely late. "
    "Predicted: the speedup that follows from τ and from plain decoding's throughput at other loads, as if drafts were free. "
    "τ: tokens per pass by the server's own counters. Same: the share of answers that equal the baseline's first "
    "answer to the same prompt. Client: processor time of the client, as a share of one core."
)
FEW = f"–: too few requests ({TAIL} must lie beyond a percentile), or too few blocks for an interval."
SATURATED = (
    "§ more requests arrive than the server answers: it has no steady latency, so the figures grow with the length of "
    "the run."
)
LATE = "¶ the client was late by more than a tenth of the median latency; latencies count from when a request was due."


def traffic_grid(table: pd.DataFrame, study: str, *, short: bool = False) -> Grid:
    """`analysis.traffic.traffic_table` for readers. short: the columns that fit on paper."""
    group: dict[str, Column] = {
        "engine": text("engine"),
        "pair": text("pair"),
        "task": lambda row: task_name(row["task"]),
        "T": lambda row: f"{row['temperature']:g}",
    }
    columns: dict[str, Column] = {
        "load": _load,
        "method": _name,
        "sent": text("sent"),
        "errors": _errors,
        "tokens/s": lambda row: grid.measured(row, "tokens_per_s", 1, units=row["counted"]),
        "speedup": lambda row: grid.measured(row, "speedup", units=None),
        "predicted": grid.figure("predicted_speedup"),
        "TTFT p50 (ms)": lambda row: _time(row, "ttft_p50"),
        "a token p50 (ms)": lambda row: _time(row, "tpot_p50"),
        "latency p50 (ms)": lambda row: _time(row, "latency_p50"),
        "p95": lambda row: _time(row, "latency_p95"),
        "p99": lambda row: _time(row, "latency_p99"),
        "goodput/s": lambda row: grid.measured(row, "goodput", units=None),
        "τ": grid.figure("acceptance_length"),
        "same": grid.share("identical"),
        "client": grid.share("client_share"),
    }
    if short:
        on_paper = ("load", "method", "errors", "tokens/s", "speedup", "latency p50 (ms)", "p95", "τ")
        columns = {name: columns[name] for name in on_paper}
    else:
        columns |= device_columns(table)
    notes = [FEW] if len(table) else []
    notes += [SATURATED] if table["saturated"].astype(bool).any() else []
    notes += [LATE] if table["client_late"].astype(bool).any() else []
    about: dict[str, Any] = {"caption": CAPTION, "label": f"tab:{study}-traffic", "notes": notes}
    return Grid.of(row_dicts(table), {**group, **columns}, labels=6, groups=len(group), **about)


def _load(row: dict[str, Any]) -> str:
    signs = (" §" if row["saturated"] else "") + (" ¶" if row["client_late"] else "")
    return f"{row['load']:g}{'' if row['loop'] == 'closed' else '/s'}{signs}"


def _name(row: dict[str, Any]) -> str:
    name = named(row) + (f" k={row['k']}" if row["k"] else "")
    return f"plain, beside {name}" if row["side"] == "baseline" else name


def _errors(row: dict[str, Any]) -> str:
    return f"{row['timed_out']} + {row['other_errors']}" if row["timed_out"] or row["other_errors"] else "0"


def _time(row: dict[str, Any], name: str) -> GridEntry:
    if math.isinf(row[name]):
        return GridEntry("∞")
    return grid.measured(row, name, 0, units=None if math.isnan(row[name]) else 0, scale=1000)


def crossover_sentences(crossovers: pd.DataFrame) -> list[str]:
    """One sentence a curve: from how many requests at once the method does not pay."""
    found = []
    for row in row_dicts(crossovers):
        name = named(row)
        where = (
            f"{name} (k = {row['k']}, {row['engine']}, {row['pair']}, {task_name(row['task'])}, T = "
            f"{row['temperature']:g})"
        )
        value, low, high = (row[f"crossover{end}"] for end in ("", "_low", "_high"))
        if math.isnan(value):
            continue
        known = not math.isnan(low) and not math.isnan(high)
        spread = f"{percent(LEVEL)} interval {_at(low, row)} to {_at(high, row)}" if known else ""
        aside = f" (crossover {spread})" if spread else ""
        if value == 0:
            text = f"is slower than plain decoding at the smallest load, {row['least']:g} at once{aside}"
        elif math.isinf(value):
            text = f"pays at every measured load, up to {row['most']:g} requests at once{aside}"
        else:
            text = f"pays up to {value:.1f} requests at once" + (f", {spread}" if spread else "")
        found.append(f"{where} {text}.")
    return found


def _at(value: float, row: dict[str, Any]) -> str:
    return (
        "below the smallest load" if value == 0 else f"beyond {row['most']:g}" if math.isinf(value) else f"{value:.1f}"
    )
