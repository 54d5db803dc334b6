"""Render a `Grid` as LaTeX (booktabs, siunitx), ready to paste.

Neither pandas' `Styler` nor `great_tables` (tried: 1.1) is used: both align no numbers at the decimal point by siunitx,
break no table over pages, and set no label; in HTML `great_tables` adds 10 kB of styles to each table of a page.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cached_property

from specrig.report.citations import cited
from specrig.report.grid import LONG, PAGE_SIGNS, Grid, GridEntry, fitting, signs
from specrig.report.labels import DAGGER

PAGE = 45
"""The number of rows that fit on one page. A longer table becomes a longtable, which continues over several pages."""
COLUMN_SIGNS = 54
"""How many signs of a line in footnotesize fit into a column."""
PACKAGES = r"\usepackage{array,booktabs,longtable,siunitx}"
"""What a document needs to include any of the tables; siunitx of version 3."""
STRIKING = r"\newcommand{\struck}[1]{\setbox0=\hbox{#1}\rlap{\rule[.5ex]{\wd0}{.4pt}}\box0}"
"""What it needs besides for a table with results that the audit failed."""
SETUP = r"\sisetup{mode=text,reset-text-series=false,text-series-to-math=true}"
_NUMBER = re.compile(rf"(-?)([\d,]+)(?:\.(\d+))?( %)?(?: ({DAGGER}))?")


def latex(grid: Grid) -> str:
    """The grid as a LaTeX table, or as a longtable if it exceeds a page. A comment in the first line names the
    packages.

    Numbers are aligned at the decimal point. ArXiv numbers that references.bib has become citations.
    """
    grid = fitting(grid, PAGE_SIGNS)
    groups = grid.grouped()
    rows = [row for _, members in groups for row in members]
    columns = [
        _Column(name, number, [row[column] for row in rows]) for column, (name, number) in enumerate(grid.columns)
    ]
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
        signs=sum(column.signs for column in columns),
        packages=PACKAGES + (STRIKING if any(entry.struck for row in rows for entry in row) else ""),
    )
    lines = table.over_pages() if over_pages(grid) else table.on_a_page()
    if any(name in line for line in lines for name in (r"\cjk{", r"\foreign{")):
        lines.insert(1, FALLBACK)
    return "\n".join(lines) + "\n"


def over_pages(grid: Grid) -> bool:
    """Whether the grid is printed as a longtable, which a page with two columns cannot hold."""
    return len(grid.rows) > PAGE


@dataclass(frozen=True)
class _Column:
    """A column of text or numbers. Numbers with notes take two LaTeX columns."""

    name: str
    number: bool
    entries: list[GridEntry]

    @cached_property
    def found(self) -> list[re.Match[str]]:
        """The entries that are numbers, taken apart."""
        return [match for entry in self.entries if self.number and (match := _NUMBER.fullmatch(entry.text))]

    @cached_property
    def percent(self) -> bool:
        """Whether all its numbers are in per cent, so that the heading says so once."""
        return bool(self.found) and all(match[4] for match in self.found)

    @cached_property
    def span(self) -> int:
        """The number of LaTeX columns that it takes."""
        return 2 if self.number and any(entry.note for entry in self.entries) else 1

    @cached_property
    def signs(self) -> int:
        """How many signs wide it is."""
        return signs(self.name, self.entries)

    @cached_property
    def wraps(self) -> bool:
        """Whether its texts need several lines."""
        return not self.number and max((len(entry.text) + len(entry.note) for entry in self.entries), default=0) > LONG

    @cached_property
    def lines(self) -> list[str]:
        """Its name, broken into lines that are not much wider than its entries."""
        name = f"{self.name} (%)" if self.percent else self.name
        width = max((len(entry.text) + len(entry.note) for entry in self.entries), default=len(name))
        return textwrap.wrap(name, max(width, 8), break_long_words=False) or [""]

    @property
    def spec(self) -> str:
        """Its part of the tabular's column specification."""
        if not self.number:
            return r">{\raggedright\arraybackslash}p{17em}" if self.wraps else "l"
        if not self.found:
            return r"r@{\;}l" if self.span == 2 else "r"
        whole, decimals = (max(len((match[part] or "").replace(",", "")) for match in self.found) for part in (2, 3))
        minus = "-" if any(match[1] for match in self.found) else ""
        sign = next((match[5] for match in self.found if match[5]), "")
        after = f",table-space-text-post={{{escape(sign)}}}" if sign else ""
        form = f"S[table-format={minus}{whole}{f'.{decimals}' if decimals else ''}{after}]"
        return rf"{form}@{{\;}}l" if self.span == 2 else form

    def heading(self) -> str:
        """Its name, in braces where a number is expected."""
        lines = [escape(line) for line in self.lines]
        stacked = r"\\".join(lines)
        text = f"\\shortstack[{'c' if self.number else 'l'}]{{{stacked}}}" if len(lines) > 1 else stacked
        if self.span == 2:
            return f"\\multicolumn{{2}}{{c}}{{{text}}}"
        return f"{{{text}}}" if self.number else text

    def cell(self, entry: GridEntry) -> str:
        """The LaTeX of one of its entries."""
        note = f"{{\\scriptsize {escape(entry.note)}}}" if entry.note else ""
        match = _NUMBER.fullmatch(entry.text) if self.number else None
        if match is None or entry.struck or (match[4] and not self.percent):
            text = escape(entry.text)
            text = f"\\textbf{{{text}}}" if entry.bold else text
            text = f"\\struck{{{text}}}" if entry.struck else text
            text = f"{{{text}}}" if self.number else text
        else:
            digits = entry.text.split(" ")[0].replace(",", "")
            sign = f" {{\\,{escape(match[5])}}}" if match[5] else ""
            text = rf"\bfseries {digits}{sign}" if entry.bold else f"{digits}{sign}"
        return f"{text} & {note}" if self.span == 2 else f"{text} {note}".strip()


@dataclass(frozen=True, slots=True)
class _Table:
    """The parts of a table in LaTeX. signs: its width. packages: what it needs."""

    caption: str
    spec: str
    head: str
    body: list[str]
    signs: int
    packages: str

    def on_a_page(self) -> list[str]:
        """The lines of a floating table over one or both columns of a page, whichever it needs."""
        kind = "table*" if self.signs > COLUMN_SIGNS else "table"
        return [
            f"% needs: {self.packages}",
            rf"\begin{{{kind}}}[tp]",
            rf"\centering\footnotesize\setlength{{\tabcolsep}}{{4pt}}\setlength{{\belowcaptionskip}}{{6pt}}{SETUP}",
            self.caption,
            f"\\begin{{tabular}}{{{self.spec}}}",
            *(r"\toprule", self.head, r"\midrule", *self.body, r"\bottomrule"),
            r"\end{tabular}",
            rf"\end{{{kind}}}",
        ]

    def over_pages(self) -> list[str]:
        """The lines of a table over several pages, with the column names on each."""
        return [
            f"% needs: {self.packages}; one column of text, as in an appendix",
            rf"\begingroup\footnotesize\setlength{{\tabcolsep}}{{4pt}}\setlength{{\LTcapwidth}}{{\linewidth}}{SETUP}",
            f"\\begin{{longtable}}{{{self.spec}}}",
            _line(self.caption),
            *(r"\toprule", self.head, r"\midrule", r"\endfirsthead"),
            *(r"\toprule", self.head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot"),
            *self.body,
            r"\end{longtable}",
            r"\endgroup",
        ]


def _line(*cells: str) -> str:
    """A line of a tabular."""
    return " & ".join(cells) + r" \\"


_SIGNS = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    DAGGER: r"$^\dagger$", "–": "--", "…": r"\ldots{}", "×": r"$\times$", "τ": r"$\tau$",
    "α": r"$\alpha$", "Σ": r"$\Sigma$", "·": r"$\cdot$", "≥": r"$\geq$", "σ": r"$\sigma$", "χ": r"$\chi$", "±": r"$\pm$",
    "²": r"$^2$",
}  # fmt: skip


LATIN = 0x250
"""Fonts of LaTeX have the letters before this one, Czech and Turkish ones included; of later ones a few signs."""
FOREIGN = r"""\makeatletter\@ifundefined{XeTeXversion}{\@ifundefined{directlua}{%
\IfFileExists{CJKutf8.sty}{\usepackage{CJKutf8}\newcommand{\cjk}[2]{\begin{CJK}{UTF8}{gbsn}#1\end{CJK}}}{}}{}}{}\makeatother"""
"""The preamble of a document: Chinese and Japanese letters, where LaTeX has the package for them."""
FALLBACK = r"\providecommand{\cjk}[2]{\ifdefined\XeTeXversion#1\else\ifdefined\directlua#1\else#2\fi\fi}\providecommand{\foreign}[2]{\ifdefined\XeTeXversion#1\else\ifdefined\directlua#1\else#2\fi\fi}"
"""Letters for which LaTeX has no font stand as their code point, so that a name survives."""
_KEPT = "’‘“”"


def _foreign(sign: str) -> str:
    """A letter that LaTeX's usual fonts lack, with its code point."""
    if sign in _KEPT:
        return sign
    name = "cjk" if 0x2E80 <= ord(sign) < 0xA000 or 0xFF00 <= ord(sign) < 0xFFF0 else "foreign"
    return rf"\{name}{{{sign}}}{{U+{ord(sign):04X}}}"


def escape(text: str) -> str:
    """`text` for LaTeX: special and missing characters become commands; minus signs and the space before % are typeset."""
    escaped = "".join(_SIGNS.get(sign) or (sign if ord(sign) < LATIN else _foreign(sign)) for sign in text)
    escaped = re.sub(r"(?<=\d) \\%", r"\\,\\%", escaped)
    escaped = re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)
    return cited(escaped, lambda key: rf"\cite{{{key}}}")
