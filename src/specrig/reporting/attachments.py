"""How a report carries its pictures and tables: inside the page, so that it is one file, or as files beside it."""

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
    """What goes with the page. `picture_sources`: where the page may take pictures from, as its content security policy says it."""

    picture_sources: str

    @abstractmethod
    def picture(self, path: Path) -> Markup:
        """A figure's SVG file as an element of the page."""

    @abstractmethod
    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """(file name, link) of a table in each of its forms."""

    @abstractmethod
    def config(self, config: dict[str, Any]) -> str:
        """Link to the resolved study."""

    @abstractmethod
    def records(self, study: str) -> str:
        """Folder of the records, for the reader."""


class Embedded(Attachments):
    """All inside: the page needs no network and no neighbour."""

    picture_sources = "data:"

    def picture(self, path: Path) -> Markup:
        """See `inline_svg`."""
        return inline_svg(path)

    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """CSV, LaTeX and Markdown as data links."""
        return [
            (f"{name}.csv", _data_link("text/csv", frame.to_csv(index=False))),
            (f"{name}.tex", _data_link("application/x-tex", latex(shown))),
            (f"{name}.md", _data_link("text/markdown", grid.markdown(shown))),
        ]

    def config(self, config: dict[str, Any]) -> str:
        """A data link."""
        return _data_link("application/json", json.dumps(config, indent=1))

    def records(self, study: str) -> str:
        """In the study's results."""
        return f"results/{study}/records"


class Beside(Attachments):
    """`figures/`, `tables/`, `records/` and `study.json` in the page's own folder, as a published study has them."""

    picture_sources = "'self' file: data:"

    def picture(self, path: Path) -> Markup:
        """Drawn in ink, so it lies on paper whatever the page's colours are."""
        return Markup('<img src="figures/{}" alt="{}" style="max-width: 100%; background: #fff">').format(path.name, path.stem)

    def table(self, name: str, frame: pd.DataFrame, shown: Grid) -> list[tuple[str, str]]:
        """The files in `tables/`."""
        return [(f"{name}.{ending}", f"tables/{name}.{ending}") for ending in ("csv", "md")]

    def config(self, config: dict[str, Any]) -> str:
        """The file beside the page."""
        return "study.json"

    def records(self, study: str) -> str:
        """Beside the page, compressed."""
        return "records"


def inline_svg(path: Path) -> Markup:
    """An SVG file as an element of the page: ids made unique by its name, ink and paper taken from the page's own colours."""
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
