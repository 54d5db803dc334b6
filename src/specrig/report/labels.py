"""The names and signs of methods, tasks and cells for readers: the same in every table, figure and sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from specrig.decoding.drafters import registry as methods
from specrig.tasks.variants import variant_of

FIRST = [
    *["autoregressive", "naive_batching", "draft_model", "adaptive_k", "ngram", "lookahead", "medusa"],
    *["eagle", "eagle2", "tree", "medusa_draft", "eagle3", "suffix", "token_recycling", "remote_draft"],
    *["layer_skip", "rest", "hydra", "suffix_hybrid", "suffix_blend", "p_eagle", "pard", "dflash", "suffix_p_eagle"],
    *["dspark", "mtp"],
]
"""The order of methods in tables and legends. Methods that are not in this list come after it (see `listed`)."""

BASELINES = ("autoregressive", "naive_batching")
"""Methods that draft nothing."""
DAGGER = "†"
LOSSY_NOTE = "† lossy: the acceptance rule changes the target's distribution."
BOLD_NOTE = "Bold: the fastest lossless method of its group, if it is faster than plain decoding."
BATCHED_NOTE = (
    "The baseline of naive_batching decodes the same prompts one after another. The baseline of the others decodes the "
    "same batch."
)
FAILED_NOTE = "Struck through: the audit found output that differs from the target's."

NOTES = (BOLD_NOTE, LOSSY_NOTE, FAILED_NOTE, BATCHED_NOTE)
"""Signs that several tables use. A document explains them once."""


def listed() -> list[str]:
    """All methods in the order of tables and legends. A method's place in this list decides its colour and marker."""
    return [*FIRST, *(name for name in methods() if name not in FIRST)]


def method_order(named: Iterable[str]) -> list[str]:
    """The different methods among `named`, in the order of `listed`; unregistered ones last, by name."""
    known = {name: number for number, name in enumerate(listed())}
    return sorted(set(named), key=lambda name: (known.get(name, len(known)), name))


def method_name(method: str, *, variant: str = "", lossless: bool = True) -> str:
    """A method's name and variant, with a dagger if it is lossy."""
    sign = "" if lossless else f" {DAGGER}"
    return f"{method}{f' ({variant_name(method, variant)})' if variant else ''}{sign}"


def named(row: Mapping[str, Any], *, lossless: bool = True) -> str:
    """The name of a table's row: its `label` where it has one (`StudyData.labelled`), else method and variant."""
    label = row.get("label")
    variant = row["variant"] if isinstance(row["variant"], str) else ""
    name = label if isinstance(label, str) and label else method_name(row["method"], variant=variant)
    return name if lossless else f"{name} {DAGGER}"


def short_names(variants: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(method, variant) -> its name in a study that has these: only options in which variants of a method differ.

    Of `p_eagle` with the variants "" and `nodesauto-passes2` and `nodesauto` the last is "p_eagle nodes auto".
    """
    by_method: dict[str, dict[str, list[str]]] = {}
    for method, variant in variants:
        by_method.setdefault(method, {})[variant] = variant_name(method, variant).split(", ") if variant else []
    found = {}
    for method, parts in by_method.items():
        shared = set.intersection(*map(set, parts.values()))
        for variant, options in parts.items():
            words = [_words(option) for option in options if option not in shared]
            found[method, variant] = " ".join([method, *words])  # no comma: names stand in lists
    return found


def _words(option: str) -> str:
    """An option of a variant in words: `draft_nodes=auto` becomes "draft nodes auto", `blend=True` "blend"."""
    name, _, value = option.partition("=")
    name = name.replace("_", " ")
    return name if value == "True" else f"no {name}" if value == "False" else f"{name} {value}".strip()


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
    """A task's name as figures and tables show it, with spaces for underscores: `chat@turn2` becomes `chat, turn 2`."""
    variant = variant_of(task)
    name = variant.task.replace("_", " ")
    if variant.context:
        return f"{name} at {variant.context}"
    return f"{name}, turn {variant.turn}" if variant.turn else name
