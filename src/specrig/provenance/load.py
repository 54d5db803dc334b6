"""What else the machine did while a job measured, for its description: load average and stolen processor time.

No time is judged by it: the least time of each round counts (`measurement.repeats`).
"""

from __future__ import annotations

import os
import time
from typing import Any

import psutil


class Load:
    """Counts from now on what other work the machine did."""

    def __init__(self) -> None:
        self._began, self._steal = time.monotonic(), _steal_s()

    def so_far(self) -> dict[str, Any]:
        """`load_1min`: the system's load average now; `steal`: share of the processors' time that the host of a virtual
        machine gave to others while this one asked for it. None for what the system does not count.
        """
        elapsed = (time.monotonic() - self._began) * (psutil.cpu_count() or 1)
        steal = None if self._steal is None else max((_steal_s() or 0.0) - self._steal, 0.0) / max(elapsed, 1e-9)
        return {
            "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "steal": None if steal is None else round(steal, 4),
        }


def _steal_s() -> float | None:
    return getattr(psutil.cpu_times(), "steal", None)
