"""The colours and markers of figures: a method has the same in every figure."""

from __future__ import annotations

from typing import Any

from specrig.results.labels import BASELINES, listed

INK = "#22303c"
"""The colour of text and axes in figures. The report replaces it with the page's own colour, light or dark."""
PAPER = "#fefefe"
"""The colour of gaps between coloured areas. The report replaces it with the page's background."""
GRID = "#b8c2cc"

# Wong, Nature Methods 8, 441 (2011), and seven more: told apart by all common kinds of colour blindness, mid-toned
# enough for light and dark pages.
PALETTE = (
    "#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #8c6bb1 #a6761d #6b8e23 #44aa99 #117733 #cc6677 #882255"
).split()
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">"]
TASK_PALETTE = [
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
]  # Tol's "bright", so no task wears a method's colour
# Tol's "vibrant": engines meet methods and tasks on no figure's legend.
ENGINE_PALETTE = ["#0077bb", "#ee7733", "#009988", "#cc3311", "#33bbee", "#ee3377"]
GREYS = {"autoregressive": "#7f8c99", "naive_batching": "#a3adb8"}


def method_colour(method: str) -> str:
    """The colour of a method, the same in every figure of every study."""
    return GREYS.get(method) or PALETTE[_number(method) % len(PALETTE)]


def method_marker(method: str) -> str:
    """The marker of a method. Methods that share a colour have different markers."""
    number = _number(method)
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def method_hatch(method: str, *, lossless: bool) -> str:
    """The hatch of a method's bars: oblique if it is lossy, level if another method has its colour."""
    shares = method not in BASELINES and _number(method) >= len(PALETTE)
    return ("" if lossless else "///") + ("---" if shares else "")


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
    (which publishers ask for).
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
    named = [name for name in listed() if name not in BASELINES]
    # A method that is not registered (another's records): its name decides, so that it keeps its colour whatever else
    # is in the study.
    return named.index(method) if method in named else len(named) + sum(method.encode())
