"""How close the baseline comes to the limit that memory bandwidth sets: a pass must at least read the weights and the
cache.

The floor is the time for reading these bytes at the bandwidth that the same job measured by copying on the same device
(read and written bytes added). A device reads a little faster than it copies, and a processor may hold a small model in
its cache. The share of the bandwidth that a pass reaches can therefore exceed 1.
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
"""The columns that the table of cells gets where the bandwidth is known."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of one cell's baseline.

    weight_bytes: bytes of weights that a pass reads. read_bytes: all bytes that it must read. floor_s: seconds for
    reading them at the speed of a copy. pass_s: measured seconds of a bare one-token pass, NaN where the engine does
    not time passes.
    """

    weight_bytes: float
    read_bytes: float
    floor_s: float
    pass_s: float

    @property
    def share(self) -> float:
        """The share of the bandwidth that the measured pass reached; NaN where no pass was timed."""
        return self.floor_s / self.pass_s if self.pass_s > 0 else float("nan")


def floor(records: Sequence[Record], environment: Mapping[str, Any]) -> Floor | None:
    """The floor of a cell's baseline; None where the job's environment lacks bandwidth, shape or precision.

    records: those of the cell. environment: the job's environment.json (`memory.copy_gb_s`, `models.target.shape` and
    `.precision`).
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
