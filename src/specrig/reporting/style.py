"""All colours, markers and names: a method has the same colour and marker in every figure, and the same name in every
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from specrig.decoding.drafters import registry as methods

INK = "#22303c"
"""The colour of text and axes in figures. The report replaces it with the page's own colour, light or dark."""
PAPER = "#fefefe"
"""The colour of gaps between coloured areas. The report replaces it with the page's background."""
GRID = "#b8c2cc"

FIRST = [
    *["autoregressive", "naive_batching", "draft_model", "adaptive_k", "ngram", "lookahead", "medusa"],
    *["eagle", "eagle2", "tree", "medusa_draft", "eagle3", "suffix", "token_recycling", "remote_draft"],
    *["layer_skip", "rest", "hydra", "suffix_hybrid", "suffix_blend"],
]
"""The order of methods in tables and legends. Methods that are not in this list come after it (see `listed`)."""

# Wong, Nature Methods 8, 441 (2011), and seven more: told apart by all common kinds of colour blindness, mid-toned
# enough for light and dark pages.
PALETTE = [
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6bb1",
    "#a6761d",
    "#6b8e23",
    "#44aa99",
    "#117733",
    "#cc6677",
    "#882255",
]
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
BASELINES = {"autoregressive": "#7f8c99", "naive_batching": "#a3adb8"}

DAGGER = "†"
DISTURBED_SIGN = "‡"
DISTURBED_NOTE = "‡ disturbed: the machine did other things while it was measured, or its times do not fit each other; not to be read."
LOSSY_NOTE = "† lossy: its acceptance rule does not keep the target's distribution."
BOLD_NOTE = "Bold: the fastest lossless method of its group."
BATCHED_NOTE = "naive_batching is held against the same prompts one after another, the others against plain decoding of the same batch."
FAILED_NOTE = "Struck through: the audit found output that differs from the target's own."


def listed() -> list[str]:
    """All methods in the order of tables and legends. A method's place in this list decides its colour and marker."""
    return [*FIRST, *(name for name in methods() if name not in FIRST)]


def method_order(named: Iterable[str]) -> list[str]:
    """The different methods among `named`, in the order of `listed`; methods that are not registered come last, by
    name.
    """
    known = {name: number for number, name in enumerate(listed())}
    return sorted(set(named), key=lambda name: (known.get(name, len(known)), name))


def method_colour(method: str) -> str:
    """The colour of a method, the same in every figure of every study."""
    return BASELINES.get(method) or PALETTE[_number(method) % len(PALETTE)]


def method_marker(method: str) -> str:
    """The marker of a method. Methods that share a colour have different markers."""
    number = _number(method)
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def method_hatch(method: str, *, lossless: bool) -> str:
    """The hatch of a method's bars: oblique if it is lossy, level if another method has its colour."""
    shares = method not in BASELINES and _number(method) >= len(PALETTE)
    return ("" if lossless else "///") + ("---" if shares else "")


def method_name(method: str, *, variant: str = "", lossless: bool = True, disturbed: bool = False) -> str:
    """A method as tables show it: name and variant, with a dagger if it is lossy, a double dagger if its cell is
    disturbed.
    """
    signs = f"{'' if lossless else ' ' + DAGGER}{' ' + DISTURBED_SIGN if disturbed else ''}"
    return f"{method}{f' ({variant_name(method, variant)})' if variant else ''}{signs}"


def cell_name(cell: Any) -> str:
    """A cell in words, without engine and pair, as tables name it that have one column for all of it."""
    name = method_name(cell.method, variant=cell.variant)
    return (
        f"{name}, k = {cell.k}, {task_name(cell.task)}, temperature {cell.temperature:g}, batch size {cell.batch_size}"
    )


def variant_name(method: str, variant: str) -> str:
    """The label of a variant for readers: `nodes12-top_k4`, as it stands in file names, becomes `nodes=12, top_k=4`."""
    options = methods()[method].Options.model_fields if method in methods() else {}
    parts = []
    for part in variant.split("-"):
        name = max((name for name in options if part.startswith(name) and part != name), key=len, default="")
        value = part.removeprefix(name)
        # A list's values stand between underscores.
        value = value.replace("_", "-") if re.fullmatch(r"\d+(_\d+)+", value) else value
        parts.append(f"{name}={value}" if name else part)
    return ", ".join(parts)


def task_name(task: str) -> str:
    """A task's name as figures and tables show it, with spaces for underscores."""
    return task.replace("_", " ")


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
