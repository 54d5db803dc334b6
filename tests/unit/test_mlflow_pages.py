"""MLflow's pages as `make ui` serves them, in a browser that sees them for the first time, after the study's folder has
moved.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from browser import CHROMIUM, Browser
from mlflow import MlflowClient
from synthetic import write_study

from specrig.report.documents.attachments import mlflow_runs
from specrig.report.table_files import write_tables
from specrig.tracking import track

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
PATIENCE_S = 180
"""A busy machine serves and draws slowly."""


@dataclass(frozen=True)
class Served:
    """folder: the study's. address: what `make ui` printed. browser: a fresh one."""

    folder: Path
    address: str
    browser: Browser

    @property
    def root(self) -> str:
        return self.address.split("/#/")[0]

    def run(self, name: str) -> str:
        """The id of the run of that name."""
        client = MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")
        [run] = client.search_runs(["1"], f"attributes.run_name = '{name}'")
        return str(run.info.run_id)

    def shows(self, address: str, *texts: str) -> str:
        """Open a page, wait until it shows all texts, and return what it shows."""
        self.browser.open(address)
        output, end = "", time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            output = self.browser.run("document.body.innerText")
            if all(text in output for text in texts):
                return output
            time.sleep(0.3)
        raise AssertionError(f"{[text for text in texts if text not in output]} not on {address}:\n{output[-3000:]}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, empty_store: Path, repository: Path) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("pages")
    made = write_study(place / "made" / "made_up", methods=("draft_model", "ngram"), ks=(2, 4), tasks=("code",))
    write_tables(made, made / "tables")
    shutil.copyfile(empty_store, made / "mlflow.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert not track(made).error
    folder = Path(shutil.move(made, place / "moved"))
    config = place / "study.yaml"
    config.write_text(
        json.dumps(
            {
                "study": "moved",
                "results": str(place),
                "pairs": ["tiny"],
                "tasks": ["code"],
                "methods": [{"method": "ngram", "k": 2}],
            }
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "make",
        "--no-print-directory",
        "--old-file",
        ".venv/ready",
        "ui",
        f"BIN={Path(sys.executable).parent}",
        f"CONFIG={config}",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | {
        "PORT": str(port)
    }
    log = place / "output.txt"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, cwd=repository, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, OSError):
                assert server.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.3)
        found = re.search(r"^Runs: (\S+)", log.read_text(), flags=re.MULTILINE)
        assert found, log.read_text()
        with Browser(place / "profile") as browser:
            yield Served(folder, found[1], browser)
    finally:
        with suppress(ProcessLookupError):  # it did not come up
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def test_the_address_leads_to_the_methods_with_their_speedups(served: Served) -> None:
    output = served.shows(served.address, "draft_model", "ngram", "speedup", "best_k")
    assert "k = 2" not in output, "cells are another view"


def test_the_charts_open_with_speedup_by_method(served: Served) -> None:
    output = served.shows(f"{served.address}&compareRunsMode=CHART", "Speedup by method", "Model metrics")
    assert output.index("Speedup by method") < output.index("Model metrics")


def test_a_row_of_the_report_leads_to_its_run(served: Served) -> None:
    link = mlflow_runs(served.folder, "made_up") + quote("tags.cell = 'native/tiny/draft_model/code-k4-t0-b1'", safe="")
    output = served.shows(link.replace("http://127.0.0.1:5000", served.root), "draft_model, k = 4, code")
    assert "k = 2" not in output and "ngram" not in output.replace("tags.", "")


def test_two_runs_are_compared(served: Served) -> None:
    names = ("draft_model, k = 4, code", "ngram, k = 4, code")
    runs = json.dumps([served.run(name) for name in names])
    address = f"{served.root}/#/compare-runs?runs={quote(runs)}&experiments={quote(json.dumps(['1']))}"
    served.shows(address, *names, "acceptance_rate", "tokens_per_s")


def test_a_file_opens_where_the_study_lies_now(served: Served) -> None:
    run = served.run("made_up: report, tables, figures")
    served.shows(
        f"{served.root}/#/experiments/1/runs/{run}/artifacts/tables/speedup.md", "speedup.md", "draft", "ngram"
    )
