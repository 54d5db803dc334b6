"""Compare engines in a table, a figure and a section of the report, for studies with more than one engine."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specrig.analysis.cells import row_dicts
from specrig.analysis.engines import SETTING, compare
from specrig.reporting import grid
from specrig.reporting.environment import precisions
from specrig.reporting.grid import Entry, Grid
from specrig.reporting.marks import mark, tip
from specrig.reporting.panels import NothingError, Sheet, by_task, edges, legend_below, top_of
from specrig.reporting.study_data import StudyData
from specrig.reporting.style import INK, LOSSY_NOTE, engine_style, method_name, method_order, task_name

MEASURES = {"tokens_per_s": "tokens/s (decoding)", "speedup": "speedup", "acceptance_length": "acceptance length τ"}

ALONE = "No cell of this study ran in more than one engine."


def comparison(study: StudyData) -> pd.DataFrame:
    """`analysis.engines.compare` of a study, given what its engines report to do differently; empty for a study of one
    engine.
    """
    differences = {
        (job.engine, method): str(text)
        for job in study.jobs
        for method, text in (_said(job.environment).get("differences") or {}).items()
    }
    return compare(study.records, [str(name) for name in study.config.get("engines") or []], differences)


def untested(study: StudyData) -> dict[str, str]:
    """Engine -> the part of it that was never tried on real hardware, for the engines of the study that report such a
    part.
    """
    found = {job.engine: _said(job.environment).get("untested") for job in study.jobs}
    return {engine: str(reason) for engine, reason in found.items() if reason}


def _said(environment: dict[str, Any]) -> dict[str, Any]:
    said = environment.get("engine")
    return said if isinstance(said, dict) else {}


def section(study: StudyData, compared: pd.DataFrame) -> dict[str, Any] | None:
    """The `sentence` and the table (`grid`) of the report's section; None for a study of one engine. compared:
    `comparison`.
    """
    if compared.empty:
        return None
    return {"sentence": sentence(compared), "grid": engines_grid(compared, study)}


def sentence(compared: pd.DataFrame) -> str:
    """A sentence on how many comparisons of acceptance agree, and how many disagree without a known reason."""
    against = compared[compared["engine"] != compared["reference"]]
    judged = int(np.isfinite(against["difference_low"].astype(float)).sum())
    odd = against[against["disagrees"].astype(bool)]
    if not judged:
        return "Acceptance could not be compared: no two engines offer it on two or more common prompts."
    text = f"Acceptance length agrees within sampling noise in {judged - len(odd)} of {judged} comparisons with the first engine."
    unexplained = int((odd["reason"] == "unexplained").sum())
    return f"{text} {unexplained} of the others are unexplained." if unexplained else text


def engines_grid(compared: pd.DataFrame, study: StudyData) -> Grid:
    """`comparison` as a table for readers. Reasons of disagreements and gaps become notes, marked by letters."""
    varying = [
        name
        for name in SETTING
        if name == "task" or (name not in ("method", "k", "variant") and _varies(compared, name))
    ]
    order = {method: number for number, method in enumerate(method_order(compared["method"]))}
    found = sorted(row_dicts(compared), key=lambda row: order[row["method"]])  # stable: engines stay together
    letters: dict[str, str] = {}
    rows = []
    for row in found:
        mark = ""
        if row["reason"]:
            mark = letters.setdefault(row["reason"], _letter(len(letters)))
        unlike = row["relative_difference"]
        spread = grid.interval(row["difference_low"], row["difference_high"])
        difference = f"{row['difference']:+.2f} ({100 * unlike:+.1f} %)" if np.isfinite(unlike) else "–"
        reference = row["engine"] == row["reference"]
        labels = [
            *(task_name(str(row[name])) if name == "task" else _shown(row[name]) for name in varying),
            method_name(row["method"], variant=row["variant"], lossless=row["lossless"]),
            str(row["k"]) if row["k"] else "–",
            row["engine"],
        ]
        rows.append(
            [
                *map(Entry, labels),
                Entry(str(row["common_prompts"])),
                Entry(grid.number(row["tokens_per_s"], 1)),
                Entry(
                    "1" if reference else grid.number(row["relative_speed"]), _spread(row, "relative_speed", reference)
                ),
                Entry(grid.number(row["speedup"]), grid.interval(row["speedup_low"], row["speedup_high"])),
                Entry(grid.number(row["acceptance_length"])),
                Entry(
                    "" if reference else difference, " ".join(filter(None, (spread, mark))), bold=bool(row["disagrees"])
                ),
            ]
        )
    notes = [f"{letter}: {reason}." for reason, letter in letters.items()]
    notes += [f"Untested on hardware: {engine} ({reason})." for engine, reason in untested(study).items()]
    notes += [
        f"{engine} runs {pair}'s target in {kind}."
        for engine, pairs in precisions(study.jobs).items()
        for pair, kind in pairs.items()
        if len({found.get(pair) for found in precisions(study.jobs).values()} - {None}) > 1
    ]
    notes += [ALONE] if compared.empty else []
    notes += [] if compared["lossless"].astype(bool).all() else [LOSSY_NOTE]
    return Grid(
        header=[
            *(name.replace("_", " ") for name in varying),
            *["method", "k", "engine", "prompts", "tokens/s", "of the first", "speedup", "τ", "difference in τ"],
        ],
        rows=rows,
        labels=len(varying) + 3,
        caption=(
            "The same cells in several engines, on the prompts that all of them answered. Of the first: tokens/s over those of the first "
            "engine of the cell, prompt by prompt, in jobs one after the other. The difference in τ is against that "
            "engine, with a 95 % interval over prompts, paired; bold where it leaves 0 out though that level is corrected for the number of rows."
        ),
        label=f"tab:{study.name}-engines",
        notes=notes,
    )


def engines_figure(compared: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """Tokens/s, speedup and τ (rows) by task (columns), method and engine. k is the best one in the first engine."""
    if compared.empty:
        raise NothingError(ALONE)
    shown = _best_k(compared[compared["pair"] == compared["pair"].iloc[0]])
    engines = list(dict.fromkeys(shown["engine"]))
    tasks = [task for task in tasks if task in set(shown["task"])]
    order = method_order(shown["method"])
    keys = sorted({(order.index(row["method"]), row["variant"], row["k"]) for row in row_dicts(shown)})
    labels = [method_name(order[number], variant=variant) + (f"\nk={k}" if k else "") for number, variant, k in keys]
    figure, axes = by_task(sheet, len(MEASURES), tasks, width=max(3.1, 0.9 * len(keys) + 1), height=2.4)
    for line, labelled, (measure, title) in zip(axes, edges(sheet, axes), MEASURES.items(), strict=True):
        for ax in labelled:
            ax.set_ylabel(title)
        for ax, task in zip(line, tasks, strict=True):
            for row in row_dicts(shown[shown["task"] == task]):
                at = keys.index((order.index(row["method"]), row["variant"], row["k"]))
                number = engines.index(row["engine"])
                x = at + 0.6 * ((number + 0.5) / len(engines) - 0.5)
                value, low, high = (row[f"{measure}{end}"] for end in ("", "_low", "_high"))
                known = np.isfinite(low) and np.isfinite(high)
                spread = [[value - low], [high - value]] if known else None
                drawn = ax.errorbar(x, value, yerr=spread, elinewidth=1.0, **engine_style(row["engine"], engines))
                mark(drawn.get_children(), row["engine"])
                what = f"{row['engine']}, {labels[at]}, {title}".replace("\n", ", ")
                mark(drawn.lines[0], row["engine"], [tip(what, value, low, high)])
                if row["disagrees"] and measure == "acceptance_length":
                    ax.plot(
                        x,
                        value,
                        marker="o",
                        markersize=1.2 * sheet.size,
                        markerfacecolor="none",
                        markeredgecolor=INK,
                        linestyle="none",
                    )
            ax.set_xlim(-0.5, len(keys) - 0.5)
            ax.set_xticks(range(len(keys)), labels, rotation=90 if sheet.width else 0)
            ax.set_ylim(bottom=0, top=top_of(shown, measure))
            ax.grid(axis="x", visible=False)
    handles = [Line2D([], [], label=engine, **engine_style(engine, engines)) for engine in engines]
    ring = Line2D(
        [], [], marker="o", markersize=sheet.size, markerfacecolor="none", markeredgecolor=INK, linestyle="none"
    )
    ring.set_label("τ disagrees with the first engine")
    legend_below(figure, [*handles, *([ring] if shown["disagrees"].astype(bool).any() else [])])
    return figure


def _best_k(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows at each method's best k: the one with the largest geometric mean speedup over tasks in the reference
    engine.
    """
    first = compared[compared["engine"] == compared["reference"]]
    logs = first.assign(log=np.log(first["speedup"].astype(float))).groupby(["method", "variant", "k"])["log"].mean()
    best = {
        (method, variant): k for (method, variant, k), _ in cast("Any", logs.sort_values(na_position="first").items())
    }
    kept = [best.get((row["method"], row["variant"])) == row["k"] for row in row_dicts(compared)]
    return compared[kept]


def _spread(row: dict[str, Any], name: str, reference: bool) -> str:
    """A column's interval; none for the engine that the others are held against."""
    return "" if reference else grid.interval(row[f"{name}_low"], row[f"{name}_high"])


def _varies(frame: pd.DataFrame, name: str) -> bool:
    return len(frame[name].unique()) > 1


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _letter(number: int) -> str:
    """The letters for a number from 0: a, b, …, z, aa, ab, …"""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
