"""Tracking into an MLflow server whose store is PostgreSQL, both real: nothing is entered twice, and either may be away
for a while.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runs import RESULTS, command, copied, imported

pytestmark = pytest.mark.workflow
TRACKED = str(RESULTS / "tracked.txt")


def programs() -> Path | None:
    """The folder of PostgreSQL's server programs; Debian keeps them off the path."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").is_file()), None)


@dataclass
class Postgres:
    """A database server of its own, reached through a socket in its folder."""

    folder: Path
    bin: Path
    # It refuses to run as root; Debian's package makes a user for it.
    as_user: list[str] = field(default_factory=lambda: ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else [])

    def call(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [*self.as_user, str(self.bin / program), *arguments], cwd="/", capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def make(self) -> None:
        if self.as_user:
            shutil.chown(self.folder, "postgres")
        self.call("initdb", "--auth=trust", "--username=postgres", "--no-sync", "-D", f"{self.folder}/data")
        self.start()
        self.call("createdb", "-h", str(self.folder), "-U", "postgres", "mlflow")

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self.call("pg_ctl", "start", "--wait", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options)

    def stop(self) -> None:
        self.call("pg_ctl", "stop", "--wait", "-m", "immediate", "-D", f"{self.folder}/data")

    @property
    def uri(self) -> str:
        return f"postgresql://postgres@/mlflow?host={self.folder}"

    def count(self, question: str) -> int:
        return int(
            self.call(
                "psql", "-h", str(self.folder), "-U", "postgres", "-Atc", f"select count(*) from {question}", "mlflow"
            )
        )


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed: pip install psycopg2-binary")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    database = Postgres(folder, found)
    try:
        database.make()
        yield database
    finally:
        subprocess.run(
            [*database.as_user, str(found / "pg_ctl"), "stop", "-m", "immediate", "-D", f"{folder}/data"],
            cwd="/",
            check=False,
        )
        shutil.rmtree(folder)


@dataclass
class Server:
    """MLflow's server, as docs/outputs.md starts it."""

    store: str
    artifacts: Path
    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        store = ["--backend-store-uri", self.store, "--artifacts-destination", str(self.artifacts)]
        mlflow = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--workers",
            "1",
        ]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*mlflow, *store], env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
            )
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Iterator[Server]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    made = Server(postgres.uri, tmp_path / "artifacts", tmp_path / "server.log", port)
    try:
        yield made
    finally:
        made.kill()


def test_a_study_is_entered_once_whatever_is_away(
    finished: Path, postgres: Postgres, server: Server, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path / "study")
    # A dead server costs a test seconds.
    settings = imported() | {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}

    def printed(*arguments: str) -> str:
        done = subprocess.run(
            arguments,
            cwd=folder,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    track = [sys.executable, "-m", "specrig", "stage", "track", "--study", str(RESULTS / "study.json")]
    failed = "MLflow tracking failed"

    # The server is away: the run ends well, and the next one enters the runs.
    first = printed(*command(TRACKED))
    assert failed in first and "The next run tries again" in first
    assert not (folder / TRACKED).exists()
    server.start()
    [added] = re.findall(r"MLflow: (\d+) runs entered, 0 kept, 0 removed", printed(*command(TRACKED)))
    runs, points = postgres.count("runs"), postgres.count("metrics")
    assert runs == int(added) > 6 and points > runs, "a run for each of six cells, and those above them"
    assert [path.name for path in server.artifacts.rglob("code-k3-t0-b1.jsonl")] == ["code-k3-t0-b1.jsonl"]

    # The store is away and comes back; by hand nothing is doubled.
    postgres.stop()
    assert failed in printed(*track)
    postgres.start()
    assert f"MLflow: 0 runs entered, {added} kept, 0 removed" in printed(*track)
    assert (postgres.count("runs"), postgres.count("metrics")) == (runs, points)
