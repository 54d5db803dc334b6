"""A table as people read it, and its three renderings: Markdown, LaTeX (booktabs) and, through the template, HTML."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrig.reporting.style import DAGGER, DISTURBED_SIGN


@dataclass(frozen=True, slots=True)
class Entry:
    """One value: `text`, a smaller `note` behind it (its interval), best of its column (`bold`), condemned (`struck`)."""

    text: str
    note: str = ""
    bold: bool = False
    struck: bool = False


@dataclass(slots=True)
class Grid:
    """Header, rows of entries, and what a paper needs around them. The first `labels` columns are text, the rest numbers.

    The first `groups` columns of these say what many rows share (pair, temperature): on a page a line over those rows says it once.
    """

    header: list[str]
    rows: list[list[Entry]]
    labels: int = 1
    caption: str = ""
    label: str = ""
    notes: list[str] = field(default_factory=list)
    groups: int = 0

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """(name, whether it holds numbers) of the columns that are not in the lines over the rows."""
        return [(name, number >= self.labels) for number, name in enumerate(self.header)][self.groups :]

    def grouped(self) -> list[tuple[str, list[list[Entry]]]]:
        """(line over them, rows without their first `groups` entries), in the order in which the groups first appear."""
        found: dict[str, list[list[Entry]]] = {}
        for row in self.rows:
            shared = (f"{name} {entry.text}" for name, entry in zip(self.header, row[: self.groups], strict=False))
            found.setdefault(", ".join(shared), []).append(row[self.groups :])
        return list(found.items())


def number(value: float | None, digits: int = 2) -> str:
    """A number for people: fixed digits, thousands apart, an en dash where it is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share as per cent, an en dash where it is undefined."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def interval(low: float, high: float, digits: int = 2) -> str:
    """`[1.53, 1.71]`, empty where it is not known."""
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) and math.isfinite(high) else ""


def markdown(grid: Grid) -> str:
    """GitHub's table syntax: bold as `**`, struck through as `~~`, the caption above and the notes below."""

    def show(entry: Entry) -> str:
        text = _escape_markdown(entry.text)
        text = f"**{text}**" if entry.bold else text
        text = f"~~{text}~~" if entry.struck else text
        return f"{text} {entry.note}" if entry.note else text

    lines = [
        _row([_escape_markdown(name) for name in grid.header]),
        _row([":--" if column < grid.labels else "--:" for column in range(len(grid.header))]),
        *(_row([show(entry) for entry in row]) for row in grid.rows),
    ]
    notes = "".join(f"\n{_escape_markdown(note)}\n" for note in grid.notes)
    return f"{grid.caption}\n\n" + "\n".join(lines) + "\n" + notes


PAGE = 45
"""Rows that fit on one page; a longer table is set as a longtable, which goes on over several."""


def latex(grid: Grid) -> str:
    """A table ready to paste, at most as wide as the line; the comment on top names the packages that it needs.

    Numbers with a note behind them take two columns, so that the numbers line up whether all have notes or not.
    """
    entries = [row for _, rows in grid.grouped() for row in rows]
    noted = [any(row[number].note for row in entries) for number in range(len(grid.columns))]
    spans = [2 if number and wide else 1 for (_, number), wide in zip(grid.columns, noted, strict=True)]
    spec = "".join(
        "l" if not number else "r" if span == 1 else r"r@{\;}l" for (_, number), span in zip(grid.columns, spans, strict=True)
    )
    body: list[str] = []
    for line, rows in grid.grouped():
        heading = f"\\multicolumn{{{sum(spans)}}}{{l}}{{\\textit{{{escape_latex(line)}}}}}" + r" \\"
        body += [*(["\\midrule"] if body else []), *([heading] if line else [])]
        body += [" & ".join(_cell(entry, span) for entry, span in zip(row, spans, strict=True)) + r" \\" for row in rows]
    body = body or [f"\\multicolumn{{{sum(spans)}}}{{l}}{{nothing to show}}" + r" \\"]
    head = " & ".join(
        _heading(name, number, span, [row[column] for row in entries])
        for column, ((name, number), span) in enumerate(zip(grid.columns, spans, strict=True))
    )
    caption = f"\\caption{{{escape_latex(' '.join([grid.caption, *grid.notes]))}}}"
    caption += f"\\label{{{grid.label}}}"
    struck = ", [normalem]ulem" if any(entry.struck for row in entries for entry in row) else ""
    lines = _longtable if len(body) > PAGE else _table
    return "\n".join(lines(caption, spec, head + r" \\", body, struck)) + "\n"


def _table(caption: str, spec: str, head: str, body: list[str], struck: str) -> list[str]:
    return [
        f"% needs: booktabs, graphicx{struck}; over both columns of a page: table* instead of table",
        "\\begin{table}[t]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}\\setlength{\\belowcaptionskip}{6pt}",
        caption,
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{spec}}}",
        *("\\toprule", head, "\\midrule", *body, "\\bottomrule"),
        "\\end{tabular}}",
        "\\end{table}",
    ]


def _longtable(caption: str, spec: str, head: str, body: list[str], struck: str) -> list[str]:
    return [
        f"% needs: booktabs, longtable, pdflscape{struck}; pages of their own, on their side: for an appendix",
        "\\begin{landscape}\\scriptsize\\setlength{\\tabcolsep}{4pt}\\setlength{\\LTcapwidth}{\\linewidth}",
        f"\\begin{{longtable}}{{{spec}}}",
        caption + r" \\",
        *("\\toprule", head, "\\midrule", "\\endfirsthead"),
        *("\\toprule", head, "\\midrule", "\\endhead", "\\bottomrule", "\\endfoot"),
        *body,
        "\\end{longtable}",
        "\\end{landscape}",
    ]


def _cell(entry: Entry, span: int) -> str:
    text = escape_latex(entry.text)
    text = f"\\textbf{{{text}}}" if entry.bold else text
    text = f"\\sout{{{text}}}" if entry.struck else text
    note = f"{{\\scriptsize {escape_latex(entry.note)}}}" if entry.note else ""
    return f"{text} & {note}" if span == 2 else f"{text} {note}".strip()


def _heading(name: str, number: bool, span: int, entries: list[Entry]) -> str:
    """A column's name, broken so that it is not much wider than what stands below it."""
    width = max((len(entry.text) + len(entry.note) for entry in entries), default=len(name))
    lines = textwrap.wrap(name, max(width, 8), break_long_words=False)
    side = "c" if span == 2 else "r" if number else "l"
    text = r"\\".join(map(escape_latex, lines))
    text = f"\\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text
    return f"\\multicolumn{{2}}{{c}}{{{text}}}" if span == 2 else text


_LATEX = {
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


def escape_latex(text: str) -> str:
    """`text` with every sign that LaTeX reads as its own, or lacks, written out; minus signs and the gap before % as typeset."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in text)
    escaped = re.sub(r"(?<=\d) \\%", r"\\,\\%", escaped)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("_", r"\_")


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
