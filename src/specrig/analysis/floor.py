"""How close the baseline comes to the limit that memory bandwidth sets: a pass must at least read the weights and the
cache.

The floor is the time for reading these bytes at the bandwidth that the same job measured by copying on the same device
(read and written bytes added). A device reads a little faster than it copies, and a processor may hold a small model in
its cache. The share of the bandwidth that a pass reaches can therefore exceed 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specrig.analysis.cost_model import NAN, pass_costs
from specrig.analysis.roofline import BYTES, pass_bytes, size_of_shape
from specrig.measurement.records import Record
from specrig.models import facts

COLUMN = "floor_share"
"""The column that the table of cells gets where the bandwidth is known."""


def floor_share(records: Sequence[Record], environment: Mapping[str, Any]) -> float:
    """Seconds for reading what a bare one-token pass of a cell's baseline must read / seconds that it took.

    NaN where no pass was timed, and where the job's environment lacks bandwidth, shape or precision. records: those of
    the cell. environment: the job's environment.json (`memory.copy_gb_s`, `models.target.shape` and `.precision`).
    """
    bandwidth = (environment.get("memory") or {}).get("copy_gb_s")
    target = (environment.get("models") or {}).get("target") or {}
    precision = str(target.get("precision"))
    shape = facts.shape_of(target["shape"]) if target.get("shape") else None
    seconds = pass_costs(records).target_pass_s
    if not bandwidth or shape is None or precision.lower() not in BYTES or not seconds > 0:
        return NAN
    groups = len({(record.group, record.replicate, record.repeat) for record in records})
    batch = 1.0 if records[0].baseline_alone else len(records) / groups
    context = sum(record.prompt_tokens + len(record.baseline.tokens) / 2 for record in records) / len(records)
    return pass_bytes(size_of_shape(shape), precision, context=context, batch=batch) / (bandwidth * 1e9) / seconds
