"""Draw the order of methods, reported and measured."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from specrig.analysis.order import METRICS, OrderComparison
from specrig.reporting.figures.marks import mark
from specrig.reporting.figures.panels import NothingError, Sheet, make_panels, unused_hidden
from specrig.reporting.figures.style import GRID, INK, method_colour, method_marker
from specrig.results.labels import task_name
from specrig.results.order_tables import PANELS, _ranked


def order_figure(found: Sequence[OrderComparison], sheet: Sheet) -> Figure:
    """One panel per ranking by speed: its methods' places as reported (left) and as measured (right), joined by a line.

    A line that falls or rises crosses those of the methods with which its method changed places.
    """
    timed = [each for each in found if METRICS[each.ranking.claim.metric] == "speedup" and len(each.measured) > 2]
    selected = sorted(timed, key=lambda each: -len(each.measured))[: PANELS[sheet.narrow]]
    if not selected:
        raise NothingError("no source ranks three methods that this study measured")
    columns = 1 if sheet.narrow else min(len(selected), 3)  # names and figures need their room
    most = max(len(each.measured) for each in selected)
    figure, axes = make_panels(
        sheet, -(-len(selected) // columns), columns, width=4.0, height=(0.22 if sheet.narrow else 0.34) * most + 1.0
    )
    letter = 0.6 * sheet.small / 72  # inches
    left = letter * (max(len(name) for each in selected for name in each.measured) + 5) + 0.15
    slope = figure.get_figwidth() / columns - left - 7 * letter - 0.2
    for panel, each in zip(unused_hidden(axes, len(selected)), selected, strict=True):
        reported = {name: each.ranking.figures[name] for name in each.measured}
        sides = [_ranked(reported), _ranked(each.measured)]
        moved = {name for change in each.changes for name in (change.ahead, change.behind)}
        for name in sides[0]:
            ranks = [side.index(name) + 1 for side in sides]
            still = name not in moved
            line = panel.plot(
                (0, 1),
                ranks,
                color=method_colour(name),
                marker=method_marker(name),
                alpha=0.55 if still else 1,
                clip_on=False,
            )
            sides_of = zip(("reported", "measured"), ranks, (reported, each.measured), strict=True)
            mark(line, name, [f"{name}, {kind}: place {rank}, {figures[name]:.2f}" for kind, rank, figures in sides_of])
            for x, rank, figures in ((0, ranks[0], reported), (1, ranks[1], each.measured)):
                text = f"{name} {figures[name]:.2f}" if x == 0 else f"{figures[name]:.2f}"
                panel.annotate(
                    text,
                    (x, rank),
                    xytext=(-7 if x == 0 else 7, 0),
                    textcoords="offset points",
                    ha="right" if x == 0 else "left",
                    va="center",
                    fontsize=sheet.small,
                    color=INK,
                )
        claim = each.ranking.claim
        where = ", ".join(filter(None, (task_name(claim.task_name), f"T = {each.temperature:g}", claim.hardware)))
        title = "\n".join([_short(claim.source), *textwrap.wrap(where, 34)])
        spread = f" [{each.low:.2f}, {each.high:.2f}]" if math.isfinite(each.low) else ""
        panel.set_title(f"{title}\nτ = {each.tau:.2f}{spread}", fontsize=sheet.small)
        panel.set(xlim=(-left / slope, 1 + (7 * letter + 0.1) / slope), ylim=(most + 0.5, 0.5))
        panel.set_xticks([])
        panel.set_yticks([])
        panel.grid(False)
        for side in ("left", "bottom"):
            panel.spines[side].set_visible(False)
        for x in (0, 1):
            panel.axvline(x, color=GRID, linewidth=0.8, zorder=0)
    return figure


def _short(source: str) -> str:
    return source.split(",")[0]
