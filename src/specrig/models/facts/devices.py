"""Public specifications of accelerators, and sizes of models that are only known by name. No torch here.

`devices.csv`: one row a device, `pattern` finds it in what a driver or a paper calls it, first match wins.
`half_tflops`: dense FP16/BF16 peak with FP32 accumulation. `sizes.csv`: parameters of models that papers name and
nobody can load.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FOLDER = Path(__file__).parent


class Device(BaseModel):
    """A row of `devices.csv`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    pattern: str
    kind: Literal["consumer GPU", "datacenter GPU", "TPU"]
    memory_gb: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    half_tflops: float = Field(gt=0)
    source: str = Field(min_length=1)

    def times(self, count: int) -> Device:
        """`count` devices as one: the sum of their memory, bandwidth and speed. An upper bound, since communication
        costs nothing here.
        """
        if count == 1:
            return self
        scaled = {name: count * getattr(self, name) for name in ("memory_gb", "bandwidth_gb_s", "half_tflops")}
        return self.model_copy(update={"device": f"{count}x {self.device}", **scaled})


@cache
def devices() -> dict[str, Device]:
    """Name -> specification."""
    return {row["device"]: Device.model_validate(row) for row in _rows("devices.csv")}


def find_device(text: str) -> Device | None:
    """The device that `text` names, `16x TPU v4` being sixteen of them; None if it names none that is known."""
    count, name = re.fullmatch(r"(?:(\d+)x )?(.*)", text.strip()).groups()  # type: ignore[union-attr]  # matches any line
    found = next((device for device in devices().values() if re.search(device.pattern, name, re.IGNORECASE)), None)
    return found.times(int(count or 1)) if found else None


@cache
def named_sizes() -> dict[str, float]:
    """Parameters of models known by name only."""
    return {row["model"]: float(row["parameters"]) for row in _rows("sizes.csv")}


def _rows(name: str) -> list[dict[str, Any]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
