"""pass@1 of programs: each program is run once with the tests in its reference.

This EXECUTES WHAT A MODEL WROTE. The program runs in a subprocess with limits on time, memory, files and processes, an
empty environment, its own folder and, where the system allows it, no network. One that prints more than 1 MiB fails. None of this stops malicious code. So a
study must ask for it; run such a study in a container or on a machine with nothing to lose.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from specrig.tasks.scorers.base import Mean, Output

TIMEOUT_S = 10
MEMORY_BYTES = 1 << 30
STOPS = re.compile(r"\n(?=class |def |#|if |print|@|\"\"\"|```)")
"""What ends a completed function in the text behind it (Chen et al. 2021, arXiv 2107.03374, section 2.3)."""

_LAUNCHER = f"""
import resource, runpy, sys
limits = {{"CPU": {TIMEOUT_S}, "AS": {MEMORY_BYTES}, "FSIZE": 1 << 20, "NOFILE": 32, "NPROC": 64, "CORE": 0}}
for limit, value in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a program within limits. The program is a file of its own, since `from __future__` must stand first in one."""


class PassAt1(Mean):
    """Share of outputs, 0 to 100, whose program passes all of its tests."""

    name = "pass_at_1"
    summary = (
        "pass@1, 0 to 100: programs that pass their tests (Chen et al. 2021, arXiv 2107.03374); executes generated code"
    )
    runs_code = True

    def score(self, output: Output) -> float:
        """100 if the program passes, else 0."""
        return 100.0 * passes(program(output), output.reference)


def program(output: Output) -> str:
    """The code to test. It is the prompt and its completion, or the first fenced block of a chat answer.

    The prompt stays in front of a fenced block if it is code that compiles.
    """
    fenced = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", output.text, flags=re.DOTALL)
    if fenced:
        # The prompt's own code stays in front: its imports and helpers may be used.
        stub = output.prompt if _compiles(output.prompt) else ""
        return f"{stub}\n{fenced[1]}\n"
    body = output.text.lstrip("\n")
    return output.prompt + STOPS.split(body, maxsplit=1)[0] + "\n"


def _compiles(code: str) -> bool:
    try:
        compile(code, "prompt", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


@cache
def passes(code: str, tests: str) -> bool:
    """Whether `code` followed by `tests` runs to its end within the limits; an earlier exit does not pass."""
    token = secrets.token_hex(16)
    # Output goes to a file, for which the limit on files holds: in a pipe it would fill this process's memory.
    with TemporaryDirectory(prefix="specrig-") as folder, TemporaryFile(prefix="specrig-") as output:
        file = Path(folder) / "program.py"
        file.write_text(f"{code}\n{tests}\nprint({token!r})\n", encoding="utf-8")
        process = subprocess.Popen(
            [*_isolation(), sys.executable, "-I", "-S", "-B", "-c", _LAUNCHER, str(file)],
            cwd=folder,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        output.seek(0)
        return process.returncode == 0 and output.read().decode(errors="replace").rstrip().endswith(token)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and all processes that it started in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@cache
def _isolation() -> tuple[str, ...]:
    """The command that starts a program without network; empty if the system does not allow that without privileges."""
    command = ("unshare", "--user", "--map-root-user", "--net")
    if shutil.which(command[0]) is None:
        return ()
    probe = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if probe.returncode == 0 else ()
