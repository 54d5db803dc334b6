"""Two ways in which a report carries pictures and tables: inside the page, so that it is one file, or as files beside it."""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from specrig.reporting import grid
from specrig.reporting.grid import Grid
from specrig.reporting.latex import latex
from specrig.reporting.style import GRID, INK, PAPER


class Attachments(ABC):
    """The pictures, tables and links of a report.

    picture_sources: the img-src value of the page's content security policy.
    """

    picture_sources: str

    @abstractmethod
    def picture(self, path: Path) -> Markup:
        """Return the HTML element that shows a figure's SVG file."""

    @abstractmethod
    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """Return (file name, link) for each file format of a table.

        name: the file name without ending. frame: the data. shown: the same for readers.
        """

    @abstractmethod
    def config(self, config: dict[str, Any]) -> str:
        """Return the link to the resolved study."""

    @abstractmethod
    def records(self, study: str) -> str:
        """Return the folder of the records as the reader should see it."""


class Embedded(Attachments):
    """Everything is inside the page, which needs neither a network nor other files."""

    picture_sources = "data:"

    def picture(self, path: Path) -> Markup:
        """The SVG itself, see `inline_svg`."""
        return inline_svg(path)

    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """Links that hold the table as CSV, LaTeX and Markdown."""
        return [
            (f"{name}.csv", _data_link("text/csv", frame.to_csv(index=False))),
            (f"{name}.tex", _data_link("application/x-tex", latex(shown))),
            (f"{name}.md", _data_link("text/markdown", grid.markdown(shown))),
        ]

    def config(self, config: dict[str, Any]) -> str:
        """A link that holds the study as JSON."""
        return _data_link("application/json", json.dumps(config, indent=1))

    def records(self, study: str) -> str:
        """The folder in the study's results."""
        return f"results/{study}/records"


class Beside(Attachments):
    """The page links to `figures/`, `tables/`, `records/` and `study.json` in its own folder, as in a published study."""

    picture_sources = "'self' file: data:"

    def picture(self, path: Path) -> Markup:
        """An image on a white background, because figures are drawn in dark ink whatever the page's colours are."""
        return Markup('<img src="figures/{}" alt="{}" style="max-width: 100%; background: #fff">').format(path.name, path.stem)

    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """Links to the CSV and Markdown files in `tables/`."""
        return [(f"{name}.{ending}", f"tables/{name}.{ending}") for ending in ("csv", "md")]

    def config(self, config: dict[str, Any]) -> str:
        """A link to the file beside the page."""
        return "study.json"

    def records(self, study: str) -> str:
        """The folder beside the page, whose files are compressed."""
        return "records"


def inline_svg(path: Path) -> Markup:
    """An SVG file as an HTML element. Its ids get the file's name as a prefix, its ink and paper become the page's colours."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 style="max-width:\2pt" role="img"', text, count=1)
    stem = re.sub(r"\W", "_", path.stem)
    text = re.sub(r'\bid="', f'id="{stem}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{stem}-", text)
    for colour, name in ((INK, "currentColor"), (PAPER, "var(--paper)"), (GRID, "var(--line)")):
        text = text.replace(colour, name)
    return Markup(text)  # drawn by this program from numbers and configured names, which matplotlib escapes


def _data_link(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
