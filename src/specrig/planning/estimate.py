"""Estimates the memory and the hours that a study needs, before anything is downloaded. No torch here.

Sizes are exact where the architecture is known (from shipped facts, a local config.json or the study's own recipe).
Hours follow from the memory bandwidth. They serve planning only and are never shown beside measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specrig.analysis.cost_model import BYTES, pass_bytes, size_of_shape
from specrig.engines import registry as engines
from specrig.measurement.blocks import WARMUP_TOKENS, with_baselines
from specrig.measurement.traffic.records import FOLDER
from specrig.models import facts
from specrig.models.facts import Shape
from specrig.models.gguf import config as gguf_config
from specrig.models.gguf import is_gguf
from specrig.models.pair import ModelError
from specrig.study.load import validated
from specrig.study.overlap import prompts_in_both
from specrig.study.problems import Positions, Problems, read_config
from specrig.study.rows import Pair
from specrig.study.study import Study
from specrig.tasks.variants import variant_of
from specrig.training.budget import training_disk, training_flop, training_memory
from specrig.training.recipe import Shape as TrainedShape

GB = 1e9
LEAST_S = 20.0
"""Seconds of a job that loads models."""
PROMPT_TOKENS = 1024
"""Assumed length of a prompt in tokens, for the size of the cache, where the study has no contexts."""
READ_TOKENS = 256
"""The same for the time of reading it: most prompts are far shorter than the longest."""
WORKSPACE_BYTES = 1.5e9
"""Assumed bytes of activations, the libraries' workspace and the driver's context."""
COPIES = {"cuda": 1.0, "cpu": 2.25}
"""Times that weights are held: on a CPU once more in the order in which compiled code reads them, where that leaves some
memory free (`runtime.decode_pass.compile_products`).
"""
BANDWIDTH = {"cuda": 2.0e12, "cpu": 20e9}
"""Assumed memory bandwidth in bytes/s: an A100 80 GB, and two memory channels of a desktop or small server."""
REACHED = 0.6
"""Share of the memory bandwidth that decoding is assumed to reach."""
LAYER_S = {"cuda": 50e-6, "cpu": 100e-6}
"""Least seconds that a layer takes however small it is, because its kernels must be launched."""
ARITHMETIC = {"cuda": (2.4e14, "an H100 or H200"), "cpu": (1.5e11, "two cores")}
"""(operations/s of training and of long prompts, machine): a quarter of a GPU's bfloat16 peak; on a CPU as measured
once, in a training of a small draft."""
LOADING = 1e9
"""Assumed bytes/s at which weights are loaded from disk."""
UNITS = (("hour", 3600, 1), ("minute", 60, 0), ("second", 1, 0))
"""Units of time: name, seconds, digits after the point."""
ASSUMPTION = (
    f"each pass reads the weights once at {REACHED:.0%} of {{bandwidth}} GB/s ({{machine}}), "
    "no method faster than its baseline, drafts free, prompts{length} read at {speed:g} TFLOP/s, "
    "downloads, training and repeats of what does not settle at once not counted"
)


@dataclass(frozen=True, slots=True)
class PairSize:
    """The shapes of a pair's models (None: not known), and the largest batch and sequence to hold."""

    pair: str
    dtype: str
    target_precision: str
    target: Shape | None
    draft: Shape | None
    batch: int
    tokens: int
    """Length of a sequence in tokens: the prompt and the new tokens."""
    copies: float = 1.0
    """Times that the weights are held in memory (`COPIES`)."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of target and draft; a model of unknown shape counts for nothing."""
        target = self.target.parameters * BYTES[self.target_precision] if self.target else 0.0
        return round(target) + (self.draft.weight_bytes(self.dtype) if self.draft else 0)

    @property
    def memory_bytes(self) -> float | None:
        """Bytes of weights, key/value caches and workspace; None if the target's shape is not known."""
        if self.target is None:
            return None
        caches = sum(
            shape.cache_bytes(self.batch * min(self.tokens, shape.context), self.dtype)
            for shape in (self.target, self.draft)
            if shape
        )
        return self.copies * self.weight_bytes + caches + WORKSPACE_BYTES

    @property
    def audit_bytes(self) -> float | None:
        """The same for the audit, which holds the target twice: as it is measured, and in float32 or by transformers."""
        if self.target is None or self.memory_bytes is None:
            return None
        both = self.target.parameters * (BYTES[self.target_precision] + BYTES["float32"])
        return self.memory_bytes - self.weight_bytes + both


def pair_sizes(study: Study) -> list[PairSize]:
    """Return the sizes of the pairs that have cells to measure, in the order of the cells."""
    batch = max((cell.batch_size for cell in study.grid.cells), default=1)
    tokens = max(study.contexts, default=PROMPT_TOKENS + study.max_new_tokens)
    return [_pair_size(study, pair, batch, tokens) for pair in dict.fromkeys(cell.pair for cell in study.grid.cells)]


def sizes_of(pair: str, rows: Mapping[str, Pair], config: Path | None, tokens: int = PROMPT_TOKENS) -> PairSize:
    """The sizes of a pair at batch size 1, those of models that a study trains by the recipe of its `config` (or
    study.json).

    rows: the table of pairs. Raises StudyError for a config that is missing or wrong, ModelError for a GGUF file of a
    trained pair that cannot be read.
    """
    row = rows[pair]
    if config is None or not any(row.trained_in(part) for part in ("target", "draft")):
        target, draft = (_shape_if_read(model) for model in (row.target, row.draft))
        return PairSize(pair, row.dtype, row.target_precision, target, draft, 1, tokens)
    problems = Problems(Positions([config]))
    study, _ = validated(read_config(config), problems)
    problems.stop()
    used = {name: rows[name] for name in (pair, *rows[pair].depends_on) if name in rows}
    return _pair_size(Study.model_validate(study.model_dump() | {"rows": {"pairs": used}}), pair, 1, tokens)


def gated(study: Study) -> dict[str, list[str]]:
    """The gated models that the study would download: what an owner asks for -> names of its models."""
    found: dict[str, list[str]] = {}
    for pair in dict.fromkeys(cell.pair for cell in study.grid.cells):
        row = study.rows.pairs[pair]
        for model in (row.target, row.draft) if row.weights == "pretrained" else ():
            known = facts.known(model)
            if known and known.gated and known.name not in found.setdefault(known.gated, []):
                found[known.gated].append(known.name)
    return found


def hours(study: Study, sizes: list[PairSize], bandwidth: float | None = None) -> tuple[float, str]:
    """Return (hours of measuring, assumptions in words). Pairs of unknown size are not counted; the assumptions name
    them.

    bandwidth: of this machine's memory in bytes/s; None for the one in `BANDWIDTH`.
    """
    device = "cuda" if study.uses_gpu() else "cpu"
    bandwidth, here = bandwidth or BANDWIDTH[device], bandwidth is not None
    known = {size.pair: size for size in sizes if size.target is not None}
    processes = (process for process in study.grid.jobs if process[1] in known)
    seconds = sum(process_seconds(study, process, known[process[1]], bandwidth) for process in processes)
    seconds = seconds + sum(load_seconds(study, sizes, bandwidth).values())
    machine = "measured here" if here else "an A100 80 GB" if device == "cuda" else "CPU"
    length = "" if study.contexts else f" of {READ_TOKENS} tokens"
    speed = ARITHMETIC[device][0] / 1e12
    text = ASSUMPTION.format(bandwidth=f"{bandwidth / GB:,.0f}", machine=machine, length=length, speed=speed)
    unknown = [size.pair for size in sizes if size.target is None]
    return seconds / 3600, text + (f"; without {', '.join(unknown)}, whose size is not known" if unknown else "")


def load_seconds(
    study: Study, sizes: list[PairSize], bandwidth: float | None = None
) -> dict[tuple[str, str, str], float]:
    """Key of the grid's `points` -> `traffic_seconds` of its job; arguments as in `hours`."""
    known = {size.pair: size for size in sizes if size.target is not None}
    return {job: traffic_seconds(study, job, known[job[1]], bandwidth) for job in study.grid.points if job[1] in known}


def process_seconds(
    study: Study,
    process: tuple[str, str, str],
    size: PairSize,
    bandwidth: float | None = None,
    repeats: int | None = None,
) -> float:
    """Seconds that one measuring job takes, by the same assumptions as `hours`.

    process: a key of the grid's `jobs`. size: of its pair, whose target's shape is known. bandwidth: as in
    `hours`. repeats: of every prompt; None: the least of the study, as if all settled.
    """
    assert size.target is not None
    engine, pair, _ = process
    cells = [cell for method in study.grid.jobs[process] for cell in study.grid.by_method[engine, pair, method]]
    passes, reading = 0, 0.0
    for block in with_baselines(cells, paired=engines()[engine].paired):
        for cell in block:
            prompts = study.grid.prompt_count(block[0].batch_size) * (repeats or study.repeats.least)
            passes += -(-prompts // cell.batch_size) * study.max_new_tokens + study.warmup * WARMUP_TOKENS
            reading += prompts * _reading_s(size.target, variant_of(cell.task).context or READ_TOKENS, study)
    return passes * _pass_s(size, study, bandwidth) + reading + size.weight_bytes / LOADING


def traffic_seconds(study: Study, job: tuple[str, str, str], size: PairSize, bandwidth: float | None = None) -> float:
    """Seconds that the job of a method under load takes; job: a key of the grid's `points`, the rest as in
    `process_seconds`.

    Requests that are under way together share passes on a GPU. A processor serves them no faster than one by one.
    """
    assert study.traffic is not None
    pass_s, seconds = _pass_s(size, study, bandwidth), 2 * size.weight_bytes / LOADING
    for point in study.grid.points[job]:
        at_once = int(point.load) if point.loop == "closed" else 1
        around = max(study.traffic.warmup, at_once) + at_once
        sent = 2 * (study.traffic.requests + study.traffic.turns * around)  # by method and baseline
        each = study.max_new_tokens * pass_s / (at_once if study.uses_gpu() else 1)
        seconds += sent * (each if point.loop == "closed" else 1 / point.load)
    return seconds


def _pass_s(size: PairSize, study: Study, bandwidth: float | None) -> float:
    """Seconds of one pass of the target over one token."""
    assert size.target is not None
    device = "cuda" if study.uses_gpu() else "cpu"
    read = pass_bytes(size_of_shape(size.target), size.target_precision)
    return max(read / ((bandwidth or BANDWIDTH[device]) * REACHED), size.target.layers * LAYER_S[device])


def arithmetic(study: Study) -> tuple[float, str]:
    """The entry of `ARITHMETIC` for the device that a study uses."""
    return ARITHMETIC["cuda" if study.uses_gpu() else "cpu"]


def _reading_s(target: Shape, tokens: int, study: Study) -> float:
    """Seconds in which the target reads a prompt: its products and, for each pair of tokens, its attention."""
    flop = 2.0 * target.active_parameters * tokens + 2.0 * target.layers * target.config["hidden_size"] * tokens**2
    return flop / arithmetic(study)[0]


def needs(study: Study) -> str:
    """One line with the study's number of cells and jobs, its memory in GB and its hours of measuring."""
    sizes = pair_sizes(study)
    largest = max((size for size in sizes if size.memory_bytes), key=lambda size: size.memory_bytes or 0, default=None)
    where = "GPU memory" if study.uses_gpu() else "memory"
    known = "" if largest is None else f"up to {size_text(largest.memory_bytes or 0)} ({largest.pair}) of {where}"
    spent = time_text(hours(study, sizes)[0] * 3600)
    return f"{extent(study)} · {known or f'{where} not known'} · about {spent} of measuring"


def run_estimate(study: Study, measured: int) -> str | None:
    """One sentence with the time of a run that has to measure all but `measured` cells; None where it is not known."""
    cells, sizes = len(study.grid.cells), pair_sizes(study)
    load = load_seconds(study, sizes)
    measuring = (3600 * hours(study, sizes)[0] - sum(load.values())) * (cells - measured) / max(cells, 1)
    indexes = {job: study.root.joinpath(FOLDER, *job, "index.json") for job in load}
    measuring += sum(seconds for job, seconds in load.items() if not indexes[job].is_file())
    if not measuring:
        return None
    trains = training_cost(study, missing=True).flop / arithmetic(study)[0]
    first = f", after {time_text(trains)} of training what is not trained yet" if trains else ""
    return (
        f"Study {study.study}: about {time_text(measuring)} of measuring{first}, by `specrig plan`. "
        "The percentages below count jobs, not time."
    )


def expected_seconds(study: Study) -> dict[str, float]:
    """Rule -> seconds of one of its jobs: measuring, load and training as `specrig plan` estimates them."""
    sizes = pair_sizes(study)
    load_s = sum(load_seconds(study, sizes).values())
    whole = {
        "measure": (3600 * hours(study, sizes)[0] - load_s, len(study.grid.jobs)),
        "traffic": (load_s, len(study.grid.points)),
        "train": (training_cost(study).flop / arithmetic(study)[0], len(study.grid.trained)),
    }
    return {rule: max(seconds / max(jobs, 1), LEAST_S) for rule, (seconds, jobs) in whole.items()}


def extent(study: Study) -> str:
    """Cells and jobs as text, e.g. `6 cells in 1 job`."""
    cells, jobs = len(study.grid.cells), len(study.grid.jobs)
    return f"{cells} cell{'s' if cells != 1 else ''} in {jobs} job{'s' if jobs != 1 else ''}"


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """What trainings take. named: the models; flop: operations; memory, disk: bytes; unknown: pairs of unknown size."""

    named: tuple[str, ...]
    flop: float
    memory: float
    disk: float
    unknown: tuple[str, ...]


def training_cost(study: Study, *, missing: bool = False) -> TrainingCost:
    """Return what the trainings of all pairs take; pairs whose target's size is not known count for nothing.

    missing: only of models that are not in the study's results yet.
    """
    flop, memory, disk, named, unknown = 0.0, 0.0, 0.0, [], []
    for pair in study.rows.pairs:
        models = [model for trained, model in study.grid.trained if trained == pair]
        if missing:
            models = [each for each in models if not (study.root / "models" / pair / each / "config.json").is_file()]
        named += [f"{model} of {pair}" for model in models]
        if not models:
            continue
        target, costs = teacher_shape(study, pair), ["joint"] if study.rows.pairs[pair].base else models
        if target is None:
            unknown.append(pair)
            continue
        flop += training_flop(study.training, costs, target)
        memory = max(memory, *(training_memory(study.training, model, target) for model in costs))
        disk += training_disk(study.training, costs, target)
    return TrainingCost(tuple(named), flop, memory + WORKSPACE_BYTES, disk, tuple(unknown))


def training(study: Study) -> str:
    """The models that a study trains, with operations, minutes, memory and disk, as text; or `nothing`."""
    cost = training_cost(study)
    if not cost.named:
        return "nothing"
    speed, machine = arithmetic(study)
    amount = f"{cost.flop / 1e15:.2g} PFLOP: {time_text(cost.flop / speed)} on {machine}, start-ups aside"
    without = f"; without {', '.join(cost.unknown)}, whose target's size is not known" if cost.unknown else ""
    overlap = len(prompts_in_both(study, study.root))
    excluded = f"; {overlap} training prompts are prompts of its tasks and are left out" if overlap else ""
    sizes = f"up to {size_text(cost.memory)} of memory, {size_text(cost.disk)} of disk"
    return f"{', '.join(cost.named)} ({amount}; {sizes}{without}{excluded})"


def size_text(amount: float) -> str:
    """Bytes in the largest of GB, MB and KB (of 1000 each) that holds one of them."""
    for unit, size, digits in (("GB", 1e9, 1), ("MB", 1e6, 0), ("KB", 1e3, 0)):
        if amount >= 0.9995 * size:
            return f"{amount / size:,.{digits}f} {unit}"
    return f"{amount:.0f} bytes"


def time_text(seconds: float) -> str:
    """Seconds in the largest of hours, minutes and seconds that holds one of them."""
    unit, size, digits = next(one for one in UNITS if seconds >= 0.995 * one[1] or one[1] == 1)
    amount = f"{seconds / size:,.{digits}f}"
    return f"{amount} {unit}" + ("" if float(amount.replace(",", "")) == 1 else "s")


def teacher_shape(study: Study, pair: str) -> Shape | None:
    """The shape of the target from which the models of a pair learn."""
    row = study.rows.pairs[pair]
    if row.base:
        return teacher_shape(study, row.base)
    return shape_at_hand(row.target)


def _pair_size(study: Study, pair: str, batch: int, tokens: int) -> PairSize:
    row, target = study.rows.pairs[pair], teacher_shape(study, pair)
    draft = shape_at_hand(row.draft)
    if row.trained_in("draft") is not None and target is not None:
        draft = draft_shape(study.training.draft, int(target.config["vocab_size"]))
    copies = COPIES["cuda" if study.uses_gpu() else "cpu"]
    return PairSize(pair, row.dtype, row.target_precision, target, draft, batch, tokens, copies)


def shape_at_hand(model: str | None) -> Shape | None:
    """A model's shape by shipped facts, its folder's config or its GGUF file; None where none of them says it.

    Raises ModelError for a GGUF file that cannot be read.
    """
    if is_gguf(model):
        return facts.shape_of(gguf_config(str(model)))
    return facts.shape_of(facts.config_at_hand(model)) if model else None


def _shape_if_read(model: str | None) -> Shape | None:
    """The same; None also for a GGUF file that cannot be read, such as one that is not at hand."""
    try:
        return shape_at_hand(model)
    except ModelError:
        return None


def draft_shape(shape: TrainedShape, vocabulary: int) -> Shape:
    """A recipe's draft in the keys of a config."""
    return Shape(
        {
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.intermediate,
            "vocab_size": vocabulary,
            "max_position_embeddings": shape.context,
            "tie_word_embeddings": True,
        }
    )


STARTING = 10
"""Minutes for starting Python and loading models."""
MARGIN = 2
"""Times the estimate, which counts bandwidth and arithmetic alone. A job out of time goes on in another."""
UNKNOWN_MINUTES, UNKNOWN_MB = 240, 16_000
"""Requested where the target's size is not known."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job requests. memory_mb: megabytes of main memory. minutes: of run time."""

    memory_mb: int = UNKNOWN_MB
    minutes: int = UNKNOWN_MINUTES


def measuring_demand(study: Study, process: tuple[str, str, str], size: PairSize) -> Demand:
    """Return what the measuring job of one process requests. process: a key of the grid's `jobs`. size: of its pair.

    On a GPU the models pass through main memory, so a job asks for as much of it as the plan estimates of the GPU's.
    """
    if size.memory_bytes is None:
        return Demand()
    return _demand(size.memory_bytes, process_seconds(study, process, size, repeats=study.repeats.most))


def auditing_demand(study: Study, sizes: Mapping[str, PairSize]) -> Demand:
    """Return what the audit of the records requests: the memory of the largest pair, since it loads one after the other,
    and the time of the longest measuring job. sizes: by the name of a pair.
    """
    times = [measuring_demand(study, process, sizes[process[1]]).minutes for process in study.grid.jobs]
    amounts = (size.audit_bytes for size in sizes.values())
    memory = [UNKNOWN_MB if amount is None else math.ceil(amount / 1e6) for amount in amounts]
    return Demand(max(memory), max(times))


def conversion_demand(shape: Shape | None) -> Demand:
    """Return what the conversion of a GGUF file requests, of which only the memory counts.

    It holds the weights up to three times in float32: as they are read, as a model, and as a copy of it.
    """
    if shape is None:
        return Demand()
    return Demand(math.ceil((3 * shape.weight_bytes("float32") + WORKSPACE_BYTES) / 1e6))


def traffic_demand(study: Study, job: tuple[str, str, str], size: PairSize) -> Demand:
    """Return what the job of a method under load requests: room for two servers. job: a key of the grid's `points`."""
    if size.memory_bytes is None:
        return Demand()
    return _demand(2 * size.memory_bytes, traffic_seconds(study, job, size))


def training_demand(study: Study, pair: str, model: str) -> Demand:
    """Return what training one model of a pair requests. model: a name in `training.stages.STAGES`, or `joint` for
    Medusa-2.

    The time that a draft or head takes includes the text that the target writes for it.
    """
    target = teacher_shape(study, pair)
    if target is None:
        return Demand()
    speed, _ = arithmetic(study)
    memory = training_memory(study.training, model, target) + WORKSPACE_BYTES
    return _demand(memory, training_flop(study.training, [model], target) / speed)


def _demand(memory_bytes: float, seconds: float) -> Demand:
    return Demand(math.ceil(memory_bytes / 1e6), STARTING + math.ceil(MARGIN * seconds / 60))
