"""What engines say goes into a log of their own and from there into the job's, and an error quotes its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrig.engines.said import TAIL, VARIABLE, EngineLog

CHILD = "import sys; print('from a child'); print('and its errors', file=sys.stderr)"


def test_only_what_is_said_meanwhile_goes_into_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    log = EngineLog()
    print("before")
    with log.listening():
        print("in this process")
        print("an error of it", file=sys.stderr)
        subprocess.run([sys.executable, "-c", CHILD], check=True)
    print("after")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("before\nafter\n", "")
    said = log.path.read_text()
    assert all(words in said for words in ("in this process", "an error of it", "from a child", "and its errors"))
    log.close()
    assert not log.path.exists()


def test_a_failure_inside_gives_the_streams_back(capfd: pytest.CaptureFixture[str]) -> None:
    log = EngineLog()
    with pytest.raises(RuntimeError), log.listening():
        raise RuntimeError
    print("here again")
    assert capfd.readouterr().out == "here again\n"
    log.close()


def test_a_jobs_log_gets_all_of_it_and_a_message_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job.log"
    job.write_text("1/2\n")
    monkeypatch.setenv(VARIABLE, str(job))
    log = EngineLog()
    assert log.quoted() == "its log is empty"
    with log.listening():
        print("\n".join(f"line {number}" for number in range(100)))
    first, *rest = log.quoted().splitlines()
    assert first == "its log ends with: line 99"
    assert rest == [*(f"line {number}" for number in range(100 - TAIL, 100)), f"(whole log: {log.path})"]
    log.close(keep=True)
    assert log.path.read_text() in job.read_text() and job.read_text().startswith("1/2\nline 0\n")
    log.path.unlink()
