"""Reads energy and clocks of a job's GPUs from NVML's counters, before and after a generation but never while one is
timed.

The counter gives joules since the driver was loaded. The difference over a generation contains prefill, drafting and
decoding, and also the energy that the idle device takes. It is renewed about ten times a second, so only sums over many
generations are meaningful.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specrig.measurement.records import DeviceState
from specrig.provenance.gpu import gpu_handles, torch_uuids

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


class NvmlMeter(Meter):
    """Reads GPUs through NVML. Of several GPUs: the sum of energy, the slowest clocks, every throttle reason."""

    source = "NVML energy counter"

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        """nvml: the initialised module `pynvml`; handles: GPUs. Raises NVMLError if one has no counter of energy."""
        self._nvml, self._handles = nvml, handles
        self.joules()

    def joules(self) -> float:
        """See `Meter`."""
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles) / 1000

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
        self._nvml.nvmlShutdown()

    def _slowest(self, kind: int) -> int | None:
        found = [self._value_or_none(self._nvml.nvmlDeviceGetClockInfo, handle, kind) for handle in self._handles]
        return min((mhz for mhz in found if mhz is not None), default=None)

    def _value_or_none(self, query: Callable[..., int], *arguments: Any) -> int | None:
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None


@contextmanager
def metered(device: str, count: int = 1) -> Iterator[Meter]:
    """Yield a meter of the first `count` GPUs that torch sees, and close it at the end.

    Where `device` is not cuda, or no counter can be read, it is a plain `Meter`, which reads nothing.
    """
    try:
        meter = _gpu_meter(count) if device == "cuda" else Meter()
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
