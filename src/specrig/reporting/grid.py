"""A table as people read it, and its three renderings: Markdown, LaTeX (booktabs) and, through the template, HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrig.reporting.style import DAGGER


@dataclass(frozen=True, slots=True)
class Entry:
    """One value: `text`, a smaller `note` behind it (its interval), best of its column (`bold`), condemned (`struck`)."""

    text: str
    note: str = ""
    bold: bool = False
    struck: bool = False


@dataclass(slots=True)
class Grid:
    """Header, rows of entries, and what a paper needs around them. The first `labels` columns are text, the rest numbers."""

    header: list[str]
    rows: list[list[Entry]]
    labels: int = 1
    caption: str = ""
    label: str = ""
    notes: list[str] = field(default_factory=list)


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


def latex(grid: Grid) -> str:
    """A `table` environment ready to paste; the comment on top names the packages that it needs."""

    def show(entry: Entry) -> str:
        text = escape_latex(entry.text)
        text = f"\\textbf{{{text}}}" if entry.bold else text
        text = f"\\sout{{{text}}}" if entry.struck else text
        return f"{text} {{\\scriptsize {escape_latex(entry.note)}}}" if entry.note else text

    packages = "booktabs, graphicx" + (", [normalem]ulem" if any(e.struck for row in grid.rows for e in row) else "")
    columns = "l" * grid.labels + "r" * (len(grid.header) - grid.labels)
    lines = [
        f"% needs: {packages}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{escape_latex(' '.join([grid.caption, *grid.notes]))}}}",
        f"\\label{{{grid.label}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        " & ".join(escape_latex(name) for name in grid.header) + r" \\",
        "\\midrule",
        *(" & ".join(show(entry) for entry in row) + r" \\" for row in grid.rows),
        "\\bottomrule",
        "\\end{tabular}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    DAGGER: r"$^\dagger$",
    "–": "--",
    "×": r"$\times$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "σ": r"$\sigma$",
}


def escape_latex(text: str) -> str:
    """`text` with every sign that LaTeX reads as its own, or lacks, written out."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("_", r"\_")


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
