"""Check whether a reported figure follows from its own conditions.

The model is Leviathan 2211.17192 (eq. 1, Theorem 3.8) with costs from the roofline. A claim is checked against what the
same source reports about the same experiment: its acceptance, its baseline, its other figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from specrig.analysis.cost_model import (
    BYTES,
    Range,
    expected_tokens,
    papers,
    pass_seconds,
    required_alpha,
    round_cost,
    size_of,
    walltime_improvement,
)
from specrig.models.facts.devices import find_device
from specrig.study.claims import TIMED, Claim

ABOVE = 0.10
"""How far a figure may exceed the model: figures are rounded, and tokens are not accepted independently."""
BELOW = 0.50
"""How far a figure may fall below the model: launches, sampling and the loop of a real program take time. Calculations
may differ by `ABOVE` in either direction.

For 88 speedups in the table the source also states τ or α. The lowest of them reaches 55 % of the model, the median 88
%. By hardware: RTX 3090 55 to 109 %, A100 69 to 95 %, TPU v4 58 to 121 %, the two plain decoders with known hardware 71
and 81 %. Methods on one GPU differ as much as GPUs do. A limit for each GPU would rest on about ten figures that differ
by more than it would tell, so one limit below all of them serves for all. The reason of each verdict says what share
the figure reaches."""
OWN = 0.05
"""The relative difference that two figures of one source for the same thing may have."""
USUAL_C = (0.05, 0.2)
"""The range of c that a statement about "any" draft can mean: drafts that are 5 to 20 times cheaper than the target."""
USUAL_K = range(2, 9)
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Theory:
    """consistent: None where the model cannot tell. low, high: predicted, in the claim's unit."""

    consistent: bool | None
    reason: str
    low: float = NAN
    high: float = NAN


def check(claim: Claim, claims: Sequence[Claim]) -> Theory:
    """Check a claim against the model and against what its source says of the same experiment."""
    if claim.analytic:
        return _calculation(claim)
    if claim.interval is None:
        return Theory(None, "no figure to hold against the model")
    if claim.general:
        return _statement(claim)
    family = [
        other for other in claims if other.source == claim.source and other.target == claim.target and other != claim
    ]
    if claim.base_method == "autoregressive":
        return _baseline(claim)
    if claim.metric in TIMED:
        return _speed(claim, family)
    fast = [other for other in family if other.metric in TIMED and _same(claim, other)]
    found = [(other, _speed(other, [claim, *(row for row in family if row != other)])) for other in fast]
    decided = [(other, theory) for other, theory in found if theory.consistent is not None]
    if not decided:
        return Theory(None, "the source gives no speed for this acceptance")
    worst = min(decided, key=lambda item: bool(item[1].consistent))
    return Theory(worst[1].consistent, f"with {worst[0].id}: {worst[1].reason}")


def _calculation(claim: Claim) -> Theory:
    """Check a calculated speedup by Theorem 3.8 at the α and k that the claim names, with c from its pair or `USUAL_C`."""
    alphas, ks = claim.acceptances or (1.0, 1.0), list(claim.ks or USUAL_K)
    target, drafts = size_of(claim.target), [size for name in claim.drafts if (size := size_of(name))]
    costs = (drafts[0].active / target.active,) * 2 if target and drafts else USUAL_C
    cost_text = f"c = {costs[0]:.2f}" + (f" to {costs[1]:.2f}" if costs[1] > costs[0] else " (ratio of parameters)")
    if claim.low == "k":
        holds = [k for k in USUAL_K if walltime_improvement(alphas[0], k, costs[0]) * (1 + ABOVE) >= k]
        return Theory(
            len(holds) == len(USUAL_K),
            f"(k+1)/(k·c+1) reaches k only up to k = {max(holds, default=0)} at c = {costs[0]:.2f}; a draft that IS "
            f"the target has c = 1 and gives {walltime_improvement(1.0, 4, 1.0):.2f}x at any k",
        )
    found = [walltime_improvement(alpha, k, c) for alpha, k, c in product(alphas, ks, costs)]
    ceiling = expected_tokens(alphas[1], max(ks))
    low, high = claim.interval or (NAN, NAN)
    fits = low <= max(found) * (1 + ABOVE) and high >= min(found) * (1 - ABOVE) and high <= ceiling * (1 + ABOVE)
    free = f"{ceiling:.2f}x if drafting were free" + (f" (k = {max(ks)})" if len(ks) > 1 else "")
    return Theory(
        fits,
        f"Theorem 3.8 at α = {_span(alphas)}, k = {_ks(ks)}, {cost_text}: {_span((min(found), max(found)))}x, {free}",
        min(found),
        max(found),
    )


def _statement(claim: Claim) -> Theory:
    """Check a speedup that is claimed for any pair: which α it requires at the usual costs."""
    if claim.base_method != "draft_model" or claim.metric != "speedup":
        return Theory(None, "a statement about any pair, without an acceptance")
    low, high = claim.interval or (NAN, NAN)
    ks = list(claim.ks or USUAL_K)
    reach = max(walltime_improvement(0.9, k, USUAL_C[0]) for k in ks)
    least = min(required_alpha(low, k, USUAL_C[0]) or 1.0 for k in ks)
    most = min(required_alpha(high, k, USUAL_C[0]) or 1.0 for k in ks)
    floor = min(walltime_improvement(0.5, k, USUAL_C[1]) for k in ks)
    return Theory(
        high <= reach * (1 + ABOVE),
        f"at c = {USUAL_C[0]:.2f}, k = {_ks(ks)}, Theorem 3.8 asks for α from {least:.2f} to {most:.2f}; α from 0.5 to "
        f"0.9 and c up to {USUAL_C[1]:.2f} give {floor:.2f} to {reach:.2f}x",
        floor,
        reach,
    )


def _baseline(claim: Claim) -> Theory:
    """Check tokens/s without speculation, which are at most bandwidth / bytes of the weights."""
    target, device = size_of(claim.target), find_device(claim.hardware) if claim.hardware else None
    if target is None or device is None or claim.metric != "tokens_per_s" or claim.interval is None:
        return Theory(None, "no device or model of known size to hold it against")
    precision = _precision(claim)
    most = 1 / pass_seconds(target, device, precision)
    share = claim.interval[1] / most
    return Theory(
        1 - BELOW <= share <= 1 + ABOVE,
        f"reading the weights ({precision}) once a token allows {most:.0f} tokens/s on {device.device}: the figure is "
        f"{share:.0%} of it",
        most,
        most,
    )


def _speed(claim: Claim, family: Sequence[Claim]) -> Theory:
    """Check a speedup (or tokens/s or ms/token that imply one) against acceptance and costs."""
    implied, agrees, text = _implied(claim, family)
    if implied is None:
        return Theory(None, "the source gives no baseline for this speed")
    if agrees is False:
        return Theory(False, text, *implied)
    ks = list(claim.ks or [None])
    target, drafts = size_of(claim.target), [size for name in claim.drafts if (size := size_of(name))]
    device = find_device(claim.hardware) if claim.hardware else None
    rounds = [
        cost
        for k in ks
        if target
        and (cost := round_cost(_core(claim), k, target, drafts, device, _precision(claim), int(claim.batch or 1)))
    ]
    if not rounds:
        return Theory(None, "what a round of this method costs is not known")
    cheap, expensive = min(low for low, _ in rounds), max(high for _, high in rounds)
    lengths, where = _lengths(claim, family)
    cost_text = f"a round costs {_span((cheap, expensive))} target passes"
    if lengths is None:
        return _ceiling(claim, implied, rounds, agrees, cost_text, text)
    low, high = lengths[0] / expensive, lengths[1] / cheap
    fits = implied[1] >= low * (1 - BELOW) and implied[0] <= high * (1 + ABOVE)
    ends = "" if implied == claim.interval else f"{text}: "
    unit = 1.0 if claim.metric == "speedup" else (claim.interval or implied)[0] / implied[0]
    scale = (unit * low, unit * high) if claim.metric != "ms_per_token" else (NAN, NAN)
    kept = "–".join(dict.fromkeys((f"{implied[0] / high:.0%}", f"{implied[1] / low:.0%}")))
    return Theory(
        fits,
        f"{ends}{where}; {cost_text}: {_span((low, high))}x predicted, {_span(implied)}x reported ({kept} of it)",
        *scale,
    )


def _ceiling(
    claim: Claim, implied: Range, rounds: list[Range], agrees: bool | None, cost_text: str, text: str
) -> Theory:
    """Check a speed without a reported acceptance: whether any acceptance can give it."""
    paper = papers().get(_core(claim))
    k = max(claim.ks) if claim.ks else paper.depth if paper else None
    needed = implied[1] * min(low for low, _ in rounds)
    if k is not None and needed > (k + 1) * (1 + ABOVE):
        most = (k + 1) / min(low for low, _ in rounds)
        return Theory(
            False,
            f"{cost_text}; with every token accepted it gives {most:.2f}x, {implied[1]:.2f}x are reported",
            NAN,
            most,
        )
    requirement = f"{cost_text}: it takes {_span((implied[0] * rounds[0][0], needed))} tokens a pass"
    if _core(claim) == "draft_model" and k:
        alpha = required_alpha(implied[1], k, (rounds[0][0] - 1) / k)
        requirement += f", α = {alpha:.2f}" if alpha is not None else ""
    return Theory(True if agrees else None, f"{text}; {requirement}" if agrees else requirement)


def _implied(claim: Claim, family: Sequence[Claim]) -> tuple[Range | None, bool | None, str]:
    """(the implied speedup, whether the source's other figures agree or None without any, both in words)."""
    assert claim.interval is not None
    same = [other for other in family if _same(claim, other) and other.interval and other.batch == claim.batch]
    ratio, words = claim.interval, ""
    if claim.metric == "tokens_per_s":
        bases = [
            row
            for row in family
            if row.base_method == "autoregressive" and row.metric == "tokens_per_s" and _same_machine(claim, row)
        ]
        if not bases or bases[0].interval is None:
            return None, None, ""
        base = bases[0].interval[0]
        ratio, words = (
            (claim.interval[0] / base, claim.interval[1] / base),
            f"{claim.interval[0]:g} / {base:g} tokens/s",
        )
        others = [other for other in same if other.metric == "speedup"]
    elif claim.metric == "ms_per_token":
        if claim.baseline is None:
            return None, None, ""
        base = claim.baseline
        ratio, words = (base / claim.interval[1], base / claim.interval[0]), f"{base:g} / {claim.interval[0]:g} ms"
        others = [other for other in same if other.metric == "speedup"]
    else:
        others = [other for other in same if other.metric in TIMED and other.metric != "speedup"]
        others_ratio = [
            (other, _implied(other, [row for row in family if row.metric != "speedup"])) for other in others
        ]
        for other, (stated_ratio, _, text) in others_ratio:
            if stated_ratio is not None:
                difference = abs(stated_ratio[0] / ratio[0] - 1)
                return (
                    ratio,
                    difference <= OWN,
                    f"{text} ({other.id}), {difference:.1%} from the {ratio[0]:.2f}x stated",
                )
        return ratio, None, ""
    for other in others:
        stated = (other.interval or ratio)[0]
        difference = abs(ratio[0] / stated - 1)
        return (
            ratio,
            difference <= OWN,
            f"{words} is {ratio[0]:.2f}x, {difference:.1%} from the {stated:.2f}x stated ({other.id})",
        )
    return ratio, None, f"{words} is {ratio[0]:.2f}x"


def _lengths(claim: Claim, family: Iterable[Claim]) -> tuple[Range | None, str]:
    """(tokens per target pass, in words): the source's τ of the same experiment, or its α by eq. (1)."""
    same = [other for other in family if other.interval and other.metric not in TIMED and _same(claim, other)]
    for other in same:
        if other.metric == "acceptance_length":
            assert other.interval is not None
            return other.interval, f"τ = {_span(other.interval)} ({other.id})"
    for other in same:
        if other.metric.startswith("acceptance_rate") and claim.ks and _core(claim) == "draft_model":
            assert other.interval is not None
            found = [expected_tokens(alpha, k) for alpha in other.interval for k in claim.ks]
            lengths = min(found), max(found)
            return (
                lengths,
                f"α = {_span(other.interval)} ({other.id}) and k = {_ks(claim.ks)} give {_span(lengths)} tokens a pass "
                "(eq. 1)",
            )
    parts = [
        other
        for other in family
        if other.metric == "acceptance_length" and other.interval and _same(claim, other, task=False)
    ]
    if claim.aggregate and parts:
        ends = [end for other in parts for end in other.interval or ()]
        return (
            min(ends),
            max(ends),
        ), f"τ = {_span((min(ends), max(ends)))} over the tasks ({parts[0].id} to {parts[-1].id})"
    return None, ""


def _same(one: Claim, other: Claim, *, task: bool = True) -> bool:
    """Whether two claims of one source describe the same experiment; what is omitted agrees with anything."""
    timed = one.metric in TIMED and other.metric in TIMED
    drafts = not one.drafts or not other.drafts or bool(set(one.drafts) & set(other.drafts))
    ks = one.ks is None or other.ks is None or bool(set(one.ks) & set(other.ks))
    fields = ["temperature", *(["task"] if task else []), *(["hardware", "precision"] if timed else [])]
    agree = all(
        not getattr(one, name) or not getattr(other, name) or getattr(one, name) == getattr(other, name)
        for name in fields
    )
    return one.method == other.method and drafts and ks and agree


def _same_machine(one: Claim, other: Claim) -> bool:
    return all(
        not getattr(one, name) or getattr(one, name) == getattr(other, name)
        for name in ("hardware", "precision", "batch")
    )


def _core(claim: Claim) -> str:
    """The method that decides the costs: of `a + b` it is b, the more expensive part."""
    return claim.base_method.split(" + ")[-1]


def _precision(claim: Claim) -> str:
    return claim.precision.lower() if claim.precision.lower() in BYTES else "fp16"


def _span(ends: Range) -> str:
    low, high = f"{ends[0]:.2f}", f"{ends[1]:.2f}"
    return low if low == high else f"{low}–{high}"


def _ks(ks: Iterable[int]) -> str:
    values = list(ks)
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
