"""For a claim that has not been measured here: the command that would measure it, and what prevents that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specrig.analysis.cost_model import model_facts
from specrig.analysis.task_names import of_benchmark, plain, preferred
from specrig.study.claims import TIMED, Claim

STUDY, GPU_STUDY, PAIRS = "configs/quick.yaml", "configs/gpu_shapes.yaml", "configs/pairs.tsv"
TRAINED = "trained"
"""In the column `heads` of pairs.tsv: whatever heads a study's methods need are trained for the pair."""
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""A source's name of a precision -> the dtype in pairs.tsv."""


class KnownPair(NamedTuple):
    """A row of pairs.tsv: hub ids of target and draft ("": none), and the names of its heads; `TRAINED`: any."""

    target: str
    draft: str = ""
    heads: Collection[str] = ()

    def lacks(self, needs: Collection[str]) -> list[str]:
        """The models among `needs` (`draft`, or a head's name) that this row does not have."""
        return [need for need in needs if not (self.draft if need == "draft" else {need, TRAINED} & set(self.heads))]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What can be measured here: pairs by name, names of tasks, methods (name -> models that it needs)."""

    pairs: Mapping[str, KnownPair] = field(default_factory=dict)
    tasks: Collection[str] = ()
    methods: Mapping[str, Collection[str]] = field(default_factory=dict)
    pair_columns: Sequence[str] = ("pair", "target", "draft", "target_revision", "draft_revision", "dtype", "heads")
    """The names of the columns of pairs.tsv, in order."""


def command(claim: Claim, catalogue: Catalogue, parts: Sequence[str] = ()) -> tuple[str, str | None]:
    """Return (the shell command that would measure the claim, the obstacle or None).

    The command runs as printed at the root of the repository; it adds the pair's row to pairs.tsv where it is missing.
    It is empty where something must be made first: a method, a row of tasks.tsv, a draft. The obstacle then says what.
    Beside a command, the obstacle says how its study would differ from the source's. parts: the tasks over which the
    claim's mean is taken.
    """
    needs = catalogue.methods.get(claim.base_method)
    if needs is None and claim.general:
        return "", "a statement about any method"
    if needs is None:
        return (
            "",
            f"no method {claim.base_method!r} here (`specrig methods` lists those there are): add a drafter of that "
            "name",
        )
    if claim.general:
        # Any pair will do. A speed without hardware means a GPU.
        return f"make CONFIG={GPU_STUDY if claim.metric in TIMED else STUDY}", None
    if model_facts(claim.target) is None:
        return "", f"{claim.target} cannot be downloaded, or SpecRig does not know it"

    name, pair = _pair(claim, catalogue.pairs, needs)
    lacking = pair.lacks(needs)
    if "draft" in lacking:
        return "", "the source names no draft model"
    if lacking:
        name, pair = f"{name}-trained", pair._replace(heads=[TRAINED])
    tasks, left_out = _tasks(claim, catalogue.tasks, parts)
    if tasks == []:
        return "", left_out

    obstacles = [left_out] if left_out else []
    if lacking:
        obstacles.append("its heads would be trained here, since no published ones are known")
    if claim.nucleus:
        obstacles.append("nucleus sampling is not offered")
    if claim.precision and claim.precision.lower() not in DTYPES:
        obstacles.append(f"no dtype of pairs.tsv is {claim.precision}")
    steps = [] if name in catalogue.pairs else [_add_row(name, pair, claim, catalogue.pair_columns)]
    steps.append(f"snakemake --configfile {STUDY} --config {_changes(claim, name, tasks)}")
    return " && ".join(steps), "; ".join(obstacles) or None


def _pair(claim: Claim, pairs: Mapping[str, KnownPair], needs: Collection[str]) -> tuple[str, KnownPair]:
    """(name, row) of pairs.tsv for the claim's models: the row that lacks the fewest needed models, or a new row."""
    draft = claim.drafts[-1] if claim.drafts and "draft" in needs else ""
    fitting = [
        (name, pair)
        for name, pair in pairs.items()
        if pair.target == claim.target and (not draft or pair.draft == draft)
    ]
    if fitting:
        return min(fitting, key=lambda row: len(row[1].lacks(needs)))
    models = [model.split("/")[-1] for model in (claim.target, draft) if model]
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(models)), KnownPair(claim.target, draft)


def _tasks(claim: Claim, names: Collection[str], parts: Sequence[str]) -> tuple[list[str] | None, str]:
    """(rows of tasks.tsv to measure, what they leave out of the claim, in words). None: those of the default study."""
    if not claim.task:
        return None, ""
    if claim.aggregate and not parts:
        own = [name for name in names if of_benchmark(claim, name)]
        return own or None, f"over which tasks its {claim.task} is taken is not known from its source's rows"
    chosen, missing = [], []
    for task in parts or [claim.task]:
        same_data = preferred(claim, task, names)
        same_kind = [name for name in names if plain(re.sub(r" *\(.*\)", "", task)) in plain(name)]
        chosen += (same_data or same_kind)[:1]
        missing += [] if same_data else [repr(task)]
    return chosen, f"tasks.tsv has no row for {', '.join(missing)}" if missing else ""


def _add_row(name: str, pair: KnownPair, claim: Claim, columns: Sequence[str]) -> str:
    """The shell command that appends the pair to pairs.tsv, unless it is there already."""
    dtype = DTYPES.get(claim.precision.lower(), "bfloat16")
    row = {"pair": name, "target": pair.target, "draft": pair.draft, "dtype": dtype, "heads": " ".join(pair.heads)}
    line = r"\t".join(row.get(column, "") for column in columns)
    return f"{{ cut -f1 {PAIRS} | grep -qxF {name} || printf '{line}\\n' >> {PAIRS}; }}"


def _changes(claim: Claim, pair: str, tasks: Sequence[str] | None) -> str:
    """The claim's conditions as Snakemake's `--config` takes them, quoted for the shell."""
    entry: dict[str, Any] = {"method": claim.base_method}
    if claim.ks:
        entry["k"] = list(claim.ks)
    lists = {
        "pairs": [pair],
        **({} if tasks is None else {"tasks": tasks}),
        "methods": [entry],
        "temperatures": [claim.sampling_temperature if claim.sampling_temperature is not None else 0],
        "batch_sizes": [int(claim.batch or 1)],
    }
    return " ".join([f"study={claim.id}", *(shlex.quote(f"{key}={json.dumps(value)}") for key, value in lists.items())])
