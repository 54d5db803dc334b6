"""Advises which method and k to use for a pair: from a study's measurements, or else from the cost model.

`advice_view` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from specrig.analysis import cost_model
from specrig.analysis.cost_model import Size
from specrig.decoding.drafters import registry as methods
from specrig.models import facts, hub
from specrig.models.facts.devices import Device, devices, find_device
from specrig.models.gate import check_decoder, other_vocabulary
from specrig.models.pair import ModelError
from specrig.planning.estimate import PairSize, size_text, sizes_of
from specrig.planning.measured import studies_of, usable_cells
from specrig.study.claims import read_claims
from specrig.study.config_checks import BASELINE
from specrig.study.problems import Positions, Problems, nearest
from specrig.study.rows import Pair, read_rows

USUAL_ALPHA = 0.7
ALPHAS = (0.6, USUAL_ALPHA, 0.8)
"""Acceptance probabilities α to predict with: low, usual, good. Sources report 0.53 to 0.82 within one family."""
KS = range(1, 9)
RATIO = (5, 10)
"""(from, to): how many times fewer active parameters than its target a draft should have."""
CONTEXT = 4096
"""Tokens of the cache that a device must hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of the pair. `good` is True if it passed, False if it failed, None for a remark."""

    good: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest measured cell of one engine, task, temperature and batch size.

    variant: its options beside k, as records name them, empty: the defaults. low, high: the 95 % interval of its
    speedup, None where it is not known; acceptance_length: tokens a verification pass.
    """

    engine: str
    task: str
    temperature: float
    batch_size: int
    method: str
    variant: str
    k: int
    speedup: float
    low: float | None
    high: float | None
    acceptance_length: float

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies above 1."""
        return self.low is not None and self.low > 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model predicts for one method at batch size 1.

    tokens: tokens kept in a round; cost: cost of a round, where 1 is a pass of the target alone; speedup: tokens /
    cost, an upper bound. Only draft_model has alpha and k. reports: number of reported figures whose median `tokens`
    is; 0 if it was computed from alpha. lacks: what the method needs and the pair does not have.
    """

    method: str
    tokens: float
    cost: float
    speedup: float
    alpha: float | None = None
    k: int | None = None
    reports: int = 0
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is known about a pair.

    measured: the fastest cells of a study, empty without a study; predictions: what the cost model says if nothing was
    measured, None with measurements or if the target's size is not known; lacks: method -> what it needs and the pair
    does not have, empty if the target can run no method at all; others: finished studies of this folder that measured
    the pair too.
    """

    name: str
    pair: Pair
    device: Device | None
    findings: Sequence[Finding]
    study: Path | None
    measured: Sequence[Best]
    predictions: Sequence[Prediction] | None
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: Sequence[Path] = ()


def advise(
    name: str, pairs: Path, reported: Path, device_name: str | None, study: Path | None, trained_by: Path | None = None
) -> Advice:
    """Return the advice for the pair in row `name` of the table `pairs`.

    reported: the table of reported figures, from which methods without a known acceptance are predicted; device_name: a
    device of `specrig.models.facts`, or None; study: a results folder; None takes the newest finished study of this
    folder that measured the pair, unless a device is named, which may be another one than was measured; trained_by: the
    config by whose recipe the pair's models are trained, where the study does not say. Raises StudyError for an unknown
    pair or device, and for a study that has no usable cell of the pair.
    """
    problems = Problems(Positions([]))
    rows = read_rows(pairs, Pair, problems)
    if name not in rows:
        problems.row(pairs, None, "pair", f"no row {name!r}", nearest(name, rows))
    device = find_device(device_name) if device_name else None
    if device_name and device is None:
        fix = nearest(device_name, devices())
        problems.option("--device", f"unknown device {device_name!r}", fix)
    others = studies_of(rows[name]) if study is None and name in rows else []
    if others and not device_name:
        study, *others = others
    cells = usable_cells(study, name, problems) if study else []
    if name not in rows or (device_name and device is None) or (study and not cells):
        problems.stop()
    pair = rows[name]
    own = study / "study.json" if study else None
    size = PairSize(name, pair.dtype, pair.target_precision, None, None, 1, CONTEXT)
    with suppress(ModelError):  # a GGUF file that is not at hand: its size is not known
        size = sizes_of(name, rows, own if own and own.is_file() else trained_by, CONTEXT)
    target, draft = (cost_model.size_of_shape(shape) if shape else None for shape in (size.target, size.draft))
    hopeless = _gate(pair.model_copy(update={"draft": None})) is not None  # the target itself cannot decode
    fits = _gate(pair) is None
    lacks = {} if hopeless else lacking(pair, draft_fits=fits)
    predictions = None
    if target and not cells:
        predictions = [
            replace(row, lacks=lacks.get(row.method, ()))
            for row in predicted(pair, target, draft if fits else None, device, reported_lengths(reported))
        ]
    findings = draft_findings(pair, size, device)
    return Advice(name, pair, device, findings, study, fastest(cells), predictions, lacks, others)


def lacking(pair: Pair, *, draft_fits: bool = True) -> dict[str, tuple[str, ...]]:
    """Method -> what it needs and the pair does not have: `draft` or names of heads; empty where the pair can run it.

    draft_fits: whether the pair's draft can speculate for its target at all.
    """

    def has(part: str) -> bool:
        if part == "draft":
            return pair.draft is not None and draft_fits
        return part in pair.head_folders or pair.trained_in(part) is not None

    return {
        name: tuple(part for part in sorted(pair.parts_for(method.needs)) if not has(part))
        for name, method in methods().items()
        if name != BASELINE
    }


def draft_findings(pair: Pair, size: PairSize, device: Device | None) -> list[Finding]:
    """Check whether target and draft fit each other, the draft is small enough, and the device holds both."""
    findings = []
    if reason := _gate(pair):
        findings.append(Finding(False, reason))
    elif difference := _difference(pair):
        text = f"{difference}: native, transformers and vLLM draft from it all the same, and fewer drafts are accepted"
        findings.append(Finding(None, text))
    elif pair.draft and pair.trained_in("draft") is None:
        text = "target and draft share one vocabulary, as far as shipped facts and files at hand say"
        findings.append(Finding(True, text))
    if size.target and size.draft:
        findings.append(_ratio(size.target.active_parameters / size.draft.active_parameters))
    if size.target and size.target.parameters < 13e9 and not pair.draft:
        text = "for targets under 13B a draft model is hard to find small enough: heads, lookahead or ngram"
        findings.append(Finding(None, text))
    if device and size.memory_bytes is not None:
        findings.append(_memory(size.memory_bytes / 1e9, pair.target_precision, device))
    return findings


def _ratio(ratio: float) -> Finding:
    """Judge whether a draft is small enough that has `ratio` times fewer parameters than its target."""
    text = f"the draft is {ratio:.1f} times smaller; {RATIO[0]} to {RATIO[1]} times is the rule"
    if ratio < RATIO[0]:
        return Finding(False, f"{text}: too slow; take a smaller draft, or Medusa or EAGLE heads")
    if ratio > 2 * RATIO[1]:
        return Finding(None, f"{text}: cheap, but is it accepted often enough? Measure its acceptance")
    return Finding(True, text)


def _memory(needed: float, dtype: str, device: Device) -> Finding:
    """Judge whether `needed` GB fit the device, and say what to do if they do not."""
    text = f"weights, {CONTEXT} tokens of cache and workspace take {size_text(needed * 1e9)} of {device.memory_gb:g} GB"
    text += f" in {dtype}"
    if needed <= device.memory_gb:
        return Finding(True, text)
    return Finding(
        False, f"{text}: take {-(-needed // device.memory_gb):.0f} of them, a smaller precision or a smaller pair"
    )


def _gate(pair: Pair) -> str | None:
    """Why target and draft can never speculate together, by shipped facts and local folders; None: nothing known."""
    try:
        for folder in _local(pair):
            check_decoder(folder)
        _ = _difference(pair)
    except ModelError as error:
        return str(error)
    return facts.impossible(pair.target, pair.draft)


def _difference(pair: Pair) -> str | None:
    """In what the draft's vocabulary is another than the target's, as far as that is known here. Raises ModelError for a
    damaged tokenizer.
    """
    if len(local := _local(pair)) == 2:
        with suppress(hub.FileMissingError):  # a folder with a config.json alone, for random weights
            return other_vocabulary(*local)
    return facts.other_vocabulary(pair.target, pair.draft) if pair.draft else None


def _local(pair: Pair) -> list[str]:
    """The models of a pair that are folders here."""
    folders = [str(Path(model).expanduser()) for model in (pair.target, pair.draft) if model]
    return [folder for folder in folders if Path(folder, "config.json").is_file()]


def fastest(cells: Sequence[dict[str, str]]) -> list[Best]:
    """Return the cell with the highest speedup for each engine, task, temperature and batch size, in the order of the
    cells. A speedup is over plain decoding of the same engine, so engines are not compared.
    """
    settings: dict[tuple[str, str, str, str], list[dict[str, str]]] = {}
    for row in cells:
        setting = row["engine"], row["task"], row["temperature"], row["batch_size"]
        settings.setdefault(setting, []).append(row)
    found = []
    for (engine, task, temperature, batch), rows in settings.items():
        best = max(rows, key=lambda row: float(row["speedup"]))
        low, high = (float(best[end]) if best["speedup_low"] else None for end in ("speedup_low", "speedup_high"))
        length = float(best["acceptance_length"] or 1)
        chosen = best["method"], best["variant"], int(best["k"])
        found.append(
            Best(
                engine,
                task,
                float(temperature),
                int(batch),
                *chosen,
                float(best["speedup"]),
                low,
                high,
                length,
            )
        )
    return found


def reported_lengths(file: Path) -> dict[str, list[float]]:
    """Method -> the acceptance lengths that sources report for it at batch size 1; empty without the `file`."""
    found: dict[str, list[float]] = {}
    for claim in read_claims(file, Problems(Positions([]))):
        if claim.metric == "acceptance_length" and claim.interval and claim.batch in ("", "1"):
            found.setdefault(claim.base_method, []).append(claim.interval[0])
    return found


def predicted(
    pair: Pair, target: Size, draft: Size | None, device: Device | None, lengths: dict[str, list[float]]
) -> list[Prediction]:
    """Predict the methods' speedups at batch size 1.

    draft_model is predicted for each of `ALPHAS` by Theorem 3.8 of Leviathan et al., other methods from the median of
    their `lengths`. Costs come from the device's roofline, or without a device from the ratio of parameters.
    """
    precisions = pair.target_precision, pair.dtype

    def verify(tokens: int) -> float:
        return cost_model.verify_cost(target, device, pair.target_precision, tokens)

    found = []
    if draft:
        c = cost_model.draft_cost(target, draft, device, *precisions) if device else draft.active / target.active
        for alpha in ALPHAS:
            k = cost_model.best_k(alpha, c, KS, verify)
            tokens, cost = cost_model.expected_tokens(alpha, k), k * c + verify(k + 1)
            found.append(Prediction("draft_model", tokens, cost, tokens / cost, alpha, k))
    for method in sorted(set(cost_model.papers()) & set(lengths)):
        middle = median(lengths[method])
        _, cost = cost_model.round_cost(method, None, target, [], device, pair.target_precision, 1) or (0.0, 1.0)
        found.append(Prediction(method, middle, cost, middle / cost, reports=len(lengths[method])))
    return found
