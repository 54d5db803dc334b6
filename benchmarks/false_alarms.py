"""How often does the exact audit fail a right sampler? Samples that are right by construction, tested as a method's are.

    python benchmarks/false_alarms.py --audits 2000

The first tokens behind the laboratory prompt are drawn one by one from the target's own written-down probabilities, with no loop, no
draft and no verification, and go through the audit's tests. The rates are to be held against the levels; docs/audit.md has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from specrig.audit.distribution import conditionals, exact_distribution
from specrig.audit.exact import LENGTH, TOGETHER, ExactTest, tests
from specrig.audit.laboratory import PROMPT, VOCABULARY, build
from specrig.engines.native import Native

LEVELS = (0.05, 0.01, 0.001, 0.0001)


def tables(native: Native, length: int, temperature: float) -> list[NDArray[np.float64]]:
    """Per place `[V^place, V]`: the distribution of the token there after each history, histories as numbers of base V."""
    histories = [(*history, 0) for history in product(range(VOCABULARY), repeat=length - 1)]
    every = conditionals(native.target, PROMPT, histories, temperature)
    return [every[:: VOCABULARY ** (length - 1 - place), place] for place in range(length)]


def drawn(of: list[NDArray[np.float64]], samples: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Right samples `[n, length]` with the probabilities `[n, length, V]` that they were drawn from."""
    history = np.zeros(samples, dtype=np.int64)
    tokens, probabilities = [], []
    for table in of:
        p = table[history]
        token = (p.cumsum(1) < rng.random((samples, 1)) * p.sum(1, keepdims=True)).sum(1).clip(max=VOCABULARY - 1)
        tokens.append(token)
        probabilities.append(p)
        history = history * VOCABULARY + token
    return np.stack(tokens, 1), np.stack(probabilities, 1)


def audited(
    of: list[NDArray[np.float64]], samples: int, rng: np.random.Generator, together: Mapping[tuple[int, ...], float]
) -> ExactTest:
    """One audit. Bonus tokens are last tokens but one, picked by chances that depend on the tokens before, as acceptance does."""
    tokens, probabilities = drawn(of, samples, rng)
    own = np.take_along_axis(probabilities, tokens[:, :, None], 2)[:, :, 0]
    added = np.zeros(tokens.shape, dtype=bool)
    added[:, -2] = rng.random(samples) < np.minimum(1, 2 * own[:, 1:-2]).prod(1)
    return tests(tokens, probabilities, together, added)


def main() -> None:
    """Print a table of levels and rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=20_480, help="of each audit")
    parser.add_argument(
        "--tokens", type=int, default=LENGTH, help="of each sample; each more makes the table of histories 8 times as long"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        native = Native(build(Path(folder)), threads=1)
        of = tables(native, given.tokens, given.temperature)
        together = exact_distribution(native.target, PROMPT, TOGETHER, given.temperature)
    rng = np.random.default_rng(given.seed)
    found = [audited(of, given.samples, rng, together) for _ in range(given.audits)]
    audits = np.array([test.p_value for test in found])
    parts = np.array([[part.p_value for part in test.parts] for test in found])
    print(f"{given.audits} audits of {given.samples} right samples, {parts.shape[1]} tests each: share below the level")
    print("| level | audits | single tests |\n|---|---|---|")
    for level in LEVELS:
        print(f"| {level:g} | {(audits < level).mean():.5f} | {(parts < level).mean():.5f} |")


if __name__ == "__main__":
    main()
