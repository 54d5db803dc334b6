"""A cell: one point of the experiment grid. Knows its slug (for paths) and its digest (for resuming). No torch here."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Cell(BaseModel):
    """One point of the grid; its measurements become one row of `cells.csv`.

    `options` holds all of the method's own parameters, defaults included, so that a record says how it was made.
    `variant` is the label that tells apart cells of one method with different options; it is empty if no option is
    swept or changed.
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
    def method_key(self) -> tuple[str, str, str]:
        """(engine, pair, method): the records of these cells lie in one folder."""
        return self.engine, self.pair, self.method

    @property
    def slug(self) -> str:
        """A name that is safe in a path, unique within the job and the same in every run, e.g. `code-k4-t0-b1`."""
        variant = f"-{self.variant}" if self.variant else ""
        short = f"{self.temperature:g}"
        temperature = short if float(short) == self.temperature else repr(self.temperature)
        return f"{self.task}-k{self.k}-t{temperature}-b{self.batch_size}{variant}"

    @property
    def name(self) -> str:
        """The job and the slug, joined by slashes; unique within a study."""
        return "/".join((*self.method_key, self.slug))


def digest(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of `value` as JSON with sorted keys and `str` for what JSON cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
