"""The one cost model: what a forward pass, a round of a method and a speedup cost, by a device's figures or as measured.

It serves measured cells, the verdict on reported figures, and plans and advice for devices that are not at hand.

Passes that cannot be timed follow from the roofline of their weights (Williams et al. 2009; for decoding: Leviathan
2211.17192, section 3.3): a pass of n tokens reads the weights once and multiplies each of them with n vectors. It
therefore takes at least max(bytes read / bandwidth, 2 · weights · n / peak FLOP/s) seconds. Launches, attention over a
long context and communication between devices take additional time.

Rounds and speedups follow Leviathan et al. 2211.17192, section 3. Costs are in units of t_target(1), the time of a bare
one-token target pass: of the baseline where it was measured, by the roofline else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

from specrig.decoding.drafters import registry
from specrig.decoding.types import PaperRound
from specrig.measurement.records import Record
from specrig.models import facts
from specrig.models.facts.devices import Device, named_sizes

NAN = float("nan")
Range = tuple[float, float]
"""(lowest, highest)."""
BYTES = {
    **dict.fromkeys(("float32", "fp32"), 4.0),
    **dict.fromkeys(("float16", "fp16", "bfloat16", "bf16"), 2.0),
    **dict.fromkeys(("fp8", "int8"), 1.0),
    **dict.fromkeys(("awq", "gptq"), 0.52),
}
"""Bytes per weight. AWQ and GPTQ: 4 bits, plus 2.5 bytes of scale and zero point per group of 128; their output head
stays in 16 bits.
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a model, as far as it decides what a pass must read. Sizes are numbers of weights.

    parameters: all weights. active: the weights that one token needs (fewer in a mixture of experts). embedding:
    vocabulary × width, the table of the output head. untied: whether the input has a table of its own, of which a pass
    reads only a few rows.
    routed_share: the share of the experts to which one token is sent. cache_bytes: bytes of the keys and values of one
    token, in 16 bits. layers, width: decoder layers and hidden size, 0 where not known.
    """

    parameters: float
    active: float
    embedding: float = 0.0
    untied: bool = False
    routed_share: float = 1.0
    cache_bytes: float = 0.0
    layers: int = 0
    width: int = 0

    @property
    def layer(self) -> float:
        """The number of weights of one decoder layer; 0 where the shape is not known."""
        return (self.parameters - self.embedding * (1 + self.untied)) / self.layers if self.layers else 0.0

    def read(self, tokens: int) -> float:
        """The number of weights that a pass of `tokens` tokens reads, if each token chooses its experts at random."""
        experts = (self.parameters - self.active) / (1 - self.routed_share) if self.routed_share < 1 else 0.0
        missed = experts * (1 - self.routed_share) ** tokens
        return self.parameters - missed - (self.embedding if self.untied else 0.0)


def size_of(model: str) -> Size | None:
    """The size of a model, given by its hub id or by its name in a paper; None where it is not known or cannot decode."""
    found = model_facts(model)
    if found is None:
        parameters = named_sizes().get(model)
        return Size(parameters, parameters) if parameters else None
    return None if facts.no_decoder(found.name, found.config) else size_of_shape(found.shape)


def size_of_shape(shape: facts.Shape) -> Size:
    """The size of a model with this decoder-only architecture."""
    config = shape.config
    return Size(
        parameters=shape.parameters,
        active=shape.active_parameters,
        embedding=config["vocab_size"] * config["hidden_size"],
        untied=not config.get("tie_word_embeddings"),
        routed_share=config.get("num_experts_per_tok", 1) / config.get("num_local_experts", 1),
        cache_bytes=shape.cache_bytes(1, "float16"),
        layers=shape.layers,
        width=config["hidden_size"],
    )


def model_facts(model: str) -> facts.ModelFacts | None:
    """The known facts of a model by its hub id, or by its name without the owner; None where it is not known."""
    short = (found for name, found in facts.models().items() if name.split("/")[-1] == model)
    return facts.known(model) or next(short, None)


def pass_bytes(size: Size, precision: str = "float16", tokens: int = 1, context: float = 0, batch: float = 1) -> float:
    """Bytes that one forward pass must read: the weights once, and keys and values in the precision of the activations.

    tokens: new tokens of each sequence. context: cached tokens of each sequence. batch: number of sequences. Raises
    KeyError for a precision that `BYTES` does not list.
    """
    width = BYTES[precision.lower()]
    activation = max(width, 2.0)
    weights = size.read(round(tokens * batch))
    head = min(size.embedding, weights)
    return (weights - head) * width + head * activation + batch * context * size.cache_bytes * activation / 2


def pass_seconds(
    size: Size, device: Device, precision: str = "float16", tokens: int = 1, context: int = 0, batch: int = 1
) -> float:
    """Seconds that one forward pass takes at least; parameters and errors are those of `pass_bytes`."""
    read = pass_bytes(size, precision, tokens, context, batch)
    computed = 2 * min(size.read(1), size.read(tokens * batch)) * tokens * batch
    return max(read / (device.bandwidth_gb_s * 1e9), computed / (device.half_tflops * 1e12))


def draft_cost(
    target: Size,
    draft: Size,
    device: Device,
    precision: str = "float16",
    draft_precision: str | None = None,
    batch: int = 1,
) -> float:
    """c: seconds of a one-token pass of the draft / seconds of a one-token pass of the target.

    draft_precision: None for the target's.
    """
    drafting = pass_seconds(draft, device, draft_precision or precision, batch=batch)
    return drafting / pass_seconds(target, device, precision, batch=batch)


def verify_cost(
    target: Size, device: Device | None, precision: str = "float16", tokens: int = 1, batch: int = 1
) -> float:
    """v(n): seconds of a pass of n = `tokens` tokens / seconds of a one-token pass of the same model.

    It is 1 as long as reading the weights takes longer than computing. Without a device only reading counts; v is then
    above 1 only for a mixture of experts, because more tokens read more experts.
    """
    if device is None:
        return target.read(tokens * batch) / target.read(batch)
    return pass_seconds(target, device, precision, tokens, batch=batch) / pass_seconds(
        target, device, precision, batch=batch
    )


@cache
def papers() -> dict[str, PaperRound]:
    """Method -> a round with the defaults of its paper; methods without a head or a pass of their own are left out."""
    return {name: vars(drafter)["paper"] for name, drafter in registry().items() if "paper" in vars(drafter)}


def head_size(paper: PaperRound, target: Size) -> Size:
    """The size of a method's head for a target of this size."""
    weights = paper.layers * target.layer + paper.squares * target.width**2 + paper.outputs * target.embedding
    return Size(weights, weights)


def draft_costs(target: Size, draft: Size, device: Device | None, precision: str) -> Range:
    """(lowest, highest) draft cost c in target passes: by parameters, and by the roofline of a known device."""
    found = [draft.active / target.active]
    if device is not None:
        found.append(draft_cost(target, draft, device, precision))
    return min(found), max(found)


def round_cost(
    method: str, k: int | None, target: Size, drafts: list[Size], device: Device | None, precision: str, batch: int
) -> Range | None:
    """(lowest, highest) cost of a round in one-token target passes; None for a method that is not known here.

    k: drafted tokens per round; None means the method's default. drafts: the draft models that the claim may mean.
    device: None means that only the reading of weights counts.
    """
    paper = papers().get(method)
    if paper is None and not drafts:
        return None
    passes = k if k is not None else (paper.passes if paper else 4)
    width = paper.width if paper and (k is None or paper.tree) else passes + 1
    v = verify_cost(target, device, precision, width, batch)
    if paper is not None:
        times = passes if paper.passes > 1 else paper.passes
        low, high = draft_costs(target, head_size(paper, target), device, precision)
        return times * low + v, times * high + v
    costs = [draft_costs(target, draft, device, precision) for draft in drafts]
    return passes * min(low for low, _ in costs) + v, passes * max(high for _, high in costs) + v


def expected_tokens(alpha: float, k: int) -> float:
    """E[tokens per target pass] = (1 - α^(k+1)) / (1 - α), Leviathan eq. (1): a chain of k drafts, each accepted with
    α.

    Raises ValueError for α outside [0, 1] or negative k.
    """
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError(f"alpha must lie in [0, 1] and k be at least 0, not alpha={alpha}, k={k}")
    # The sum 1 + α + … + α^k is the same number, without the cancellation near α = 1.
    return sum(alpha**power for power in range(k + 1))


def walltime_improvement(alpha: float, k: int, c: float, v: float = 1.0) -> float:
    """Expected speedup (1 - α^(k+1)) / ((1 - α)(k·c + v)): Leviathan theorem 3.8, where v(k + 1) = 1.

    c: seconds of one draft pass / seconds of one target pass. v: the cost of a verification pass of k + 1
    tokens, in one-token target passes. Raises ValueError like `expected_tokens`.
    """
    return expected_tokens(alpha, k) / (k * c + v)


def required_alpha(speedup: float, k: int, c: float, v: float = 1.0) -> float | None:
    """The smallest α at which Theorem 3.8 gives at least `speedup`; None where even α = 1 gives less."""
    if walltime_improvement(1.0, k, c, v) < speedup:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # the formula grows with α
        middle = (low + high) / 2
        low, high = (middle, high) if walltime_improvement(middle, k, c, v) < speedup else (low, middle)
    return high


def best_k(alpha: float, c: float, ks: Iterable[int], v: Callable[[int], float] = lambda _: 1.0) -> int:
    """The k in `ks` with the largest expected speedup; among equals, the smallest. v: of k + 1 tokens."""
    return max(sorted(ks), key=lambda k: walltime_improvement(alpha, k, c, v(k + 1)))


@dataclass(frozen=True, slots=True)
class PassCosts:
    """The costs of forward passes in one cell, measured in the cell's own runs.

    target_pass_s: t_target(1), mean seconds of the baseline's bare one-token target pass.
    draft_cost: c, draft seconds per drafted chain position / t_target(1); 0 without a draft model, NaN where nothing
    was drafted.
    draft_cost_per_round: draft seconds per verification pass / t_target(1); k·c for a chain of constant k.
    verify_cost: v, mean seconds of the method's target passes (of all widths) / t_target(1).
    target_s, draft_s: seconds spent in bare passes; the rest of decode_s is the loop's own time.
    rows: sequences in one pass of the method / sequences in one pass of the baseline. It is 1, except where a batch is
    compared with prompts that ran one by one.
    """

    target_pass_s: float
    draft_cost: float
    draft_cost_per_round: float
    verify_cost: float
    target_s: float
    draft_s: float
    rows: float = 1.0


def pass_costs(records: Iterable[Record]) -> PassCosts:
    """The costs of one cell, from `target_passes` and `draft_passes` of its records; NaN where the engine does not time
    passes.

    Every record of a batch repeats the passes of the whole batch. Each group therefore counts once, and a draft position counts once for all rows.
    """
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    one_calls = calls = positions = batches = rows = 0
    one_s = target_s = draft_s = 0.0
    for members in groups.values():
        first = members[0]
        for record in members if first.baseline_alone else members[:1]:
            base_calls, base_seconds = record.baseline.target_passes.get(1, (0, 0.0))
            one_calls, one_s = one_calls + base_calls, one_s + base_seconds
        batches += 1
        rows += len(members) if first.baseline_alone else 1
        calls += sum(number for number, _ in first.run.target_passes.values())
        target_s += sum(seconds for _, seconds in first.run.target_passes.values())
        draft_s += sum(seconds for _, seconds in first.run.draft_passes.values())
        rounds = zip_longest(*(record.run.rounds.depth for record in members), fillvalue=0)
        positions += sum(max(depths) for depths in rounds)
    if not one_calls or not calls or one_s <= 0:
        return PassCosts(NAN, NAN, NAN, NAN, target_s, draft_s)
    unit = one_s / one_calls
    return PassCosts(
        target_pass_s=unit,
        draft_cost=draft_s / positions / unit if positions else NAN,
        draft_cost_per_round=draft_s / calls / unit,
        verify_cost=target_s / calls / unit,
        target_s=target_s,
        draft_s=draft_s,
        rows=rows / batches,
    )


def predicted_speedup(acceptance_length: float, costs: PassCosts) -> float:
    """τ · rows / (draft cost per round + v), which is τ / (k·c + v(k+1)) for a chain of constant k; NaN if a part is
    unknown.

    The prediction leaves out the loop's own work. Measured / predicted speedup is thus the share of the possible speed
    that is kept.
    """
    return acceptance_length * costs.rows / (costs.draft_cost_per_round + costs.verify_cost)


def efficiency(measured: float, predicted: float) -> float:
    """Measured speedup / predicted speedup: 1 if the loop spends as much of its time outside passes as the baseline."""
    return measured / predicted if predicted else NAN


FACTORS = ("acceptance", "draft cost", "verification cost", "the loop")
"""The parts of the quotient of two speedups; the loop: time outside forward passes."""


def log_factors(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[float]:
    """The logarithm of the factor by which each of `FACTORS` makes the cell `after` faster than `before`; NaN where
    passes were not timed. before, after: rows of the table of cells.

    speedup = τ / (d + v) · efficiency, with the draft cost d of a round and its verification cost v. The change of d + v
    is divided between d and v in proportion to their differences (logarithmic mean Divisia index, Ang 2004), which
    leaves no remainder.
    """
    lengths, efficiencies, verify = (
        [row[name] for row in (before, after)] for name in ("acceptance_length", "efficiency", "verify_cost")
    )
    rounds = [row["acceptance_length"] / row["predicted_speedup"] for row in (before, after)]  # d + v
    draft = [cost - verification for cost, verification in zip(rounds, verify, strict=True)]
    if not all(map(math.isfinite, (*lengths, *rounds, *verify, *efficiencies))):
        return [NAN] * len(FACTORS)
    change = math.log(rounds[1] / rounds[0])
    per_cost = change / (rounds[1] - rounds[0]) if rounds[1] != rounds[0] else 1 / rounds[0]
    return [
        math.log(lengths[1] / lengths[0]),
        -per_cost * (draft[1] - draft[0]),
        -per_cost * (verify[1] - verify[0]),
        math.log(efficiencies[1] / efficiencies[0]),
    ]


def floor_share(records: Sequence[Record], environment: Mapping[str, Any]) -> float:
    """The memory floor: seconds for reading what a bare one-token pass of a cell's baseline must read / seconds that it
    took.

    Bytes are read at the bandwidth that the same job measured by copying on the same device (read and written bytes
    added). A device reads a little faster than it copies, and a processor may hold a small model in its cache, so the
    share can exceed 1.

    NaN where no pass was timed, and where the job's environment lacks bandwidth, shape or precision. records: those of
    the cell. environment: the job's environment.json (`memory.copy_gb_s`, `models.target.shape` and `.precision`).
    """
    bandwidth = (environment.get("memory") or {}).get("copy_gb_s")
    target = (environment.get("models") or {}).get("target") or {}
    precision = str(target.get("precision"))
    shape = facts.shape_of(target["shape"]) if target.get("shape") else None
    seconds = pass_costs(records).target_pass_s
    if not bandwidth or shape is None or precision.lower() not in BYTES or not seconds > 0:
        return NAN
    groups = len({record.group for record in records})
    batch = 1.0 if records[0].baseline_alone else len(records) / groups
    context = sum(record.prompt_tokens + len(record.baseline.tokens) / 2 for record in records) / len(records)
    return pass_bytes(size_of_shape(shape), precision, context=context, batch=batch) / (bandwidth * 1e9) / seconds
