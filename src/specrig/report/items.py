"""What the report's outline is made of: texts, tables, figures and blocks, in sections. No pandas: the workflow reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from specrig.report.grid import Grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Drawn

    from specrig.report.study_results import DataTable, StudyResults

Medium = Literal["html", "print", "paper"]
"""A page, the PDF, and the folder for papers, which has all that the PDF has (`shown_in`)."""


def shown_in(only: Medium | None, medium: Medium) -> bool:
    """Whether an item with this `only` is in a document of the kind `medium`."""
    return only in (None, medium) or (only == "print" and medium == "paper")


def always(results: StudyResults) -> bool:
    """The condition of what every report has."""
    return True


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs. of: the text, or what gives it; what it leaves empty is left out. warning: they are set as one."""

    of: str | Callable[[StudyResults], str | Sequence[str]]
    warning: bool = False
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    of: gives it as a `DataTable`, as one or several `Grid`s, or as a DataFrame, which is shown as it is; None: no such
    table. caption: that of a DataFrame. file: it is written to `tables/` as CSV, Markdown and LaTeX; the text is its
    caption in Snakemake's report. title: HTML puts it above the table. fold: HTML shows the table on a click on these
    words. wide: HTML gives its last column room for sentences. linked: HTML links each row to its cell's record.
    source: the file of the study that has the table where it is too long for print, if that is not its own.
    """

    name: str
    of: Callable[[StudyResults], DataTable | Grid | Sequence[Grid] | pd.DataFrame | None]
    file: str = ""
    caption: str = ""
    only: Medium | None = None
    title: str = ""
    fold: str = ""
    wide: bool = False
    linked: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure. caption: below it. file: its caption in Snakemake's report, if another.

    column: print sets it in one column. draw: draws it on a `figures.panels.Sheet`; None: `figures.drawings` does.
    """

    name: str
    caption: str
    file: str = ""
    column: bool = False
    draw: Callable[[StudyResults, Any], Drawn] | None = None
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the HTML page with a template of its own: `documents/templates/<name>.html.j2`."""

    name: str
    only: Medium | None = "html"


Item = Text | Table | Figure | Block


@dataclass(frozen=True, slots=True)
class Section:
    """A section. name: its anchor in HTML. given: whether a report has it.

    first: it is the first page, without a title. appendix, detail: a paper sets it behind the references.
    """

    name: str
    title: str
    items: tuple[Item, ...]
    condition: Callable[[StudyResults], object] = always
    appendix: bool = False
    detail: bool = False
    first: bool = False

    @property
    def late(self) -> bool:
        """Whether a paper sets it behind the references."""
        return self.appendix or self.detail
