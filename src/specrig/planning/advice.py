"""`specrig advise`: which method and which k for a pair, and why: from a study's measurements where there are any, else from the model."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from specrig.analysis import roofline
from specrig.analysis.cost_model import best_k, expected_tokens, walltime_improvement
from specrig.analysis.roofline import Size
from specrig.analysis.rounds import HEADS, round_cost
from specrig.decoding.drafters import registry as methods
from specrig.measurement.records import NOT_RECORDED
from specrig.models import facts
from specrig.models.facts.devices import Device, devices, find_device
from specrig.models.gate import check_decoder, check_vocabulary
from specrig.models.pair import ModelError
from specrig.study.claims import read_claims
from specrig.study.problems import Positions, Problem, Problems, nearest
from specrig.study.rows import TRAINED, Pair, read_rows

USUAL_ALPHA = 0.7
ALPHAS = (0.6, USUAL_ALPHA, 0.8)
"""Acceptances that pairs of one family are reported to have (0.53 to 0.82 in reported.csv): careful, usual, good."""
KS = range(1, 9)
RATIO = (5, 10)
"""How many times smaller than the target a draft should be."""
CONTEXT = 4096
USABLE = 0.9
"""Share of a device's memory that weights and cache may take; the rest is activations and the runtime's own."""
SCENES = (
    ("code completion", "eagle", "5–8"),
    ("chat", "eagle", "3–5"),
    ("documents, editing, retrieval", "ngram", "4–6"),
    ("live translation", "none: short outputs, every millisecond of the first token counts", "–"),
)
"""Where nothing was measured: what practice recommends by scene."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of the pair: `good` None for a remark."""

    good: bool | None
    text: str


def advise(name: str, pairs: Path, reported: Path, device_name: str | None, study: Path | None, console: Console) -> None:
    """Print the advice for a row of `pairs`; `reported`: what others measured, for methods whose acceptance is not known here.

    Raises StudyError for an unknown pair or device, or a study without a table of cells.
    """
    problems = Problems(Positions([]))
    rows = read_rows(pairs, Pair, problems)
    if name not in rows:
        problems.row(pairs, None, "pair", f"no row {name!r}", nearest(name, rows))
    device = find_device(device_name) if device_name else None
    if device_name and device is None:
        problems.found.append(Problem("--device", "", f"unknown device {device_name!r}", nearest(device_name, devices())))
    cells = measured(study, name, problems) if study else []
    if name not in rows or (device_name and device is None):
        problems.stop()
    if study and not cells:
        problems.stop()
    pair = rows[name]
    target, draft = size_of(pair.target), size_of(pair.draft) if pair.draft else None
    console.print(f"[bold]{name}[/]: {pair.target} ← {pair.draft or 'no draft'}" + (f" on {device.device}" if device else ""))
    findings = draft_findings(pair, target, draft, device)
    for finding in findings:
        sign = {True: "[green]✓[/]", False: "[red]✗[/]", None: "·"}[finding.good]
        console.print(f"  {sign} ", end="")
        console.print(finding.text, markup=False, soft_wrap=True)
    if cells:
        _show_measured(cells, study, console)
    elif target:
        _show_model(pair, target, None if _gate(pair) else draft, device, reported_lengths(reported), console)
    else:
        console.print("Sizes of the models are not known here, so the model cannot choose k; k = 4 is a good start. Measure it:")
        console.print(
            f"  make CONFIG=<a study with pairs: [{name}]>, then specrig advise {name} --study results/<study>", markup=False
        )
    if not cells:
        _show_scenes(console)


def size_of(model: str) -> Size | None:
    """Size by shipped facts, or by the config of a local folder."""
    known = roofline.size_of(model)
    config = Path(model).expanduser() / "config.json"
    if known or not config.is_file():
        return known
    return roofline.size_of_shape(facts.Shape(json.loads(config.read_text(encoding="utf-8"))))


def draft_findings(pair: Pair, target: Size | None, draft: Size | None, device: Device | None) -> list[Finding]:
    """Decoder and vocabulary gate, family, size ratio, memory."""
    found = []
    reason = _gate(pair)
    if reason:
        found.append(Finding(False, reason))
    elif pair.draft and pair.draft != TRAINED:
        found.append(Finding(True, "target and draft share one vocabulary, as far as shipped facts and files at hand say"))
    if target and draft:
        ratio = target.active / draft.active
        text = f"the draft is {ratio:.1f} times smaller; {RATIO[0]} to {RATIO[1]} times is the rule"
        if ratio < RATIO[0]:
            found.append(Finding(False, f"{text}: too dear, take a smaller one, or Medusa or EAGLE heads"))
        elif ratio > 2 * RATIO[1]:
            found.append(Finding(None, f"{text}: cheap, but is it accepted often enough? Measure its acceptance"))
        else:
            found.append(Finding(True, text))
    if target and target.parameters < 13e9 and not pair.draft:
        found.append(
            Finding(None, "for targets under 13B a draft model is hard to find small enough: Medusa, EAGLE, lookahead or ngram")
        )
    if target and device:
        needed = sum(roofline.memory_gb(size, pair.dtype, CONTEXT) for size in (target, draft) if size)
        fits = needed <= USABLE * device.memory_gb
        more = (
            ""
            if fits
            else f": take {-(-needed // (USABLE * device.memory_gb)):.0f} of them, a smaller precision or a smaller pair"
        )
        found.append(
            Finding(
                fits, f"weights and {CONTEXT} tokens of cache take {needed:.1f} of {device.memory_gb:g} GB in {pair.dtype}{more}"
            )
        )
    return found


def measured(study: Path, pair: str, problems: Problems) -> list[dict[str, Any]]:
    """Cells of the pair in a study's `tables/cells.csv` that are lossless, passed the audit, have a speedup and are not disturbed."""
    file = study / "tables" / "cells.csv"
    if not file.is_file():
        problems.row(file, None, "", "no such table", "give a study's results folder, e.g. results/quick, after it has run")
        return []
    with file.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["pair"] == pair]
    if not rows:
        problems.row(
            file, None, "pair", f"the study measured no pair {pair!r}", "choose another study, or none: then the model advises"
        )
    fair = [row for row in rows if row["lossless"] == "True" and row.get("failed") != "True" and row["speedup"]]
    fair = [row for row in fair if row.get("disturbed", "") in ("", NOT_RECORDED)]
    return [row for row in fair if row["method"] != "autoregressive"]


def _gate(pair: Pair) -> str | None:
    """Why the pair can never work, from shipped facts and from folders that are here; nothing is downloaded."""
    local = [model for model in (pair.target, pair.draft) if model and (Path(model).expanduser() / "config.json").is_file()]
    try:
        for folder in local:
            check_decoder(folder)
        if len(local) == 2:
            check_vocabulary(*local)
    except ModelError as error:
        return str(error)
    return facts.impossible(pair.target, pair.draft)


def _show_measured(cells: list[dict[str, Any]], study: Path | None, console: Console) -> None:
    """Per task, temperature and batch size: the fastest cell."""
    table = Table(title=f"measured in {study}", title_justify="left")
    for column in ("task", "T", "batch", "use", "k", "speedup", "95 % interval", "why"):
        table.add_column(column)
    settings: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in cells:
        settings.setdefault((row["task"], row["temperature"], row["batch_size"]), []).append(row)
    for (task, temperature, batch), rows in settings.items():
        best = max(rows, key=lambda row: float(row["speedup"]))
        low, high = best["speedup_low"], best["speedup_high"]
        surely = bool(low) and float(low) > 1
        use = (best["method"], best["k"] if best["k"] != "0" else "–") if float(best["speedup"]) > 1 else ("autoregressive", "–")
        why = f"{float(best['acceptance_length'] or 1):.2f} tokens a pass" + (
            "" if surely else "; the interval holds 1, or is not known"
        )
        spread = f"[{float(low):.2f}, {float(high):.2f}]" if low else "–"
        table.add_row(task, f"{float(temperature):g}", batch, *use, f"{float(best['speedup']):.2f}", spread, why)
    console.print(table)


def reported_lengths(file: Path) -> dict[str, list[float]]:
    """Method -> tokens a pass that others reported of it at batch 1, from `reported.csv`; empty where there is no such file."""
    found: dict[str, list[float]] = {}
    for claim in read_claims(file, Problems(Positions([]))):
        if claim.metric == "acceptance_length" and claim.interval and claim.batch in ("", "1"):
            found.setdefault(claim.base_method, []).append(claim.interval[0])
    return found


def _show_model(
    pair: Pair, target: Size, draft: Size | None, device: Device | None, lengths: dict[str, list[float]], console: Console
) -> None:
    """A draft model at usual acceptances by Theorem 3.8; other methods at the acceptance length that others report; the best of them."""

    def verify(tokens: int) -> float:
        return roofline.verify_cost(target, device, pair.dtype, tokens)

    table = Table(title="not measured: predicted at batch 1", title_justify="left")
    for column in ("method", "assumed", "k", "tokens a pass", "a round costs", "speedup at most", "at k = 4"):
        table.add_column(column)
    options: list[tuple[float, str]] = []
    if draft:
        c = roofline.draft_cost(target, draft, device, pair.dtype) if device else draft.active / target.active
        for alpha in ALPHAS:
            k = best_k(alpha, c, KS, verify)
            speedup, default = walltime_improvement(alpha, k, c, verify(k + 1)), walltime_improvement(alpha, 4, c, verify(5))
            tokens, cost = expected_tokens(alpha, k), k * c + verify(k + 1)
            table.add_row(
                "draft_model", f"α = {alpha:g}", str(k), f"{tokens:.2f}", f"{cost:.2f}", f"{speedup:.2f}", f"{default:.2f}"
            )
            if alpha == USUAL_ALPHA:
                options.append((speedup, f"draft_model with k = {k}"))
    for method in sorted(set(HEADS) & set(lengths) & set(methods())):
        middle = median(lengths[method])
        _, cost = round_cost(method, None, target, [], device, pair.dtype, 1) or (0.0, 1.0)
        needs = ", ".join(f"{need} head" for need in methods()[method].needs)
        assumed = f"τ as {len(lengths[method])} reported"
        table.add_row(method, assumed, "–", f"{middle:.2f}", f"{cost:.2f}", f"{middle / cost:.2f}", "")
        options.append((middle / cost, f"{method}{f' (needs a trained {needs})' if needs else ''}"))
    console.print(table)
    free = [option for option in options if "needs" not in option[1]]
    for title, choices in (("Best with nothing to train", free), ("Best of all", options)):
        if choices:
            speedup, text = max(choices)
            text = f"{text}: {speedup:.2f} times at most" if speedup > 1 else "autoregressive: nothing pays"
            console.print(f"{title}: {text}", highlight=False)
    source = f"the roofline of {device.device}" if device else "the ratio of parameters (--device refines it)"
    console.print(
        f"Costs come from {source}; launches and the loop come on top, above all for small models. Measure before you rely on it."
    )


def _show_scenes(console: Console) -> None:
    table = Table(title="what practice recommends by scene", title_justify="left")
    for column in ("scene", "method", "k"):
        table.add_column(column)
    for scene in SCENES:
        table.add_row(*scene)
    console.print(table)


def prompts_needed(study: Path) -> Iterable[float]:
    """`prompts_needed` of every measured cell of a study; nothing where it has not been measured."""
    file = study / "tables" / "cells.csv"
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as handle:
            yield from (float(row["prompts_needed"]) for row in csv.DictReader(handle) if row.get("prompts_needed"))
