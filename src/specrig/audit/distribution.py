"""Are samples drawn from the target's distribution? The exact probabilities, and tests of sampled tokens against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from specrig.runtime.model import CachedModel

BATCH = 1024
"""Continuations of a pass."""
MINIMUM_EXPECTED = 25.0
"""What is expected more rarely is counted together: below, a statistic's law is not close enough to chi-squared in its
far tail (`benchmarks/false_alarms.py` measures it)."""


@dataclass(frozen=True, slots=True)
class ChiSquared:
    """A test whose statistic, for a correct sampler, is chi-squared with so many degrees of freedom. `about`: what it
    looks at.
    """

    about: str
    statistic: float
    degrees: int
    samples: int

    @property
    def p_value(self) -> float:
        """Probability that a correct sampler deviates as far or farther; 1 where there was nothing to test."""
        if np.isinf(self.statistic):
            return 0.0
        return float(chi2.sf(self.statistic, self.degrees)) if self.degrees else 1.0

    def power(self, distance: float, level: float) -> float:
        """Least probability that the test, at this level, fails a sampler that is `distance` off in total variation.

        The distance is that of the groups it counts: a bias that goes another way after each longer history cancels
        there. The chi-squared divergence is at least 4 d² for a total variation of d (Cauchy-Schwarz), more on rare
        tokens, so the statistic's noncentrality is at least 4 d² times the samples.
        """
        return float(ncx2.sf(chi2.isf(level, self.degrees), self.degrees, max(4 * distance**2 * self.samples, 1e-12)))

    def detectable(self, level: float, power: float) -> float:
        """Total variation that is seen with this probability at least; 1 where no distance is."""
        if not self.degrees or self.power(1.0, level) < power:
            return 1.0
        found: float = brentq(lambda distance: self.power(distance, level) - power, 0.0, 1.0)
        return found


@torch.inference_mode()
def exact_distribution(
    target: CachedModel, prompt: Sequence[int], length: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of `length` tokens: V^length entries, exact up to float32.

    A pass over all V^(length-1) prefixes gives every conditional distribution.
    """
    V = target.vocab_size
    prefixes = list(product(range(V), repeat=length - 1))
    conditional = conditionals(target, prompt, [(*prefix, 0) for prefix in prefixes], temperature)  # [P, length, V]
    result = {}
    for row, prefix in enumerate(prefixes):
        before = float(np.prod([conditional[row, position, token] for position, token in enumerate(prefix)]))
        for token in range(V):
            result[(*prefix, token)] = before * float(conditional[row, length - 1, token])
    return result


@torch.inference_mode()
def conditionals(
    target: CachedModel,
    prompt: Sequence[int],
    continuations: Sequence[Sequence[int]],
    temperature: float,
) -> NDArray[np.float64]:
    """`[n, length, V]`: the target's distribution of each token of n continuations, given those before it."""
    found = []
    for start in range(0, len(continuations), BATCH):
        rows = [[*prompt, *continuation[:-1]] for continuation in continuations[start : start + BATCH]]
        target.start(len(rows), len(rows[0]))
        logits, _ = target.forward(torch.tensor(rows, device=target.device))
        found.append(torch.softmax(logits[:, len(prompt) - 1 :].double() / temperature, -1).cpu().numpy())
    return np.concatenate(found)


def g_test(samples: Iterable[Sequence[int]], expected: Mapping[tuple[int, ...], float]) -> ChiSquared:
    """G-test (likelihood ratio) of whole continuations against `expected` probabilities; rare ones count together."""
    counts = Counter(tuple(sample) for sample in samples)
    total = sum(counts.values())
    outcomes = sorted(expected, key=expected.__getitem__, reverse=True)
    probabilities = np.array([expected[outcome] for outcome in outcomes])
    observed = np.array([counts.get(outcome, 0) for outcome in outcomes], dtype=float)
    impossible = total - observed.sum() + observed[probabilities <= 0].sum()
    large = probabilities * total >= MINIMUM_EXPECTED
    mean = np.append(probabilities[large], probabilities[~large].sum()) * total
    observed = np.append(observed[large], observed[~large].sum())
    if large.any() and mean[-1] < MINIMUM_EXPECTED:  # too rare even together: with the least frequent of the others
        mean, observed = np.append(mean[:-2], mean[-2:].sum()), np.append(observed[:-2], observed[-2:].sum())
    present = observed > 0
    statistic = 2.0 * float((observed[present] * np.log(observed[present] / mean[present])).sum())
    about = f"the first {len(outcomes[0])} tokens together"
    return ChiSquared(about, float("inf") if impossible else statistic, len(mean) - 1, total)


def next_token_test(
    about: str, contexts: NDArray[np.int64], tokens: NDArray[np.int64], conditional: NDArray[np.float64]
) -> ChiSquared:
    """Score test of n sampled tokens against their `conditional` probabilities `[n, V]`, apart by `contexts` `[n]`.

    Within a context the counts of the tokens have the mean Σ p and the covariance Σ (diag p - p pᵀ), sums over the
    samples, each with the p of its own history: a flaw shows at the token where it acts. Tokens whose count has a
    variance below `MINIMUM_EXPECTED` are counted together.
    """
    statistic, degrees, V = 0.0, 0, conditional.shape[1]
    if (tokens >= V).any() or (conditional[np.arange(len(tokens)), tokens] <= 0).any():
        return ChiSquared(about, float("inf"), 1, len(tokens))
    order = np.argsort(contexts, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(contexts[order])) + 1):
        p = conditional[rows]
        mean = p.sum(0)
        covariance = np.diag(mean) - p.T @ p
        groups = _groups(covariance)
        if len(groups) < 2:
            continue
        member = np.zeros((len(groups) - 1, V))  # the last group's count follows from the others'
        for number, group in enumerate(groups[:-1]):
            member[number, group] = 1
        excess = member @ (np.bincount(tokens[rows], minlength=V) - mean)
        statistic += float(excess @ np.linalg.solve(member @ covariance @ member.T, excess))
        degrees += len(groups) - 1
    return ChiSquared(about, statistic, degrees, len(tokens))


def rank_test(about: str, tokens: NDArray[np.int64], conditional: NDArray[np.float64]) -> ChiSquared:
    """`next_token_test` of few tokens `[n]`: of each token's rank among the V by probability, in one context."""
    ranked = np.argsort(-conditional, axis=1, kind="stable")
    ranks = np.where(tokens < conditional.shape[1], (ranked == tokens[:, np.newaxis]).argmax(1), conditional.shape[1])
    return next_token_test(about, np.zeros_like(tokens), ranks, np.take_along_axis(conditional, ranked, 1))


def _groups(covariance: NDArray[np.float64]) -> list[list[int]]:
    """Tokens that are counted by themselves, and the others together, or with the smallest where they are too few."""
    variance = covariance.diagonal()
    groups = [[int(token)] for token in np.flatnonzero(variance >= MINIMUM_EXPECTED)]
    rare = [int(token) for token in np.flatnonzero(variance < MINIMUM_EXPECTED)]
    if rare and covariance[np.ix_(rare, rare)].sum() >= MINIMUM_EXPECTED:
        groups.append(rare)
    elif rare and groups:
        min(groups, key=lambda group: variance[group[0]]).extend(rare)
    return groups
