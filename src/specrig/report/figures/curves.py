"""Draw what happens in rounds and in training: emitted lengths and losses. Colours and markers come from `style`."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specrig.report.figures.marks import mark
from specrig.report.figures.panels import (
    LINES,
    PERCENT,
    TITLE,
    NothingError,
    Sheet,
    in_lines,
    legend_below,
    make_panels,
    row_label,
    signs_note,
    unused_hidden,
)
from specrig.report.figures.style import INK, method_colour, method_marker, task_style
from specrig.report.labels import BASELINES, method_order, short_names, task_name

SMOOTH = "training (smoothed)"


def emitted_lengths(lengths: pd.DataFrame, tasks: list[str], sheet: Sheet) -> Figure:
    """The share of target passes that emitted 1, 2, … tokens: one panel per method, one line per task."""
    lengths = lengths[~lengths["method"].isin(list(BASELINES))]
    if lengths.empty:
        raise NothingError("no rounds were recorded in this study")
    panels = [(key, frame) for key, frame in lengths.groupby(["method", "variant", "k", "lossless"], sort=False)]
    order = method_order(lengths["method"])
    panels.sort(key=lambda item: order.index(cast("tuple[str, ...]", item[0])[0]))
    columns = sheet.columns(len(panels), 4)
    figure, grid = make_panels(sheet, -(-len(panels) // columns), columns, width=3.1, height=2.6, sharey=True)
    axes = unused_hidden(grid, len(panels))
    styles = {task: task_style(task, tasks) for task in tasks}
    for ax, (_, frame) in zip(axes, panels, strict=True):
        reach = range(1, int(frame["emitted"].max()) + 1)
        for task, style in styles.items():
            shares = frame[frame["task"] == task].set_index("emitted")["share"].reindex(reach, fill_value=0.0)
            tips = [
                f"{task_name(task)}, {count} tokens: {100 * share:.1f} % of passes" for count, share in shares.items()
            ]
            mark(ax.plot(list(reach), shares, label=task_name(task), **style), task_name(task), tips)
        name = row_label({str(column): value for column, value in frame.iloc[0].items()})
        ax.set_title(in_lines(name, TITLE) if sheet.width else name, fontsize=sheet.small if sheet.width else None)
        ax.set_xlabel("tokens a pass emits")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylim(bottom=0)  # after the last panel: the axis is shared, and setting one end fixes the other
    for row in grid:
        row[0].set_ylabel("share of target passes")
    axes[0].yaxis.set_major_formatter(PERCENT)
    legend_below(figure, *axes[0].get_legend_handles_labels(), note=signs_note(lengths))
    return figure


PUBLISHED = (
    ("EAGLE-3, Gemma-4-E4B", 256, 1.15, "NeMo AutoModel, issue 3073"),
    ("EAGLE-3, Llama-3.1-8B", 25_000, 1.49, "speculators, examples/train: 5,000 samples, 5 epochs"),
    ("P-EAGLE, Qwen3-8B", 25_000, 1.53, "the same"),
    ("DFlash, Qwen3-8B", 25_000, 1.47, "the same"),
    ("EAGLE-3, Qwen2.5-7B", 250_000, 1.94, "SpecForge, issue 128: 50,000 samples, 5 epochs"),
    ("EAGLE-3, Qwen3-8B", 1_016_000, 2.82, "speculators, issue 610: 508,000 samples, 2 epochs"),
)
"""What others reported for chains: head and target, texts learnt from, acceptance length, where."""


def learning(learnt: pd.DataFrame, decoded: pd.DataFrame, sheet: Sheet) -> Figure:
    """Tokens a round against texts learnt from: a line a draft or head, the published points beside them.

    learnt: `study_data.learning_curves`, tokens to expect, with hollow markers. decoded: `StudyData.learning_points`,
    measured tokens, a line for each way of drafting.
    """
    if learnt.empty and decoded.empty:
        raise NothingError("no training says how many texts it used, and no head has a learning curve")
    several = len({*learnt["pair"], *decoded["pair"]}) > 1
    figure, grid = make_panels(sheet, 1, 1, width=6.4, height=3.6)
    ax = grid[0][0]
    most = sheet.label_length and 2 * sheet.label_length  # labels stand below the panel

    def plot(pair: str, method: str, label: str, texts: pd.Series, lengths: pd.Series, **style: Any) -> None:
        label = f"{pair}: {label}" if several else label
        tips = [f"{label}, {count:,} texts: {length:.2f}" for count, length in zip(texts, lengths, strict=True)]
        style |= {"color": method_colour(method), "marker": method_marker(method), "label": in_lines(label, most)}
        mark(ax.plot(texts, lengths, **style), style["label"], tips)

    ways = decoded.groupby(["pair", "model", "method", "variant", "k", "task"], sort=False)
    names = short_names(decoded[["method", "variant"]].itertuples(index=False, name=None))
    drawn = Counter[str]()  # lines of each method, which share its colour
    for key, line in ways:
        pair, _, method, variant, k, task = cast("tuple[str, str, str, str, int, str]", key)
        row = {"method": method, "variant": variant, "label": names[method, variant], "lossless": True, "k": k}
        label = f"{row_label(row)}, decoded on {task}"
        dashes = LINES[drawn[method] % len(LINES)]
        drawn[method] += 1
        plot(pair, method, label, line["texts_seen"], line["acceptance_length"], linestyle=dashes)
    for key, line in learnt.groupby(["pair", "model"], sort=False):
        pair, model = cast("tuple[str, str]", key)
        method = "draft_model" if model == "draft" else model  # most heads have their method's name
        label = f"{model}, expected on held-out text"
        plot(pair, method, label, line["texts"], line["tau_sim"], markerfacecolor="none")
    reported = pd.DataFrame(PUBLISHED, columns=["name", "texts", "length", "source"])
    others = "reported by others (8B and smaller targets)"
    tips = [
        f"{row.name}, {row.texts:,} texts: {row.length:.2f} ({row.source})" for row in reported.itertuples(index=False)
    ]
    mark(ax.plot(reported["texts"], reported["length"], "x", color=INK, label=others), others, tips)
    ax.set_xscale("log")
    ax.set_xlabel("training texts (texts × epochs)")
    ax.set_ylabel("tokens a round")
    ax.set_ylim(bottom=1)
    legend_below(figure, *ax.get_legend_handles_labels(), handlelength=3.2)
    return figure


def training_loss(curves: pd.DataFrame, sheet: Sheet) -> Figure:
    """Training loss (raw and smoothed) and held-out loss against wall time: one panel a model, four in a row."""
    if curves.empty:
        raise NothingError("no model was trained in this study")
    found = dict.fromkeys(curves[["pair", "model"]].itertuples(index=False, name=None))
    models = sorted(found, key=lambda model: (model[0], model[1] != "target"))
    tasks = [kind for kind in dict.fromkeys(curves["kind"]) if kind != "training"]
    several = len({pair for pair, _ in models}) > 1
    columns = sheet.columns(len(models), 4)
    figure, grid = make_panels(sheet, -(-len(models) // columns), columns, width=3.1, height=2.7)
    axes = unused_hidden(grid, len(models))
    for ax, (pair, model) in zip(axes, models, strict=True):
        here = curves[(curves["pair"] == pair) & (curves["model"] == model)]
        trace = here[here["kind"] == "training"]
        smooth = trace["loss"].ewm(halflife=max(len(trace) / 40, 1)).mean()
        mark(ax.plot(trace["seconds"], trace["loss"], color=INK, alpha=0.2, linewidth=0.8), SMOOTH)
        mark(ax.plot(trace["seconds"], smooth, color=INK, label=SMOOTH), SMOOTH)
        for task in tasks:
            line = here[here["kind"] == task]
            style = task_style(task, tasks)
            label = f"held out: {task_name(task)}"
            tips = [f"{label}, {at:.0f} s: {loss:.3f}" for at, loss in zip(line["seconds"], line["loss"], strict=True)]
            mark(ax.plot(line["seconds"], line["loss"], label=label, **style), label, tips)
        ax.set_title(f"{pair}:\n{model}" if several and sheet.width else f"{pair}: {model}" if several else model)
        ax.set_xlabel("wall time (s)")
    for ax in axes:
        ax.set_ylim(bottom=0)
    for row in grid:
        row[0].set_ylabel("loss")
    legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure
