"""The base class of every block of a config and of every row of a table."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen model that refuses unknown keys. The string below a key describes it here and in the JSON schemas."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
