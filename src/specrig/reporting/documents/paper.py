"""Write the folder for papers: figures in a column's and a page's width, tables, references, and a document that
includes them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from specrig.measurement.records import write_atomically
from specrig.reporting.documents.outline import Caution, Outline, Section, Shown
from specrig.reporting.figures.panels import COLUMN, PAGE
from specrig.reporting.tables.latex import PACKAGES, STRIKING, escape, latex, over_pages
from specrig.results.citations import BIBLIOGRAPHY
from specrig.results.grid import Grid
from specrig.results.names import FIGURES

ONE_COLUMN = ("heatmap", "predicted", "reported")
"""The figures that the document sets in one column; the others take both."""
TEMPLATE = "main.tex.j2"


def write_paper(contents: Outline, figures: dict[str, list[tuple[str, str]]], out: Path) -> Path:
    """Write `main.tex`, `references.bib` and `tables/` beside the `figures/` that are in `out`; returns `out`.

    figures: name -> (setting, stem) of the figures that have data. `pdflatex main` makes a document as it is; `bibtex
    main` and two more runs add the references.
    """
    for grid in contents.tables():
        write_atomically(out / "tables" / f"{_stem(grid)}.tex", latex(grid))
    shutil.copyfile(BIBLIOGRAPHY, out / BIBLIOGRAPHY.name)
    template = Environment(
        loader=PackageLoader("specrig.reporting.documents"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # LaTeX is full of braces and per cent signs.
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    ).get_template(TEMPLATE)
    sections = [(section, [_item(item, figures) for item in _ordered(section)]) for section in contents.sections]
    write_atomically(
        out / "main.tex",
        template.render(
            contents=contents,
            packages=[PACKAGES, *([STRIKING] if any(_struck(grid) for grid in contents.tables()) else [])],
            tex=escape,
            body=[(section.title, items) for section, items in sections if not _late(section)],
            appendix=[(section.title, items) for section, items in sections if _late(section)],
            long=[f"tables/{_stem(grid)}" for section, _ in sections for grid in _long(section) if not _late(section)],
            bibliography=BIBLIOGRAPHY.stem,
            widths={
                "column": f"{COLUMN.width}in",
                "page": f"{PAGE.width}in",
                "gap": f"{(PAGE.width or 0) - 2 * (COLUMN.width or 0):.2f}in",
            },
        ),
    )
    return out


def _late(section: Section) -> bool:
    """Whether a section stands in the appendix."""
    return section.appendix or section.detail


def _ordered(section: Section) -> list[str | Caution | Grid | Shown]:
    """The items of a section that stand in it: tables over several pages wait for the appendix."""
    late = [] if _late(section) else _long(section)
    return [item for item in section.items if item not in late]


def _struck(grid: Grid) -> bool:
    return any(entry.struck for row in grid.rows for entry in row)


def _long(section: Section) -> list[Grid]:
    return [item for item in section.items if isinstance(item, Grid) and over_pages(item)]


def _stem(grid: Grid) -> str:
    return grid.label.removeprefix("tab:").replace("_", "-")


def _item(item: str | Caution | Grid | Shown, figures: dict[str, list[tuple[str, str]]]) -> dict[str, object]:
    """An item as the template reads it: a text, the file of a table, or the files of a figure."""
    if isinstance(item, Grid):
        return {"table": f"tables/{_stem(item)}"}
    if isinstance(item, Shown):
        sheet = COLUMN if item.name in ONE_COLUMN else PAGE
        files = [
            (f"figures/{stem}-{sheet.name}", FIGURES[item.name] + (f" Setting: {setting}." if setting else ""))
            for setting, stem in figures.get(item.name, [])
        ]
        return {"figures": files, "environment": "figure" if sheet is COLUMN else "figure*"}
    return {"text": item.text if isinstance(item, Caution) else item}
