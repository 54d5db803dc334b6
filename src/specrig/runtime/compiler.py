"""Compile C code of the package for this processor, and load it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-strict-aliasing")
LONGEST_S = 180
"""Seconds that the compiler may take; it takes 5 to 15."""


def load(module: str, **constants: int) -> ctypes.CDLL | None:
    """Compile the `.c` file beside the file `module` and load it; None where that is not possible. constants: macros that
    it shares with the module.

    It is compiled once for a kind of processor, and kept in the user's cache folder.
    """
    compiler, source = shutil.which("gcc") or shutil.which("cc"), Path(module).with_suffix(".c")
    if compiler is None:
        return None
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrig"
        flags = (*FLAGS, *(f"-D{name}={value}" for name, value in constants.items()))
        made = folder / f"{source.stem}-{_fingerprint(compiler, source, flags)}.so"
        if not made.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            # One process compiles, others wait for it. The lock goes with its process, however that ends.
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not made.is_file():
                    _compile(compiler, source, made, flags)
        return ctypes.CDLL(str(made))
    except (OSError, subprocess.SubprocessError, RuntimeError):
        return None


def _compile(compiler: str, source: Path, made: Path, flags: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as unfinished:
        part, whole = Path(unfinished) / "part.o", Path(unfinished) / "whole.so"
        # This names no OpenMP library: the one that torch has loaded serves, so that no two sets of threads wait for
        # each other.
        for command in ([*flags, "-c", str(source), "-o", str(part)], ["-shared", str(part), "-o", str(whole), "-lm"]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=LONGEST_S)
        whole.replace(made)


def _fingerprint(compiler: str, source: Path, flags: Sequence[str]) -> str:
    """A hash of what the compiled code depends on: source, flags, compiler, and the processor's instructions."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else [platform.processor()]
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    inputs = (source.read_text(encoding="utf-8"), *flags, version, instructions)
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
