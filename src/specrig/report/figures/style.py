"""The colours and markers of figures: a method has the same in every figure."""

from __future__ import annotations

from typing import Any

from specrig.decoding.drafters import registry as methods
from specrig.report.labels import listed

INK = "#22303c"
"""The colour of text and axes in figures. The report replaces it with the page's own colour, light or dark."""
PAPER = "#fefefe"
"""The colour of gaps between coloured areas. The report replaces it with the page's background."""
GRID = "#b8c2cc"

FAMILIES = {
    "copying": "#009e73",
    "draft model": "#0072b2",
    "heads": "#d55e00",
    "one pass": "#8c6bb1",
    "none": "#7f8c99",
}
"""The colours of families (`Drafter.family`). Wong, Nature Methods 8, 441 (2011), and one more: distinct for all common
kinds of colour blindness, mid-toned enough for light and dark pages."""
OTHERS = "#a6761d"
"""The colour of methods that are not registered (another's records)."""
SHADES = (0.0, 0.35, -0.3, 0.55, -0.5, 0.18, -0.15)
"""How far the methods of a family, one after another, lie from its colour towards white; below 0 towards black."""
ROUND_PARTS = (
    ("drafting", "draft_share", "#56b4e9"),
    ("verification", "target_share", "#8c9aa5"),
    ("loop", "loop_share", "#e69f00"),
)
"""The parts of a round: name, column of its share, colour."""
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">"]
# Tol's "bright", so no task wears a family's colour.
TASK_PALETTE = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"]
# Tol's "vibrant": engines meet methods and tasks on no figure's legend.
ENGINE_PALETTE = ["#0077bb", "#ee7733", "#009988", "#cc3311", "#33bbee", "#ee3377"]


def method_family(method: str) -> str:
    """The family of a method; "other" for one that is not registered."""
    known = methods().get(method)
    return "other" if known is None else known.family


def family_colour(family: str) -> str:
    """The colour of a family."""
    return FAMILIES.get(family, OTHERS)


def method_colour(method: str) -> str:
    """The colour of a method, a shade of its family's: the same in every figure of every study."""
    shade = SHADES[_number(method) % len(SHADES)]
    base = family_colour(method_family(method))
    parts = [int(base[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [part + (255 - part) * shade if shade > 0 else part * (1 + shade) for part in parts]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def method_marker(method: str) -> str:
    """The marker of a method. Methods that share a colour have different markers."""
    return MARKERS[_number(method) % len(MARKERS)]


def task_style(task: str, tasks: list[str]) -> dict[str, Any]:
    """The colour and marker of a task. tasks: all tasks of the study; raises ValueError if `task` is not one of them."""
    number = tasks.index(task)
    return {"color": TASK_PALETTE[number % len(TASK_PALETTE)], "marker": MARKERS[number % len(MARKERS)]}


def engine_style(engine: str, engines: list[str]) -> dict[str, Any]:
    """The colour and marker of an engine, without a line. engines: all engines that are compared."""
    number = engines.index(engine)
    return {
        "color": ENGINE_PALETTE[number % len(ENGINE_PALETTE)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": "none",
    }


def rc(size: float = 11) -> Any:
    """The matplotlib settings for figures whose text has `size` points: reproducible SVG with text as text (searchable,
    and a third of the size of outlines; the fonts it names are on most machines), PDF with embedded TrueType fonts
    (which publishers require).
    """
    return {
        "svg.hashsalt": "specrig",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "figure.dpi": 100,
        "savefig.dpi": 160,
        "font.size": size,
        "axes.titlesize": 1.09 * size,
        "axes.labelsize": size,
        **dict.fromkeys(
            ("legend.title_fontsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 0.91 * size
        ),
        "lines.linewidth": 0.16 * size,
        "lines.markersize": 0.55 * size,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "grid.alpha": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.columnspacing": 1.2,
        "legend.handlelength": 1.6,
        "legend.handletextpad": 0.5,
        **{f"{name}color": INK for name in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")},
    }


def _number(method: str) -> int:
    """The position of a method in its family. That of one that is not registered follows from its name, so that it
    keeps its look whatever else is in the study.
    """
    family = method_family(method)
    own = [name for name in listed() if method_family(name) == family]
    return own.index(method) if method in own else sum(method.encode())
