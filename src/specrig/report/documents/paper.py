"""Write the folder for papers: figures in two widths, tables, references, a document that has them all."""

from __future__ import annotations

import shutil
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from specrig.files import write_atomically
from specrig.report.citations import BIBLIOGRAPHY
from specrig.report.documents.contents import Contents, Paragraph, Ready, ReadySection, ReadyTable
from specrig.report.figures.panels import COLUMN, PAGE
from specrig.report.grid import Grid
from specrig.report.items import Block, Figure
from specrig.report.latex import FALLBACK, FOREIGN, PACKAGES, STRIKING, escape, latex, over_pages

TEMPLATE = "main.tex.j2"


def write_paper(contents: Contents, figures: dict[str, list[tuple[str, str]]], out: Path) -> Path:
    """Write `main.tex`, `references.bib` and `tables/` beside the `figures/` that are in `out`; returns `out`.

    figures: name -> (setting, stem) of the figures that have data. `pdflatex main` makes a document as it is; `bibtex
    main` and two more runs add the references.
    """
    for grid in contents.tables():
        write_atomically(out / "tables" / f"{_stem(grid)}.tex", latex(grid))
    shutil.copyfile(BIBLIOGRAPHY, out / BIBLIOGRAPHY.name)
    template = Environment(
        loader=PackageLoader("specrig.report.documents"),
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
    sections = [
        (section, [_item(item, figures) for item in _ordered(section) if not isinstance(item, Block)])
        for section in contents.sections
    ]
    write_atomically(
        out / "main.tex",
        template.render(
            contents=contents,
            packages=[PACKAGES, *([STRIKING] if any(_struck(grid) for grid in contents.tables()) else [])],
            tex=escape,
            foreign=FOREIGN + FALLBACK,
            body=[(section.title, items) for section, items in sections if not section.late],
            appendix=[(section.title, items) for section, items in sections if section.late],
            long=[f"tables/{_stem(grid)}" for section, _ in sections if not section.late for grid in _long(section)],
            bibliography=BIBLIOGRAPHY.stem,
            widths={
                "column": f"{COLUMN.width}in",
                "page": f"{PAGE.width}in",
                "gap": f"{(PAGE.width or 0) - 2 * (COLUMN.width or 0):.2f}in",
            },
        ),
    )
    return out


def _ordered(section: ReadySection) -> list[Ready]:
    """The items of a section that stand in it: tables over several pages wait for the appendix."""
    if section.late:
        return section.items
    return [item for item in section.items if not (isinstance(item, ReadyTable) and over_pages(item.grid))]


def _struck(grid: Grid) -> bool:
    return any(entry.struck for row in grid.rows for entry in row)


def _long(section: ReadySection) -> list[Grid]:
    return [grid for grid in section.tables() if over_pages(grid)]


def _stem(grid: Grid) -> str:
    return grid.label.removeprefix("tab:").replace("_", "-")


def _item(item: Paragraph | ReadyTable | Figure, figures: dict[str, list[tuple[str, str]]]) -> dict[str, object]:
    """An item as the template reads it: a text, the file of a table, or the files of a figure."""
    if isinstance(item, ReadyTable):
        return {"table": f"tables/{_stem(item.grid)}"}
    if isinstance(item, Figure):
        sheet = COLUMN if item.column else PAGE
        files = [
            (f"figures/{stem}-{sheet.name}", item.caption + (f" Setting: {setting}." if setting else ""))
            for setting, stem in figures.get(item.name, [])
        ]
        return {"figures": files, "environment": "figure" if sheet is COLUMN else "figure*"}
    return {"text": item.text}
