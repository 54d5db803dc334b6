"""Temperature above 0, exactly: what a method samples on the toy pair, against the target's known probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrig.audit.distribution import ChiSquared, conditionals, exact_distribution, g_test, next_token_test, rank_test
from specrig.audit.toy_pair import PROMPT, build, build_other
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Generation
from specrig.engines import registry
from specrig.engines.base import Engine, EngineError
from specrig.engines.native import Native
from specrig.runtime.model import CachedModel

LENGTH = 7
"""Tokens sampled: the target's first, a draft of four, the bonus token, and one of the next round."""
TOGETHER = 4
"""So many of them are tested together as well."""
ROWS = 256
"""Samples drawn at once: more do not fit a processor's cache and cost more each."""
OTHER = ("intersection", "strings")
"""Values of `vocabularies` for which a draft of another vocabulary is audited."""
SEEN, UNSEEN = 0.8, 0.05
"""`ExactTest.describe` names the bias that is seen with each of these probabilities."""


@dataclass(frozen=True, slots=True)
class ExactTest:
    """The tests of one sample. each: of each token given the one before. others: of all tokens given the one or two
    before, of the first few together, and of bonus tokens.
    """

    each: tuple[ChiSquared, ...]
    others: tuple[ChiSquared, ...]
    samples: int

    @property
    def parts(self) -> tuple[ChiSquared, ...]:
        return self.each + self.others

    @property
    def p_value(self) -> float:
        """The smallest p-value of the parts times their number (Bonferroni): valid however they depend on each other."""
        return min(1.0, self.worst.p_value * len(self.parts))

    @property
    def worst(self) -> ChiSquared:
        """The part that deviates most."""
        return min(self.parts, key=lambda part: part.p_value)

    def describe(self, level: float) -> str:
        """The finding in words, at a level of significance: a bias, or how large a bias would have been seen."""
        if self.p_value <= level:
            return f"not the target's distribution: {self.worst.about}"
        seen, unseen = (
            max(part.detectable(level / len(self.parts), power) for part in self.each) for power in (SEEN, UNSEEN)
        )
        return (
            f"within chance of the target's distribution; a bias of {seen:.3f} in total variation at one of the "
            f"tokens, the same whenever the same token comes before, would be seen in {100 * SEEN:.0f} % of such "
            f"audits, one of {unseen:.3f} in {100 * UNSEEN:.0f} %"
        )


def batch_rows(engine: type[Engine], cell: Cell) -> int:
    """Samples that the engine draws at once: one where it refuses batches of the method."""
    return ROWS if engine.refuses(cell.model_copy(update={"batch_size": ROWS})) is None else 1


def draw_samples(engine: Engine, cell: Cell, samples: int) -> list[Generation]:
    """`samples` continuations of the toy pair's prompt by `engine.generate`, seeds 0, 1, 2, … Raises EngineError where
    one is too short.
    """
    found: list[Generation] = []
    at_once = batch_rows(type(engine), cell)
    for start in range(0, samples, at_once):
        rows = min(at_once, samples - start)
        seeds = range(start, start + rows)
        found += engine.generate(cell, [list(PROMPT)] * rows, max_new_tokens=LENGTH, seeds=seeds)
    if short := sum(len(generation.tokens) < LENGTH for generation in found):
        raise EngineError(
            f"{engine.name} ended {short} of {samples} continuations before {LENGTH} tokens, without an end to stop at"
        )
    return found


def bonus_tokens(generations: Sequence[Generation]) -> NDArray[np.bool_]:
    """`[n, LENGTH]`: which tokens the target added behind a draft that was accepted to its end, as the rounds say.

    Acceptance to the end depends on earlier tokens only. So these tokens alone follow the target's distribution;
    corrections, which follow a rejection, do not.
    """
    found = np.zeros((len(generations), LENGTH), dtype=bool)
    for row, generation in zip(found, generations, strict=True):
        end = len(generation.tokens) - sum(entry.emitted for entry in generation.rounds)
        for entry in generation.rounds:
            end += entry.emitted
            if 0 < entry.depth == entry.accepted < entry.emitted and end <= LENGTH:
                row[end - 1] = True
    return found


def evaluate(target: CachedModel, generations: Sequence[Generation], temperature: float) -> ExactTest:
    """Test sampled continuations of the toy pair's prompt against the target's distribution."""
    tokens = np.array([generation.tokens[:LENGTH] for generation in generations])
    known = np.minimum(tokens, target.vocab_size - 1)  # a token that the target does not have is nobody's history
    probabilities = conditionals(target, PROMPT, known.tolist(), temperature)
    together = exact_distribution(target, PROMPT, TOGETHER, temperature)
    return run_tests(tokens, probabilities, together, bonus_tokens(generations))


def run_tests(
    tokens: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    together: Mapping[tuple[int, ...], float],
    added: NDArray[np.bool_],
) -> ExactTest:
    """The tests of n continuations `[n, L]`. probabilities: `[n, L, V]`, of each token given those before.

    together: the probabilities of the first tokens. added: `[n, L]`, True for bonus tokens.
    """
    n, _, V = probabilities.shape
    before = np.minimum(tokens[:, :-1], V - 1)
    each = [
        next_token_test(
            f"token {position + 1}, given the one before",
            before[:, position - 1],
            tokens[:, position],
            probabilities[:, position],
        )
        for position in range(1, tokens.shape[1])
    ]
    pairs, after = (before[:, :-1] * V + before[:, 1:]).ravel(), probabilities[:, 2:].reshape(-1, V)
    others = (
        next_token_test(
            "the tokens, given the one before",
            before.ravel(),
            tokens[:, 1:].ravel(),
            probabilities[:, 1:].reshape(-1, V),
        ),
        next_token_test("the tokens, given the two before", pairs, tokens[:, 2:].ravel(), after),
        g_test(tokens[:, : len(next(iter(together)))].tolist(), together),
        rank_test("bonus tokens", tokens[added], probabilities[added]),
    )
    return ExactTest(tuple(each), others, n)


def exact_test(
    engine_name: str,
    cell: Cell,
    folder: Path,
    samples: int,
    options: Mapping[str, dict[str, Any]] | None = None,
    device: str = "cpu",
) -> ExactTest:
    """Test `cell` (its method, k, temperature, options) on the toy pair kept in `folder`.

    options: the study's `engine_options`. An engine that runs the method one prompt at a time draws fewer samples.
    """
    if cell.options.get("vocabularies") in OTHER:
        pair = build_other(folder / "other")
    else:
        pair = build(folder, methods()[cell.method].needs)
    kind = registry()[engine_name]
    if batch_rows(kind, cell) == 1:
        samples = min(samples, kind.one_by_one_samples)
    own = {**(options or {}).get(engine_name, {}), **kind.audit_options}
    with kind(
        replace(pair, engine_options={**(options or {}), engine_name: own}), device=device, threads=None
    ) as engine:
        found = draw_samples(engine, cell, samples)
    return evaluate(Native(pair).target, found, cell.temperature)
