"""Energy per token, and the clock frequencies at which it was spent, for cells whose device counters were recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from specrig.analysis.speedup import Times
from specrig.measurement.records import Record

COLUMNS = (
    "energy_per_token_j baseline_energy_per_token_j energy_ratio sm_mhz_low sm_mhz_high memory_mhz throttled"
).split()
"""The keys of what `energy` returns. A table leaves out the columns that are NaN in every cell."""


def energy(times: Times, records: Iterable[Record]) -> dict[str, Any]:
    """The values of `COLUMNS` for one cell; NaN where no device counters were recorded.

    times: the result of `speedup.group_times` for the same records. Energies are joules per emitted token and include
    prefill. `energy_ratio` is the method's energy / the baseline's: below 1 where speculation saves energy. Clocks are
    in MHz, the lowest and the highest that were read right after a generation. `throttled` is the share of generations
    after which something held the clocks down.
    """
    ours, theirs = joules_per_token(times), joules_per_token(times, "baseline_")
    states = [run.device for record in records for run in (record.run, record.baseline) if run.device is not None]
    clocks = [state.sm_mhz for state in states if state.sm_mhz is not None]
    memory = [state.memory_mhz for state in states if state.memory_mhz is not None]
    nan = float("nan")
    return {
        "energy_per_token_j": ours,
        "baseline_energy_per_token_j": theirs,
        "energy_ratio": ours / theirs if theirs else nan,
        "sm_mhz_low": min(clocks, default=nan),
        "sm_mhz_high": max(clocks, default=nan),
        "memory_mhz": min(memory, default=nan),
        "throttled": sum(bool(state.throttled) for state in states) / len(states) if states else nan,
    }


def joules_per_token(times: Times, side: Literal["", "baseline_"] = "") -> float:
    """All joules / all emitted tokens of the groups whose energy was counted for both method and baseline; NaN without
    any.

    Sums are used because the counter moves in steps that are too coarse for a single group. side: "" for the method.
    """
    counted = ~(np.isnan(times["energy_j"]) | np.isnan(times["baseline_energy_j"]))
    tokens = times[f"{side}tokens"][counted].sum()
    return float(times[f"{side}energy_j"][counted].sum() / tokens) if tokens else float("nan")
