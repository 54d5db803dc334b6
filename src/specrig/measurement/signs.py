"""The machine's signs: what the system counted during generations that says whether the machine was quiet.

Only `Load`s are read here, no times of runs and no speeds: `analysis.disturbance` marks cells by these signs, and
`attempts` chooses by them. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from specrig.measurement.records import NOT_RECORDED, Load, Record, baselines, groups

WAITED = 0.25
"""Largest tolerated share of their time that the job's threads waited for a processor that they did not keep from each
other. Below it 95 % intervals hold a quiet run's speedup as often as they should, because they widen: beside planted
loads that took 7, 15 and 25 % of two cores, 82 of 84 did; beside one that took 34 %, 25 of 28
(`benchmarks/planted_loads.py`).
"""
STEAL = WAITED
"""Largest tolerated share of the requested processor time that a virtual machine's host gave to others: a thread waits
for it as for another process.
"""
OTHERS = WAITED
"""Largest tolerated share of the job's processors that other processes took: what they take, its threads wait for."""
HELD = 0.1
"""Largest tolerated share of time when the measuring thread neither ran nor was ready (beside 8 busy processes 0.5 to
0.9 %).
"""
HELD_S = 0.5
"""Seconds of `HELD` time in one generation, beyond the usual share of the cell's, that neither a page fault nor another
thread of the job can explain. (While a prompt of 8,192 tokens is read, a thread waits for the other one for 7 % of 25 s.)
"""
SLEPT_S = 0.1
"""Seconds for which the whole machine was suspended. A tenth of a second is far more than clocks differ by themselves.
"""
LIMITS = {"OTHERS": OTHERS, "STEAL": STEAL, "WAITED": WAITED, "HELD": HELD, "HELD_S": HELD_S, "SLEPT_S": SLEPT_S}
TEXTS = {
    "OTHERS": "other processes took {:.0%} of the processors it counts on",
    "STEAL": "the host gave {:.0%} of its processor time to others",
    "WAITED": "its threads waited for a processor for {:.0%} of their time",
    "HELD": "it neither ran nor was ready to for {:.0%} of the time (suspended, or waiting for a disk)",
    "HELD_S": "one generation was held for {:.1f} s beyond what is usual (suspended, or waiting for a disk)",
    "SLEPT_S": "the machine was suspended for {:.1f} s",
}
"""Name of a sign -> words for a cell in which it is above its limit."""

Loads = Sequence[Load | None]
"""What the machine did during each generation; None where it was not recorded."""


def loads(records: Iterable[Record]) -> Loads:
    """The loads of a cell's generations and of its baseline's; a batch counts once."""
    return [run.load for members in groups(records) for run in (members[0].run, *baselines(members))]


def signs(found: Loads, environment: Mapping[str, Any]) -> dict[str, float]:
    """Sign -> its value, for each of `LIMITS` that was recorded: shares of time, and seconds for the last two.

    environment: environment.json of the job, or its content so far.
    """
    values: dict[str, float] = {}
    known = [load for load in found if load is not None]
    if not known:
        return values
    usual = median((load.held_s or 0.0) / max(load.elapsed_s, 1e-9) for load in known)
    values["HELD_S"] = max((load.held_s or 0.0) - usual * load.elapsed_s for load in known)
    if len(known) < len(found):
        return values
    total = known[0]
    for load in known[1:]:
        total = total.plus(load)
    values["SLEPT_S"] = total.slept_s
    if total.elapsed_s <= 0:
        return values
    cores, used_cores = _processors(environment)
    if total.waited_s is not None:
        requested = total.own_s + total.waited_s
        # An engine with more busy threads than processors, as vLLM has on two, waits for itself on a quiet machine too.
        for_itself = max(requested - used_cores * total.elapsed_s, 0.0) if cores else 0.0
        values["WAITED"] = max(total.waited_s - for_itself, 0.0) / max(requested, 1e-9)
    if total.held_s is not None:
        values["HELD"] = total.held_s / total.elapsed_s
    values["STEAL"] = total.steal_s / max(total.own_s + total.steal_s, 1e-9)
    if cores:
        free = max(cores - used_cores, 0)
        values["OTHERS"] = max(total.others_s / total.elapsed_s - free, 0.0) / used_cores
    return values


def disturbance(found: Loads, environment: Mapping[str, Any]) -> float:
    """The largest sign in units of its limit: above 1 the machine was not quiet. 0 where nothing was recorded."""
    return max((value / LIMITS[name] for name, value in signs(found, environment).items()), default=0.0)


def reasons(found: Loads, environment: Mapping[str, Any]) -> list[str]:
    """The signs above their limits, in words."""
    values = signs(found, environment)
    return [text.format(values[name]) for name, text in TEXTS.items() if values.get(name, 0.0) > LIMITS[name]]


def is_busy(load: Load, environment: Mapping[str, Any]) -> bool:
    """Whether other processes took more of the job's processors than is tolerated, while the job itself rested."""
    return signs([load], environment).get("OTHERS", 0.0) > OTHERS


def verdict(found: Iterable[str], *, recorded: bool) -> str:
    """The column `disturbed` of a table: the reasons, an empty text, or `NOT_RECORDED`."""
    return "; ".join(found) or ("" if recorded else NOT_RECORDED)


def is_disturbed(row: Mapping[str, Any]) -> bool:
    """Whether a row of a table that may have the column `disturbed` is known to be disturbed."""
    return row.get("disturbed", "") not in ("", NOT_RECORDED)


def _processors(environment: Mapping[str, Any]) -> tuple[int, int]:
    """(processors of the machine, 0 where not known; processors that the job needs)."""
    cores = int((environment.get("cpu") or {}).get("logical_cores") or 0)
    threads = int((environment.get("torch") or {}).get("threads") or cores)
    return cores, 1 if environment.get("device") == "cuda" else max(min(threads, cores), 1)
