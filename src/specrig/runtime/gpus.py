"""Which device a process computes on. Where several jobs share the GPUs of a machine, each takes some for itself: the
operating system holds the locks, so they end with their process. No torch at import.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path

OWN = "SPECRIG_OWN_GPU"
"""Environment variable that the workflow sets where more than one of its jobs may use a GPU at a time."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class DeviceError(ValueError):
    """A requested device that is not there."""


def resolve_device(device: str, gpus: int = 1) -> str:
    """`cuda` or `cpu` for a study's key `device` (`auto` takes a GPU if there is one), decided on this machine.

    Imports torch. Where jobs share the machine's GPUs, the first call takes `gpus` of them for this process (`take`).
    Raises DeviceError for `cuda` where there is no GPU.
    """
    if device == "cpu":
        return device
    take(gpus)
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise DeviceError(
            f"device: cuda, but PyTorch {torch.__version__} finds no GPU on this machine\n"
            "    → say `device: cpu` or `auto`; on a machine with a GPU install its driver and a CUDA build of PyTorch"
        )
    return "cpu"


def take(count: int = 1, *, every_s: float = 1.0) -> None:
    """Take `count` free GPUs (all, if there are fewer) until this process ends: VISIBLE then names these alone, also to
    its children.

    Waits while too few are free; `every_s` seconds later it looks again. Does nothing where `OWN` is not set, or where
    there is no GPU. Must come before CUDA starts, which reads VISIBLE once.
    """
    if os.environ.pop(OWN, None) is None or not (names := visible()):
        return
    count, waited = min(count, len(names)), False
    while not (found := _free(names, count)):
        if not waited:
            print(
                f"waiting for {count} of the GPUs {', '.join(names)}: other jobs use them", file=sys.stderr, flush=True
            )
        waited = True
        time.sleep(every_s)
    os.environ[VISIBLE] = ",".join(found)


def visible() -> list[str]:
    """The GPUs that this process may use: those that VISIBLE names, or the numbers of all that the driver knows."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def _free(names: list[str], count: int) -> list[str]:
    """Lock the first `count` free GPUs; lock none if fewer are free, so that no two jobs wait for each other."""
    found: dict[str, int] = {}
    for name in names:
        file = Path(tempfile.gettempdir(), f"specrig-gpu-{os.getuid()}-{name.replace('/', '_')}.lock")
        # Never closed where it is locked: the lock goes with the process.
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        found[name] = handle
        if len(found) == count:
            return list(found)
    for handle in found.values():
        os.close(handle)
    return []
