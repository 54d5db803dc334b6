"""Entries of a study's `methods:`: a method with its k's and options, expanded into variants. No torch here."""

from __future__ import annotations

import re
from itertools import product
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Temperature
from specrig.settings import Settings

K_RANGE = range(1, 17)

# `k: 4` and `k: [4]` mean the same, so that `--config k=4`-like overrides stay short.
_listed = BeforeValidator(lambda value: value if isinstance(value, list | tuple) or value is None else [value])

Names = Annotated[list[str], _listed]
Temperatures = Annotated[list[Temperature], _listed]
BatchSizes = Annotated[list[Annotated[int, Field(ge=1)]], _listed]


class MethodEntry(Settings):
    """One entry of `methods:`: a method with its k's and options. A list of values for an option is a sweep over them."""

    method: str
    """Name of the method; `specrig methods` lists them."""
    k: Annotated[list[int], _listed] = Field(default_factory=lambda: [4])
    """k, or a list of them: how many tokens are drafted in a round, 1 to 16. Methods that use no k ignore it."""
    temperatures: Temperatures | None = None
    """Sampling temperatures of this entry, instead of the study's."""
    tasks: Names | None = None
    """Tasks of this entry, instead of the study's."""
    pairs: Names | None = None
    """Pairs of this entry, instead of the study's."""
    batch_sizes: BatchSizes | None = None
    """Batch sizes of this entry, instead of the study's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The method's options (`specrig methods` lists them); they may also stand beside `k`."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, value: Any) -> Any:
        """Move keys that are not the entry's own into `options`; `study.checks.entries` checks their names."""
        if isinstance(value, str):
            return {"method": value}
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key in cls.model_fields}
        rest = {key: item for key, item in value.items() if key not in cls.model_fields}
        return {**own, "options": {**(own.get("options") or {}), **rest}} if rest else own

    @property
    def ks(self) -> list[int]:
        """The values of k in the entry's cells; [0] for a method that uses no k."""
        return self.k if methods()[self.method].uses_k else [0]

    @property
    def needs(self) -> set[str]:
        """Trained parts besides the target that some of its cells need."""
        method = methods()[self.method]
        return {part for _, options in self.variants() for part in method.parts(method.Options.model_validate(options))}

    def variants(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (label, all options) for every combination of the swept values.

        The label names the options that are swept or differ from their default. So it does not change when a value is
        added to a sweep, and measured cells keep their names.
        """
        kind = methods()[self.method].Options
        swept = {name: value for name, value in self.options.items() if is_sweep(kind, name, value)}
        result = []
        for values in product(*swept.values()):
            given = {**self.options, **dict(zip(swept, values, strict=True))}
            options = kind.model_validate(given)
            defaults = {name: info.get_default(call_default_factory=True) for name, info in kind.model_fields.items()}
            named = [name for name in given if name in swept or getattr(options, name) != defaults[name]]
            label = "-".join(_label(name, getattr(options, name)) for name in sorted(named))
            result.append((label, options.model_dump(mode="json")))
        return result


def is_sweep(kind: type[BaseModel], name: str, value: Any) -> bool:
    """Whether `value` is a list of values to sweep. For an option whose type is a list, a plain list is one value."""
    if not isinstance(value, list) or name not in kind.model_fields:
        return False
    try:
        TypeAdapter[Any](kind.model_fields[name].annotation or Any).validate_python(value)
    except ValidationError:
        return True
    return False


def _label(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        value = "_".join(map(str, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return name + re.sub(r"[^A-Za-z0-9.]+", "_", text)
