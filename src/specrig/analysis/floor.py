"""How near the baseline comes to what its memory allows: a pass must read the weights and the cache, whatever else it does.

The floor is those bytes over the bandwidth that the same device reached copying (read and written bytes added up), measured by the
same job. A device reads a little faster than it copies, and a processor holds a small model in its cache, so a share may exceed 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specrig.analysis.cost_model import pass_costs
from specrig.analysis.roofline import BYTES, pass_bytes, size_of_shape
from specrig.measurement.records import Record
from specrig.models import facts

COLUMNS = ["floor_ms", "floor_share"]
"""Columns of the cells' table where the bandwidth is known."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Of one cell's baseline. weight_bytes: what of a pass is weights. read_bytes: all it must read. floor_s: at the copy's speed.

    pass_s: its measured bare one-token pass, NaN where the engine times none.
    """

    weight_bytes: float
    read_bytes: float
    floor_s: float
    pass_s: float

    @property
    def share(self) -> float:
        """Of the bandwidth that the measured pass reached."""
        return self.floor_s / self.pass_s if self.pass_s > 0 else float("nan")


def floor(records: Sequence[Record], environment: Mapping[str, Any]) -> Floor | None:
    """The floor of a cell's baseline; None where the job's environment does not tell bandwidth, shape or precision.

    environment: the job's environment.json (`memory.copy_gb_s`, `models.target.shape` and `.precision`).
    """
    bandwidth = (environment.get("memory") or {}).get("copy_gb_s")
    target = (environment.get("models") or {}).get("target") or {}
    shape, precision = target.get("shape"), str(target.get("precision"))
    if not bandwidth or not shape or precision.lower() not in BYTES:
        return None
    known = facts.shape_of(shape)
    if known is None:
        return None
    size = size_of_shape(known)
    groups = len({(record.group, record.replicate, record.repeat) for record in records})
    batch = 1.0 if records[0].baseline_alone else len(records) / groups
    context = sum(record.prompt_tokens + len(record.baseline.tokens) / 2 for record in records) / len(records)
    read = pass_bytes(size, precision, context=context, batch=batch)
    weights = pass_bytes(size, precision, batch=batch)
    return Floor(weights, read, read / (bandwidth * 1e9), pass_costs(records).target_pass_s)
