"""pass@1 of programs: each is run once against the tests that its reference holds.

It EXECUTES WHAT A MODEL WROTE. The subprocess has limits on time, memory, files and processes, an empty environment, a folder of its
own and, where the system lets it, no network; none of this holds back code that means harm. So a study must ask for it, and do so
in a container or on a machine with nothing to lose.
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
from tempfile import TemporaryDirectory

from specrig.tasks.scorers.base import Mean, Output

TIMEOUT_S = 10
MEMORY_BYTES = 1 << 30
STOPS = re.compile(r"\n(?=class |def |#|if |print|@|\"\"\"|```)")
"""Where a completed function ends (Chen et al. 2021, arXiv 2107.03374, section 2.3)."""

_LIMITS = f"""
import resource
for limit, value in (("CPU", {TIMEOUT_S}), ("AS", {MEMORY_BYTES}), ("FSIZE", 1 << 20), ("NOFILE", 32), ("NPROC", 64), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
del resource, limit, value
"""


class PassAt1(Mean):
    """Share of outputs whose program passes all of its tests."""

    name = "pass_at_1"
    summary = "pass@1, 0 to 100: programs that pass their tests (Chen et al. 2021, arXiv 2107.03374); executes generated code"
    runs_code = True

    def score(self, output: Output) -> float:
        """100 if the program passes, else 0."""
        return 100.0 * passes(program(output), output.reference)


def program(output: Output) -> str:
    """The code to test: the prompt and what completes it, or a fenced block of an answer behind the prompt's stub."""
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
    """Whether `code` followed by `tests` runs to its end within the limits. Leaving early, with any exit code, is no pass."""
    token = secrets.token_hex(16)
    with TemporaryDirectory(prefix="specrig-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(f"{_LIMITS}\n{code}\n{tests}\nprint({token!r})\n", encoding="utf-8")
        process = subprocess.Popen(
            [*_isolation(), sys.executable, "-I", "-S", "-B", str(file)],
            cwd=folder,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            written, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return process.returncode == 0 and written.decode(errors="replace").rstrip().endswith(token)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the program's own process group, children included."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@cache
def _isolation() -> tuple[str, ...]:
    """A command that takes the network away, where the system allows it without privileges."""
    command = ("unshare", "--user", "--map-root-user", "--net")
    if shutil.which(command[0]) is None:
        return ()
    probe = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if probe.returncode == 0 else ()
