"""A cell: one point of the experiment grid. Knows its slug (for paths) and its digest (for resuming). No torch here."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Cell(BaseModel):
    """What is measured together and becomes one row of `cells.csv`.

    `options` holds the method's own parameters (all of them, defaults included), so a record says by itself
    how it was made. `variant` is the label that tells two rows of one method apart when a study sweeps options
    (empty when it does not).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    pair: str
    method: str
    k: int
    task: str
    temperature: float
    batch_size: int = 1
    variant: str = ""
    options: dict[str, Any] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def job(self) -> tuple[str, str, str]:
        """(engine, pair, method): cells that share it share one process and one loading of the models."""
        return self.engine, self.pair, self.method

    @property
    def slug(self) -> str:
        """A path-safe name, unique within the job, stable over runs: `code-k4-t0-b1`."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.task}-k{self.k}-t{self.temperature:g}-b{self.batch_size}{variant}"

    @property
    def name(self) -> str:
        """The slug with its job before it: unique within a study."""
        return "/".join((*self.job, self.slug))


def digest(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
