"""What every block of a config, and every row of a table, has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen, and unknown names are refused. The text below a key describes it, also in the JSON schemas."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
