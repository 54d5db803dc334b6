"""Reads the load and the speed of the machine for a job's records, with the counters of `provenance.load`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from specrig.measurement.records import Load, Probe
from specrig.measurement.signs import is_busy
from specrig.provenance.load import Moment, between, moment, probe

RENEWED_S = 10.0
"""Seconds after which the next block makes a new probe; so probes take at most about 3 % of the time."""
REST_S = 0.3
"""Seconds after which another process has left the processors: OpenMP threads of vLLM spin for 0.2 s."""

NEAR = 0.9
"""A probe of this share of the fastest one so far is believed at once."""
REPEATS = 3
"""How often a slower one is made again: it lasts a tenth of a second, in which the system may have both threads on one
core, or somebody list a folder. A machine that is really slower is so in each of them."""
LOOK_S = 1.0
"""Seconds over which other processes' time is counted to say whether the machine is quiet now."""


class MachineState:
    """Reads load and speed of the machine for one job; it reads nothing if the work is done on another machine."""

    def __init__(self, device: str, *, here: bool = True, in_process: bool = True) -> None:
        """here: False if running servers do the work; in_process: False if models run in other processes."""
        self._device, self._here, self._in_process = device, here, in_process
        # A probe in this process would make a second context on a GPU that an engine has filled.
        self._probes = here and (in_process or device == "cpu")
        self._last: Probe | None = None
        self._fastest: float | None = None  # GFLOP/s
        self._until = 0.0

    def begin(self) -> Moment | None:
        """Read the counters before a generation, for `since`; None if the work is done elsewhere."""
        return moment(children=not self._in_process) if self._here else None

    def since(self, before: Moment | None) -> Load | None:
        """Return what the machine has done since `begin` returned `before`; None if that was None."""
        if before is None:
            return None
        found = Load.model_validate(between(before, moment(children=not self._in_process)))
        # The measuring thread of another engine, or of a GPU, waits for them all the time.
        at_work = self._in_process and self._device == "cpu"
        return found if at_work else found.model_copy(update={"held_s": None})

    def wait_until_quiet(self, environment: Mapping[str, Any], most_s: float) -> bool:
        """Wait until other processes take no more processor time than is tolerated; False if that takes too long.

        True at once where the work is done on another machine. environment: what `signs` are judged by.
        """
        until, announced = time.monotonic() + most_s, False
        while (before := self.begin()) is not None:
            time.sleep(LOOK_S)
            found = self.since(before)
            if found is None or not is_busy(found, environment):
                break
            if time.monotonic() > until:
                return False
            if not announced:
                print(f"The machine is busy with other work; waiting for at most {most_s:.0f} s.", file=sys.stderr)
                announced = True
        return True

    def probe(self, *, renew: bool = False) -> Probe | None:
        """Return the last probe, or a new one if that is too old or if `renew`; None where no probe can be made."""
        if self._probes and (renew or self._last is None or time.monotonic() > self._until):
            if not self._in_process:
                time.sleep(REST_S)
            self._last = self._believable()
            self._until = time.monotonic() + RENEWED_S
        return self._last

    def _believable(self) -> Probe:
        """A probe that is about as fast as those before; else the fastest of several."""
        found = Probe.model_validate(probe(self._device))
        for _ in range(REPEATS):
            if self._fastest is not None and _speed(found) >= NEAR * self._fastest:
                break
            self._fastest = max(self._fastest or 0.0, _speed(found))
            time.sleep(REST_S)
            found = max(found, Probe.model_validate(probe(self._device)), key=_speed)
        self._fastest = max(self._fastest or 0.0, _speed(found))
        return found


def _speed(found: Probe) -> float:
    return found.product_gflop_s or 0.0
