"""The machine around a job, as its records keep it. See `provenance.disturbance` for what is read."""

from __future__ import annotations

import time

from specrig.measurement.records import Load, Probe
from specrig.provenance.disturbance import Moment, between, moment, probe

RENEWED_S = 10.0
"""A probe older than this is measured anew at the next block's boundary: probes cost some three hundredths of the time at most."""


class Surroundings:
    """What one job reads of the machine it runs on; nothing where the work is done elsewhere."""

    def __init__(self, device: str, *, here: bool = True, in_process: bool = True) -> None:
        """here: False for servers that run already. in_process: False for an engine whose models live in processes of its own."""
        self._device, self._here, self._in_process = device, here, in_process
        # A probe in this process would make a second context on a GPU that an engine has filled.
        self._probes = here and (in_process or device == "cpu")
        self._last: Probe | None = None
        self._until = 0.0

    def begin(self) -> Moment | None:
        """Before a generation: what `since` wants."""
        return moment(children=not self._in_process) if self._here else None

    def since(self, before: Moment | None) -> Load | None:
        """After it: what the machine did meanwhile."""
        if before is None:
            return None
        found = Load.model_validate(between(before, moment(children=not self._in_process)))
        # The measuring thread of another engine, or of a GPU, waits for them all the time.
        at_work = self._in_process and self._device == "cpu"
        return found if at_work else found.model_copy(update={"held_s": None})

    def probe(self, *, anew: bool = False) -> Probe | None:
        """The machine now, or at most `RENEWED_S` ago."""
        if self._probes and (anew or self._last is None or time.monotonic() > self._until):
            self._last = Probe.model_validate(probe(self._device))
            self._until = time.monotonic() + RENEWED_S
        return self._last
