"""What would measure a claim that nobody measured yet: one command, and what stands in its way."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specrig.analysis.roofline import model_facts
from specrig.study.claims import Claim

DATA_SETS = {
    "cnndm": ("cnndm", "cnndailymail", "specbenchsummarization"),
    "wmt14deen": ("wmt14deen", "specbenchtranslation"),
    "wmtende": ("wmtende", "wmt14ende", "wmt16ende"),
    "nq": ("naturalquestions", "specbenchqa"),
    "gsm8k": ("gsm8k", "specbenchmath"),
}
"""How the names of rows of tasks.tsv may end that hold a source's data set, where not in its own name."""
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""What sources call the dtypes of pairs.tsv."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What could be measured here: pairs (name -> target, draft, heads), names of tasks, methods (name -> models needed)."""

    pairs: Mapping[str, tuple[str, str, Collection[str]]] = field(default_factory=dict)
    tasks: Collection[str] = ()
    methods: Mapping[str, Collection[str]] = field(default_factory=dict)
    pair_columns: Sequence[str] = ("pair", "target", "draft", "target_revision", "draft_revision", "dtype")
    """Header of pairs.tsv."""


def matches_task(claim: Claim, name: str) -> bool:
    """Whether a row of tasks.tsv is the claim's task: its name ends in the data set where the source names one, else it holds the kind."""
    slug, written = plain(claim.data_set), plain(name)
    if slug:
        return written.endswith(DATA_SETS.get(slug, (slug,)))
    return bool(claim.task_name) and plain(claim.task_name) in written


def command(claim: Claim, catalogue: Catalogue, parts: Sequence[str] = ()) -> tuple[str, str | None]:
    """(the shell command that would measure the claim, what stands in its way); an empty command where there is none.

    parts: the tasks that an aggregate is taken over.

    Run at the root of the repository. A pair that pairs.tsv lacks is added first.
    """
    method = claim.base_method
    if method not in catalogue.methods:
        if claim.general:
            return "", "a statement about any method"
        return "", f"no method {method!r} here (`specrig methods` lists those there are): add a drafter of that name"
    if claim.general:
        return "make CONFIG=configs/methods.yaml", None
    if model_facts(claim.target) is None:
        return "", f"{claim.target} cannot be downloaded, or SpecRig does not know it"
    draft = claim.drafts[-1] if claim.drafts and method == "draft_model" else ""
    heads = [need for need in catalogue.methods[method] if need != "draft"]
    same = [(name, own, has) for name, (target, own, has) in catalogue.pairs.items() if target == claim.target]
    fitting = [(name, has) for name, own, has in same if not draft or own == draft]
    named = [name for name, _ in sorted(fitting, key=lambda pair: len(set(heads) - set(pair[1])))]
    chosen, missing = _tasks(claim, catalogue.tasks, parts)
    pair = named[0] if named else re.sub(r"[^A-Za-z0-9._-]", "-", claim.target.split("/")[-1])
    row = {"pair": pair, "target": claim.target, "draft": draft, "dtype": DTYPES.get(claim.precision.lower(), "bfloat16")}
    line = r"\t".join(row.get(column, "") for column in catalogue.pair_columns)
    add = "" if named else f"printf '{line}\\n' >> configs/pairs.tsv && "
    entry = {"method": method, **({"k": list(claim.ks)} if claim.ks else {})}
    changes = {
        "study": claim.id,
        "pairs": [pair],
        "tasks": chosen,
        "methods": [entry],
        "temperatures": [claim.heat if claim.heat is not None else 0],
        "batch_sizes": [int(claim.batch or 1)],
    }
    words = " ".join(
        shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}") for key, value in changes.items()
    )
    obstacles = [missing] if missing else []
    if claim.nucleus:
        obstacles.append("nucleus sampling is not offered")
    if claim.precision and claim.precision.lower() not in DTYPES:
        obstacles.append(f"no dtype of pairs.tsv is {claim.precision}")
    has = catalogue.pairs[named[0]][2] if named else ()
    obstacles += [f"the pair's row must name a trained {need} head" for need in heads if need not in has]
    return f"{add}snakemake --configfile configs/quick.yaml --config {words}", "; ".join(obstacles) or None


def preferred(claim: Claim, task: str, names: Iterable[str]) -> list[str]:
    """Rows of tasks.tsv that hold a task as a claim's source names it, the benchmark's own rows first."""
    benchmark = plain(claim.source.split()[0])
    found = [name for name in names if matches_task(claim.model_copy(update={"task": task}), name)]
    return sorted(found, key=lambda name: not plain(name).startswith(benchmark))


def _tasks(claim: Claim, names: Collection[str], parts: Sequence[str]) -> tuple[list[str], str]:
    """Tasks that measure a claim, and what is missing: all where it names none, `parts` where it is a mean over them."""
    if not claim.task:
        return list(names), ""
    if claim.aggregate and not parts:
        benchmark = plain(claim.source.split()[0])
        own = [name for name in names if plain(name).startswith(benchmark)]
        return own or list(names), f"over which tasks its {claim.task} is taken is not known from its source's rows"
    chosen, missing = [], []
    for task in parts or [claim.task]:
        found = preferred(claim, task, names)
        kinds = [name for name in names if plain(re.sub(r" *\(.*\)", "", task)) in plain(name)]
        chosen += (found or kinds or [re.sub(r"\W+", "_", task).strip("_")])[:1]
        missing += [] if found else [repr(task)]
    return chosen, f"tasks.tsv has no row for {', '.join(missing)}" if missing else ""


def plain(text: str) -> str:
    """`text` as data sets are compared: letters and digits."""
    return re.sub(r"[^a-z0-9]", "", text.lower())
