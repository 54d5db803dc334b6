"""Write the report as PDF with Typst, whose compiler is a Python package: no TeX is needed."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import textwrap
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from specrig.report.citations import cited, reference
from specrig.report.documents.contents import Contents, Paragraph, ReadySection, ReadyTable
from specrig.report.figures.panels import COLUMN, PAGE
from specrig.report.fonts import foreign, missing
from specrig.report.grid import PAGE_SIGNS, Grid, GridEntry, fitting, unbroken
from specrig.report.items import Figure
from specrig.report.labels import DAGGER

TEMPLATE = "report.typ"


def write_pdf(
    contents: Contents, figures: dict[str, list[tuple[str, str]]], drawn: Path, out: Path, *, tags: bool = True
) -> Path:
    """Write the report to the file `out` and return it.

    figures: name -> (setting, stem) of the figures that have data. drawn: the folder with their PDF files. tags: write
    the structure that screen readers use, which is two thirds of a file.
    """
    import typst

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / TEMPLATE).write_text(
            files("specrig.report.documents").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
        )
        data = json.dumps(as_data(contents, figures), ensure_ascii=False)
        (folder / "data.json").write_text(data, encoding="utf-8")
        if lacking := missing(data):
            print(f"warning: {out}: {lacking}", file=sys.stderr)
        for file in drawn.glob("*.pdf"):
            shutil.copyfile(file, folder / file.name)
        typst.compile(
            str(folder / TEMPLATE),
            output=str(folder / "report.pdf"),
            root=str(folder),
            ignore_system_fonts=not foreign(data),
            pdf_tags=tags,
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "report.pdf", out.with_name(f".{out.name}"))
        out.with_name(f".{out.name}").replace(out)  # completely or not at all
    return out


def as_data(contents: Contents, figures: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """The outline as the template reads it, in types that JSON has."""
    numbers: dict[str, int] = {}  # of the references, in the order in which they are cited
    data = {
        "title": contents.title,
        "facts": contents.facts,
        "answers": contents.answers,
        "sections": [_section(section, figures) for section in contents.sections],
        "definitions": _halves(list(contents.definitions.items())),
    }
    marked: dict[str, Any] = _marked(data, numbers)
    # Typst's own bibliography gives up on citations in tables that are measured and break over pages.
    return {**marked, "references": _halves([(f"[{number}]", reference(key)) for key, number in numbers.items()])}


def _marked(value: Any, numbers: dict[str, int]) -> Any:
    """`value` with each arXiv number in its texts replaced by the number of its reference; `numbers` grows."""
    if isinstance(value, dict):
        return {name: _marked(inner, numbers) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(inner, numbers) for inner in value]
    return (
        unbroken(cited(value, lambda key: f"[{numbers.setdefault(key, len(numbers) + 1)}]"))
        if isinstance(value, str)
        else value
    )


def _halves(texts: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Pairs of texts in two columns of about the same length."""
    lengths = [len(first) + len(second) for first, second in texts]
    cut = sum(sum(lengths[: at + 1]) <= sum(lengths) / 2 + lengths[at] / 2 for at in range(len(texts)))
    return [texts[:cut], texts[cut:]]


def _section(section: ReadySection, figures: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """A section as the template reads it. Figures of a column's width stand side by side where two follow each other."""
    items: list[dict[str, Any]] = []
    floats = not section.section.first and not all(isinstance(item, Figure) for item in section.items)
    for item in section.items:
        if isinstance(item, ReadyTable):
            items.append({"kind": "table", **_table(item.grid)})
        elif isinstance(item, Figure):
            narrow = item.column and not section.section.first
            for setting, stem in figures.get(item.name, []):
                caption = item.caption + (f" Setting: {setting}." if setting else "")
                drawing = {"file": f"{stem}-{(COLUMN if narrow else PAGE).name}.pdf", "caption": caption}
                last = items[-1] if items else {}
                if narrow and last.get("narrow") and len(last["figures"]) == 1:
                    last["figures"].append(drawing)
                else:
                    items.append({"kind": "figures", "narrow": narrow, "float": floats, "figures": [drawing]})
                if section.section.first:
                    break
        elif isinstance(item, Paragraph):
            items.append({"kind": "warning" if item.warning else "text", "text": item.text})
    return {"title": section.title, "first": section.section.first, "items": items}


def _table(grid: Grid) -> dict[str, Any]:
    """A table; a number's sign moves into its note, so that the digits of a column stand below each other."""
    grid = fitting(grid, PAGE_SIGNS)
    groups: list[dict[str, Any]] = [
        {"line": line, "rows": [[_entry(entry) for entry in row] for row in rows]} for line, rows in grid.grouped()
    ]
    columns = []
    for position, (name, number) in enumerate(grid.columns):
        own = [row[position] for group in groups for row in group["rows"]]
        columns.append(
            {
                "name": "\n".join(_heading(name, own)),
                "number": number,
                "noted": number and any(entry["note"] for entry in own),
                "long": not number and max((len(entry["text"]) for entry in own), default=0) > 44,
            }
        )
    return {"caption": " ".join([grid.caption, *grid.notes]), "columns": columns, "groups": groups}


def _heading(name: str, entries: list[dict[str, Any]]) -> list[str]:
    """A column's name in lines that are not much wider than its entries."""
    width = max((len(f"{entry['text']} {entry['note']}".strip()) for entry in entries), default=len(name))
    return textwrap.wrap(name, max(width, 8), break_long_words=False)


def _entry(entry: GridEntry) -> dict[str, Any]:
    found = re.fullmatch(rf"([\d.,–-]+) ({DAGGER})", entry.text)
    view = asdict(entry)
    return view | ({"text": found[1], "note": f"{found[2]} {entry.note}".strip()} if found else {})
