"""Decide from a cell's records whether the machine was quiet while it was measured, for each replicate separately.

Baseline and method alternate. A load that lasts for minutes slows both alike and cancels in their ratio. A load that
comes and goes within seconds does not cancel, and a speedup does not show it. There are three kinds of evidence: what
the operating system counted during each generation, what the machine could do before and after, and whether the times
fit each other. A cell with any evidence against it is called disturbed. It stays in the tables, is marked, and should
be measured again.

That plain decoding is faster for some prompts than for others is no such evidence: what slows some prompts and not
others widens the interval, and intervals of such cells miss no more often (`benchmarks/spread_mark.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from specrig.analysis import cost_model
from specrig.analysis.acceptance import acceptance_length
from specrig.analysis.efficiency import explained_efficiency
from specrig.analysis.speedup import group_times, speedup
from specrig.analysis.statistics import geometric_mean
from specrig.measurement import signs
from specrig.measurement.records import NOT_RECORDED, Probe, Record, Run, baselines, groups
from specrig.measurement.signs import loads

DRIFT = 0.2
"""Largest tolerated slowdown of the baseline between the halves of a replicate."""
BETWEEN = 0.33
"""Largest tolerated slowdown of the baseline between replicates. They are other processes at another time, and in each
the slowdown meets method and baseline alike; on a quiet virtual machine they differed by up to 25 %."""
OUTLIER = 4.0
"""Largest tolerated time per pass (baseline: per token) of a group / its cell's median. Passes of a cell differ up to
twofold.
"""
LEAST_PASSES = 8
"""A group with fewer passes or tokens is judged as if it had this many, because its first pass is slow by itself."""
PROBES = {"copy_gb_s": 0.4, "product_gflop_s": 0.7}
"""A probe below this share of what is usual in the study, the median of all its probes. On a quiet virtual machine
products ranged from 0.93 to 1.01 times their median. Copies ranged from 0.49 to 1.56: they run twice as fast where a
process is given its memory in large pages."""
EFFICIENCY = 1.15
"""Largest tolerated ratio between a cell's efficiency and `explained_efficiency`, in either direction."""
LEAST_GROUPS = 4
"""Fewer groups than this are too few to compare."""

COLUMN = "disturbed"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, in words, why a replicate of a cell counts as disturbed."""

    replicate: int
    text: str


def disturbances(
    cells: Mapping[str, Sequence[Record]], environments: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> dict[str, list[Reason]]:
    """Map each cell's name to all reasons against its replicates, ordered by replicate; an empty list if it was not
    disturbed.

    cells: name -> records of all replicates. environments: (engine, pair, method) -> environment.json of the job.
    """
    usual = _usual_probes(cells.values(), environments)
    found = {}
    for name, records in cells.items():
        environment = environments.get(records[0].cell.method_key, {})
        parts = _replicates(records)
        against: list[Reason] = []
        for replicate, own in parts.items():
            texts = [
                *signs.reasons(loads(own), environment),
                *_fallbacks(own),
                *_probes(own, usual.get(_machine(environment), {})),
                *_baseline(own),
                *_efficiency(own),
            ]
            against += [Reason(replicate, text) for text in texts]
        against += [*_between(parts), *_outliers(parts)]
        found[name] = sorted(against, key=lambda reason: reason.replicate)
    return found


def column(cells: Mapping[str, Sequence[Record]], reasons: Mapping[str, list[Reason]]) -> list[str]:
    """The column `disturbed` of `cells.csv`: for each cell its reasons, an empty text, or `NOT_RECORDED`."""
    texts = []
    for name, records in cells.items():
        several = len({record.replicate for record in records}) > 1
        reason_texts = [
            f"replicate {reason.replicate}: {reason.text}" if several else reason.text for reason in reasons[name]
        ]
        recorded = all(record.run.load is not None for record in records)
        texts.append(signs.verdict(reason_texts, recorded=recorded))
    return texts


def disturbed(frame: pd.DataFrame) -> pd.Series:
    """A boolean for each row of a table of cells: whether it is disturbed. All False if the table has no such column."""
    if COLUMN not in frame:
        return pd.Series(False, index=frame.index)
    return ~frame[COLUMN].fillna("").isin(["", NOT_RECORDED])


def undisturbed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of cells that are not disturbed."""
    return frame[~disturbed(frame)]


def _fallbacks(records: Sequence[Record]) -> list[str]:
    """Reasons from what failed in the process, so that passes ran in a slower way (speedups over a slow plain decoding
    are too large), or from what a server's answers lack.
    """
    runs = (run for record in records for run in (record.run, record.baseline))
    return list(dict.fromkeys(text for run in runs for text in run.fallbacks))


def _probes(records: Sequence[Record], usual: Mapping[str, float]) -> list[str]:
    """Reasons from what the machine could do before and after, compared with what is usual in the study."""
    texts = []
    for name, what, unit in (("copy_gb_s", "copied", "GB/s"), ("product_gflop_s", "multiplied", "GFLOP/s")):
        seen = [getattr(probe, name) for probe in (records[0].before, records[0].after) if probe is not None]
        known = [value for value in seen if value]
        if known and min(known) < PROBES[name] * usual[name]:
            texts.append(
                f"the machine {what} at {min(known):.3g} {unit} beside it, at {usual[name]:.3g} usually in this study"
            )
    return texts


def _baseline(records: Sequence[Record]) -> list[str]:
    """Reasons from a baseline that changed its speed over the replicate's groups."""
    texts = []
    speeds = _speeds(records)
    half = len(speeds) // 2
    if half >= LEAST_GROUPS and abs(change := median(speeds[half:]) / median(speeds[:half]) - 1) > DRIFT:
        texts.append(
            f"plain decoding was {abs(change):.0%} {'slower' if change < 0 else 'faster'} in its second half than in "
            "its first"
        )
    drifts = [record.baseline_drift for record in records if record.baseline_drift is not None]
    if drifts and abs(drift := median(drifts)) > DRIFT:
        texts.append(f"a token of plain decoding took {drift:+.0%} after the methods, against before them")
    return texts


def _efficiency(records: Sequence[Record]) -> list[str]:
    """Reasons from a speedup that does not follow from the passes that were measured with it.

    Only full batches are compared: a last batch of fewer prompts gains less by itself, not because something disturbed
    it. The speedup is a geometric mean over groups. τ of all rounds predicts it, or the geometric mean of the groups' τ:
    the two are far apart where prompts differ threefold, and which is nearer depends on whether the passes of those
    that accept more cost more. So a speedup between them is explained.
    """
    batches = groups(records)
    full = max(map(len, batches))
    batches = [members for members in batches if len(members) == full]
    records = [record for members in batches for record in members]
    measured, costs = speedup(group_times(records)), cost_model.pass_costs(records)
    lengths = [acceptance_length(records), geometric_mean([acceptance_length(members) for members in batches])]
    explained = explained_efficiency(records)
    low, high = sorted(
        cost_model.efficiency(measured, cost_model.predicted_speedup(length, costs)) for length in lengths
    )
    if not math.isfinite(low + high + explained) or (low <= EFFICIENCY * explained and explained <= EFFICIENCY * high):
        return []
    found = low if low > explained else high
    return [
        f"its efficiency is {found:.2f}, where its loop's own time explains {explained:.2f}: its times do not fit each "
        "other"
    ]


def _between(parts: Mapping[int, Sequence[Record]]) -> list[Reason]:
    """Reasons against replicates in which plain decoding was slower than in the fastest replicate."""
    speeds = {
        replicate: median(found)
        for replicate, records in parts.items()
        if len(found := _speeds(records)) >= LEAST_GROUPS
    }
    fastest = max(speeds.values(), default=0.0)
    return [
        Reason(replicate, f"plain decoding was {1 - speed / fastest:.0%} slower than in another replicate")
        for replicate, speed in speeds.items()
        if speed < (1 - BETWEEN) * fastest
    ]


def _outliers(parts: Mapping[int, Sequence[Record]]) -> list[Reason]:
    """Reasons against replicates in which a group took many times as long as the others."""
    found: dict[int, list[float]] = {}
    for side in ("run", "baseline"):
        taken: list[tuple[int, float, int]] = []
        for replicate, records in parts.items():
            for members in groups(records):
                runs = baselines(members) if side == "baseline" else [members[0].run]
                taken += [(replicate, run.decode_s, max(_passes(run), 1)) for run in runs]
        usual = median(seconds / passes for _, seconds, passes in taken)
        for replicate, seconds, passes in taken:
            times = seconds / (usual * max(passes, LEAST_PASSES)) if usual > 0 else 0.0
            if times > OUTLIER:
                found.setdefault(replicate, []).append(times)
    return [
        Reason(
            replicate,
            f"{len(times)} generation{'s' if len(times) > 1 else ''} took up to {max(times):.0f} times as long as the "
            "others' median",
        )
        for replicate, times in found.items()
    ]


def _usual_probes(
    cells: Iterable[Sequence[Record]], environments: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> dict[tuple[Any, ...], dict[str, float]]:
    """Machine (see `_machine`) -> the median of each probe in the study; a probe that several blocks share counts once."""
    seen: dict[tuple[Any, ...], set[Probe]] = {}
    for records in cells:
        own = seen.setdefault(_machine(environments.get(records[0].cell.method_key, {})), set())
        own |= {probe for record in records for probe in (record.before, record.after) if probe is not None}
    names = ("copy_gb_s", "product_gflop_s")
    return {
        machine: {
            name: median([taken for probe in probes if (taken := getattr(probe, name))] or [0.0]) for name in names
        }
        for machine, probes in seen.items()
    }


def _machine(environment: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the result of a probe depends on: the device, the processor and the number of threads."""
    cpu, torch = environment.get("cpu") or {}, environment.get("torch") or {}
    return environment.get("device"), cpu.get("model"), torch.get("threads"), str(environment.get("gpus"))


def _replicates(records: Iterable[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.replicate, []).append(record)
    return dict(sorted(found.items()))


def _speeds(records: Iterable[Record]) -> list[float]:
    """Tokens/s of plain decoding in each group of at least `LEAST_PASSES` tokens per prompt, in order."""
    found = []
    for members in groups(records):
        tokens = sum(len(record.baseline.tokens) - record.baseline.prefill_tokens for record in members)
        seconds = sum(run.decode_s for run in baselines(members))
        if tokens >= LEAST_PASSES * len(members) and seconds > 0:
            found.append(tokens / seconds)
    return found


def _passes(run: Run) -> int:
    """The number of target passes of a generation, or of its tokens where the engine does not report them."""
    counted = run.counts.rounds if run.counts is not None else len(run.rounds.emitted)
    return counted or len(run.tokens) - run.prefill_tokens
