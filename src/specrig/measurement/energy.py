"""Reads energy and clocks of a job's device from its own counters, before and after a generation but never while one is
timed.

A meter gives joules since some fixed moment. The difference over a generation contains prefill, drafting and decoding,
and also the energy that the idle device takes. Devices renew their counters about ten times a second, so only sums over
many generations are meaningful. Untested on hardware: the NVML and the RAPL readings.
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
"""Seconds between two samples of a power gauge."""
WRAP_S = 30.0
"""RAPL is read at least as often: at 200 W the counter of a package goes round in some five minutes."""
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
"""Bit of NVML -> the reason it gives for a clock below its highest; idling (0x1) does not count as one."""


class Meter:
    """Reads the counters of a device. This base class reads nothing; it is used where there are no counters."""

    source = ""
    """What the meter reads, in words for the report; empty if it reads nothing."""

    def joules(self) -> float | None:
        """Energy in joules since a fixed moment; None if it cannot be read."""
        return None

    def since(self, before: float | None) -> float | None:
        """Joules since the moment when `joules()` returned `before`; None if either was not read."""
        now = self.joules()
        return None if before is None or now is None else max(now - before, 0.0)

    def state(self) -> DeviceState | None:
        """The device's clocks now, and the reasons why they are throttled; None if they cannot be read."""
        return None

    def close(self) -> None:
        """Stop reading and release what the meter holds."""


def _called_every(period_s: float, call: Callable[[], object]) -> threading.Event:
    """Call a function every `period_s` seconds in a thread of its own, until the returned event is set."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(period_s):
            call()

    threading.Thread(target=repeat, daemon=True).start()
    return stop


class SampledEnergy:
    """Energy from a power gauge, integrated by trapezoids between samples; each call of `joules` takes a sample too."""

    def __init__(
        self,
        watts: Callable[[], float],
        *,
        period_s: float | None = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """watts: reads the gauge; period_s: seconds between samples, None: only in `joules`; clock: seconds."""
        self._watts, self._clock = watts, clock
        self._lock = threading.Lock()
        self._total, self._at, self._power = 0.0, clock(), watts()
        self._stop = threading.Event() if period_s is None else _called_every(period_s, self.joules)

    def joules(self) -> float:
        """Take a sample and return the joules since the object was made."""
        with self._lock:
            now, power = self._clock(), self._watts()
            self._total += (now - self._at) * (power + self._power) / 2
            self._at, self._power = now, power
            return self._total

    def close(self) -> None:
        """Stop the thread that takes samples."""
        self._stop.set()


class NvmlMeter(Meter):
    """Reads GPUs through NVML. Of several GPUs: the sum of energy, the slowest clocks, every throttle reason."""

    def __init__(self, nvml: Any, handles: Sequence[Any], period_s: float | None = PERIOD_S) -> None:
        """nvml: the initialised module `pynvml`; handles: GPUs. Raises NVMLError if one reports no energy or power."""
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
        """See `Meter`; None stands for each clock that no GPU reports."""
        nvml = self._nvml
        bits = [self._value_or_none(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) for handle in self._handles]
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
        found = [self._value_or_none(self._nvml.nvmlDeviceGetClockInfo, handle, kind) for handle in self._handles]
        return min((mhz for mhz in found if mhz is not None), default=None)

    def _value_or_none(self, query: Callable[..., int], *arguments: Any) -> int | None:
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None


class RaplMeter(Meter):
    """Reads processor packages through Linux' powercap; its counters in microjoules wrap at a stated range."""

    source = "RAPL, processor packages"

    def __init__(self, zones: Sequence[Path]) -> None:
        """zones: folders with `energy_uj` and `max_energy_range_uj`. Raises OSError if these files cannot be read."""
        self._zones = zones
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        self._last = self._read()
        self._total = 0
        self._lock = threading.Lock()
        self._stop = _called_every(WRAP_S, self.joules)

    def joules(self) -> float:
        """See `Meter`."""
        with self._lock:
            now = self._read()
            # A counter that went back has begun anew; it is read far more often than it can go round. The range is the
            # highest value.
            self._total += sum(
                (new - old) % (top + 1) for new, old, top in zip(now, self._last, self._ranges, strict=True)
            )
            self._last = now
            return self._total / 1e6

    def close(self) -> None:
        """See `Meter`."""
        self._stop.set()

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]


@contextmanager
def metered(device: str, count: int = 1) -> Iterator[Meter]:
    """Yield a meter of the first `count` GPUs that torch sees (`device` cuda) or of the processor, and close it at the
    end.

    Where no counter can be read, it is a plain `Meter`, which reads nothing.
    """
    try:
        meter = _gpu_meter(count) if device == "cuda" else _processor_meter()
    except (
        Exception
    ) as error:  # whatever a driver or a container comes up with: a measurement goes on without its energy
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
    """A `RaplMeter` if this user may read the counters, else a plain `Meter`. Many kernels let only root read them."""
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
    try:
        return RaplMeter(packages) if packages else Meter()
    except PermissionError:
        return Meter()
