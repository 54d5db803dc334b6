"""Energy and clocks of the device a job runs on, from its own counters: asked before and after a generation, never inside the timed region.

A meter gives joules since some fixed moment, so what a generation took is a difference: prefill, drafting and decoding together, with
what the device idles at. Devices renew their counters some ten times a second, so sums over many generations are what counts.
Untested on hardware: the NVML and the RAPL readings.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specrig.measurement.records import DeviceState
from specrig.provenance.gpu import gpu_handles, torch_uuids

RAPL = Path("/sys/class/powercap")
PERIOD_S = 0.1
"""Between two samples of a power gauge."""
THROTTLE_REASONS = {
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""NVML's bits of why a clock is below its highest; idling (0x1) is none."""


class Meter:
    """A device's counters. This one has none: it stands in wherever nothing can be read."""

    source = ""
    """What is read, for the report; empty: nothing."""

    def joules(self) -> float | None:
        """Energy since a fixed moment, joules."""
        return None

    def since(self, before: float | None) -> float | None:
        """Joules since `joules()` gave `before`."""
        now = self.joules()
        return None if before is None or now is None else max(now - before, 0.0)

    def state(self) -> DeviceState | None:
        """Clocks, and what holds them down, now."""
        return None

    def close(self) -> None:
        """Stop reading."""


class SampledEnergy:
    """Joules from a power gauge: trapezoids between its samples, the moment of asking being one of them."""

    def __init__(
        self, watts: Callable[[], float], *, period_s: float | None = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """period_s: None samples only when asked."""
        self._watts, self._clock = watts, clock
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._total, self._at, self._power = 0.0, clock(), watts()
        if period_s is not None:
            threading.Thread(target=self._sample, args=(period_s,), daemon=True).start()

    def joules(self) -> float:
        """Up to now."""
        with self._lock:
            now, power = self._clock(), self._watts()
            self._total += (now - self._at) * (power + self._power) / 2
            self._at, self._power = now, power
            return self._total

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _sample(self, period_s: float) -> None:
        while not self._stop.wait(period_s):
            self.joules()


class NvmlMeter(Meter):
    """GPUs through NVML, added up; with several, the slowest clock and all reasons."""

    def __init__(self, nvml: Any, handles: Sequence[Any], period_s: float | None = PERIOD_S) -> None:
        """nvml: the module `pynvml`, initialised. Raises NVMLError for a device that tells neither energy nor power."""
        self._nvml, self._handles = nvml, handles
        self._sampled: SampledEnergy | None = None
        self.source = "NVML energy counter"
        try:
            self._counted()
        except nvml.NVMLError:  # before Volta
            self._sampled = SampledEnergy(self._watts, period_s=period_s)
            self.source = f"NVML power, sampled every {period_s} s"

    def joules(self) -> float:
        """See `Meter`."""
        return self._counted() if self._sampled is None else self._sampled.joules()

    def state(self) -> DeviceState:
        """See `Meter`; what a device does not tell is None."""
        nvml = self._nvml
        bits = [self._asked(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) for handle in self._handles]
        return DeviceState(
            sm_mhz=self._slowest(nvml.NVML_CLOCK_SM),
            memory_mhz=self._slowest(nvml.NVML_CLOCK_MEM),
            throttled=[name for bit, name in THROTTLE_REASONS.items() if any((each or 0) & bit for each in bits)],
        )

    def close(self) -> None:
        """See `Meter`."""
        if self._sampled is not None:
            self._sampled.close()
        self._nvml.nvmlShutdown()

    def _counted(self) -> float:
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles) / 1000

    def _watts(self) -> float:
        return sum(self._nvml.nvmlDeviceGetPowerUsage(handle) for handle in self._handles) / 1000

    def _slowest(self, kind: int) -> int | None:
        found = [self._asked(self._nvml.nvmlDeviceGetClockInfo, handle, kind) for handle in self._handles]
        return min((mhz for mhz in found if mhz is not None), default=None)

    def _asked(self, query: Callable[..., int], *arguments: Any) -> int | None:
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None


class RaplMeter(Meter):
    """Processor packages through Linux' powercap: counters of microjoules that begin anew at a stated range."""

    source = "RAPL, processor packages"

    def __init__(self, zones: Sequence[Path]) -> None:
        """zones: folders with `energy_uj` and `max_energy_range_uj`. Raises OSError where these cannot be read."""
        self._zones = zones
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        self._last = self._read()
        self._total = 0

    def joules(self) -> float:
        """See `Meter`."""
        now = self._read()
        # A counter that went back has begun anew: it is asked far more often than it can go round.
        self._total += sum(
            (new - old) % (top + 1) for new, old, top in zip(now, self._last, self._ranges, strict=True)
        )  # the range is the highest value
        self._last = now
        return self._total / 1e6

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]


@contextmanager
def metered(device: str, count: int = 1) -> Iterator[Meter]:
    """The meter of the first `count` GPUs that torch sees (cuda), or of the processor; one without counters where none can be read."""
    try:
        meter = _gpu_meter(count) if device == "cuda" else _processor_meter()
    except Exception as error:  # whatever a driver or a container comes up with: a measurement goes on without its energy
        print(f"energy is not measured: {type(error).__name__}: {error}", file=sys.stderr)
        meter = Meter()
    try:
        yield meter
    finally:
        meter.close()


def _gpu_meter(count: int) -> Meter:
    import pynvml

    pynvml.nvmlInit()
    try:
        return NvmlMeter(pynvml, gpu_handles(pynvml, torch_uuids(count)))
    except BaseException:
        pynvml.nvmlShutdown()
        raise


def _processor_meter(root: Path = RAPL) -> Meter:
    """RAPL where the kernel has it and lets this user read it (many let root alone, for what timing it gives away)."""
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
    try:
        return RaplMeter(packages) if packages else Meter()
    except PermissionError:
        return Meter()
