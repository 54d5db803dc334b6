"""Render a `Grid` as LaTeX (booktabs), ready to paste.

pandas' `Styler.to_latex` is not used. It cannot set a line above a group of rows, a column of its own for the note behind a
number, or anything around the tabular (a comment on top, fitting to the line, landscape). It would only join cells by `&`.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from specrig.reporting.grid import Entry, Grid
from specrig.reporting.style import DAGGER, DISTURBED_SIGN

PAGE = 45
"""The number of rows that fit on one page. A longer table becomes a longtable, which continues over several pages."""


def latex(grid: Grid) -> str:
    """The grid as a LaTeX table, or as a longtable if it exceeds a page. A comment in the first line names the packages."""
    groups = grid.grouped()
    rows = [row for _, members in groups for row in members]
    columns = [_Column(name, number, [row[place] for row in rows]) for place, (name, number) in enumerate(grid.columns)]
    width = sum(column.span for column in columns)

    body: list[str] = []
    for line, members in groups:
        if body:
            body.append(r"\midrule")
        if line:
            body.append(_line(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{escape(line)}}}}}"))
        body += [_line(*(column.cell(entry) for column, entry in zip(columns, row, strict=True))) for row in members]

    table = _Table(
        caption=f"\\caption{{{escape(' '.join([grid.caption, *grid.notes]))}}}\\label{{{grid.label}}}",
        spec="".join(column.spec for column in columns),
        head=_line(*(column.heading() for column in columns)),
        body=body or [_line(f"\\multicolumn{{{width}}}{{l}}{{nothing to show}}")],
        packages=", [normalem]ulem" if any(entry.struck for row in rows for entry in row) else "",
    )
    return "\n".join(table.over_pages() if len(table.body) > PAGE else table.on_a_page()) + "\n"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of text or of numbers. Numbers with notes take two LaTeX columns, so that the numbers are aligned."""

    name: str
    number: bool
    entries: list[Entry]

    @property
    def span(self) -> int:
        """The number of LaTeX columns that it takes."""
        return 2 if self.number and any(entry.note for entry in self.entries) else 1

    @property
    def spec(self) -> str:
        """Its part of the tabular's column specification."""
        if self.span == 2:
            return r"r@{\;}l"
        return "r" if self.number else "l"

    def heading(self) -> str:
        """Its name, broken into lines that are not much wider than its entries."""
        width = max((len(entry.text) + len(entry.note) for entry in self.entries), default=len(self.name))
        lines = [escape(line) for line in textwrap.wrap(self.name, max(width, 8), break_long_words=False)]
        side = "c" if self.span == 2 else self.spec
        text = r"\\".join(lines)
        text = f"\\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text
        return f"\\multicolumn{{2}}{{c}}{{{text}}}" if self.span == 2 else text

    def cell(self, entry: Entry) -> str:
        """The LaTeX of one of its entries."""
        text = escape(entry.text)
        text = f"\\textbf{{{text}}}" if entry.bold else text
        text = f"\\sout{{{text}}}" if entry.struck else text
        note = f"{{\\scriptsize {escape(entry.note)}}}" if entry.note else ""
        return f"{text} & {note}" if self.span == 2 else f"{text} {note}".strip()


@dataclass(frozen=True, slots=True)
class _Table:
    """The parts of a table in LaTeX: caption with label, column specification, line of names, lines below, further packages."""

    caption: str
    spec: str
    head: str
    body: list[str]
    packages: str

    def on_a_page(self) -> list[str]:
        """The lines of a floating table, scaled down where it would be wider than the line."""
        return [
            f"% needs: booktabs, graphicx{self.packages}; over both columns of a page: table* instead of table",
            r"\begin{table}[t]",
            r"\centering\footnotesize\setlength{\tabcolsep}{4pt}\setlength{\belowcaptionskip}{6pt}",
            self.caption,
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            f"\\begin{{tabular}}{{{self.spec}}}",
            *(r"\toprule", self.head, r"\midrule", *self.body, r"\bottomrule"),
            r"\end{tabular}}",
            r"\end{table}",
        ]

    def over_pages(self) -> list[str]:
        """The lines of a table on landscape pages of its own, with the column names on top of each page."""
        return [
            f"% needs: booktabs, longtable, pdflscape{self.packages}; pages of their own, on their side: for an appendix",
            r"\begin{landscape}\scriptsize\setlength{\tabcolsep}{4pt}\setlength{\LTcapwidth}{\linewidth}",
            f"\\begin{{longtable}}{{{self.spec}}}",
            _line(self.caption),
            *(r"\toprule", self.head, r"\midrule", r"\endfirsthead"),
            *(r"\toprule", self.head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot"),
            *self.body,
            r"\end{longtable}",
            r"\end{landscape}",
        ]


def _line(*cells: str) -> str:
    """A line of a tabular."""
    return " & ".join(cells) + r" \\"


_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    DAGGER: r"$^\dagger$",
    DISTURBED_SIGN: r"$^\ddagger$",
    "–": "--",
    "×": r"$\times$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "σ": r"$\sigma$",
}


def escape(text: str) -> str:
    """`text` for LaTeX: special and missing characters become commands; minus signs and the space before % are typeset."""
    escaped = "".join(_SIGNS.get(sign, sign) for sign in text)
    escaped = re.sub(r"(?<=\d) \\%", r"\\,\\%", escaped)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)
