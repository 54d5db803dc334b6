"""How a report carries its tables' files: inside the page, so that it is one file, or beside it."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from specrig.cell import Cell
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.latex import latex
from specrig.tables import table_text

RUNS_NOTE = "Run: the cell in MLflow's pages, which make ui starts (with the CONFIG of this study)."


class Attachments(ABC):
    """The tables' files and the links of a report."""

    links_note = ""
    """What a reader must know of `links`."""

    @abstractmethod
    def table(self, name: str, frame: pd.DataFrame, formatted: Grid) -> list[tuple[str, str]]:
        """Return (file name, link) for each file format of a table.

        name: the file name without ending. frame: the data. formatted: the same for readers.
        """

    @abstractmethod
    def config(self, config: dict[str, Any]) -> str:
        """Return the link to the resolved study."""

    @abstractmethod
    def records(self, folder: Path) -> str:
        """Return the folder of the records as the reader should see it. folder: the study's."""

    @abstractmethod
    def links(self, cell: Cell) -> list[GridEntry]:
        """Return the entries of a row that lead to its cell's record, and to its MLflow run where known."""


class Embedded(Attachments):
    """Everything is inside the page. Only the links to records and runs lead out of it."""

    def __init__(self, results: str, runs: str) -> None:
        """results: the study's folder, as seen from the page's. runs: see `mlflow_runs`; empty: no links to MLflow."""
        self.results, self.runs = results, runs
        self.links_note = RUNS_NOTE if runs else ""

    def table(self, name: str, frame: pd.DataFrame, formatted: Grid) -> list[tuple[str, str]]:
        """Links that hold the table as CSV, LaTeX and Markdown."""
        return [
            (f"{name}.csv", _data_link("text/csv", table_text(frame))),
            (f"{name}.tex", _data_link("application/x-tex", latex(formatted))),
            (f"{name}.md", _data_link("text/markdown", grid.markdown(formatted))),
        ]

    def config(self, config: dict[str, Any]) -> str:
        """A link that holds the study as JSON."""
        return _data_link("application/json", json.dumps(config, indent=1))

    def records(self, folder: Path) -> str:
        """The folder in the study's results."""
        return f"{folder}/records"

    def links(self, cell: Cell) -> list[GridEntry]:
        """The cell's record file, and a search for its run in the MLflow that `make ui` starts."""
        found = [GridEntry("record", href=quote(f"{self.results}/records/{cell.name}.jsonl"))]
        return (
            [*found, GridEntry("run", href=self.runs + quote(f"tags.cell = '{cell.name}'", safe=""))]
            if self.runs
            else found
        )


class Beside(Attachments):
    """The page links to `tables/`, `records.tar.xz` and `study.json` in its own folder, as in a published study."""

    def table(self, name: str, frame: pd.DataFrame, formatted: Grid) -> list[tuple[str, str]]:
        """The link to the CSV file in `tables/`."""
        return [(f"{name}.csv", f"tables/{name}.csv")]

    def config(self, config: dict[str, Any]) -> str:
        """A link to the file beside the page."""
        return "study.json"

    def records(self, folder: Path) -> str:
        """The archive beside the page."""
        return "records.tar.xz"

    def links(self, cell: Cell) -> list[GridEntry]:
        """None: records are in the archive, and runs stay on the machine that measured."""
        return []


def mlflow_runs(study_dir: Path, name: str) -> str:
    """The address of the study's runs in the MLflow that `make ui` shows, up to a search for one of them; empty if it
    is not known.

    The experiment's id is read from the study's own store. A store that is still to be made gives its first experiment
    the id 1.
    """
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return ""  # its ids are only known to that server
    store, number = study_dir / "mlflow.db", "1"
    if store.is_file():
        try:
            with closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as opened:
                row = opened.execute("select experiment_id from experiments where name = ?", [name]).fetchone()
        except sqlite3.Error:
            return ""
        number = str(row[0]) if row else number
    # Without a workflow MLflow 3 shows the pages of its default one, about traces; sorted by time it hides a run in its
    # parent's row.
    query = "workflowType=machine_learning&orderByKey=metrics.%60speedup%60&orderByAsc=false"
    return f"http://127.0.0.1:5000/#/experiments/{number}/runs?{query}&searchFilter="


def _data_link(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
