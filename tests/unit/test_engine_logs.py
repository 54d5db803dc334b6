"""What engines say goes into a log of their own and from there into the job's, and an error quotes its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specrig.engines.logs import LOG_ENV, TAIL, EngineLog

JOB = """
import subprocess, sys
from pathlib import Path
from specrig.engines.logs import EngineLog

log = EngineLog()
print("before")
try:
    with log.captured():
        print("in this process")
        print("an error of it", file=sys.stderr)
        child = "import sys; print('from a child'); print('and its errors', file=sys.stderr)"
        subprocess.run([sys.executable, "-c", child], check=True)
        raise RuntimeError
except RuntimeError:
    print("after")
Path(sys.argv[1]).write_bytes(log.path.read_bytes())
log.close()
assert not log.path.exists()
"""


def test_only_what_is_said_meanwhile_goes_into_the_log(tmp_path: Path) -> None:
    """In a process of its own: pytest's capture replaces the streams."""
    found = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "log")], check=True, capture_output=True, text=True
    )
    assert (found.stdout, found.stderr) == ("before\nafter\n", "")
    message = (tmp_path / "log").read_text()
    assert all(words in message for words in ("in this process", "an error of it", "from a child", "and its errors"))


def test_a_jobs_log_gets_all_of_it_and_a_message_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job.log"
    job.write_text("1/2\n")
    monkeypatch.setenv(LOG_ENV, str(job))
    log = EngineLog()
    assert log.tail() == "its log is empty"
    os.write(log.handle, "".join(f"line {number}\n" for number in range(100)).encode())
    first, *rest = log.tail().splitlines()
    assert first == "its log ends with: line 99"
    assert rest == [*(f"line {number}" for number in range(100 - TAIL, 100)), f"(whole log: {log.path})"]
    log.close(keep=True)
    assert log.path.read_text() in job.read_text() and job.read_text().startswith("1/2\nline 0\n")
    log.path.unlink()
