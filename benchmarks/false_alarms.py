"""How often does the audit fail right samplers, and how often does it see a bias? Samples drawn by construction, tested
as a method's are.

    python benchmarks/false_alarms.py --audits 5000 --seed 1 --keep p_values    # about 8 minutes on one core
    python benchmarks/false_alarms.py --audits 0 --keep p_values                # only the tables of what is kept
    python benchmarks/false_alarms.py --audits 300 --bias 0.02 0.03 0.05        # how often biases of this total variation are seen

The first tokens behind the toy pair's prompt are drawn one by one from the target's own written-down probabilities,
with no loop, no draft and no verification, and go through the audit's tests. Whole studies are made of these audits and
of tests of uniform values, and judged as a study's rows are. docs/audit.md has the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from specrig.audit.distribution import conditionals, exact_distribution
from specrig.audit.exact import LENGTH, TOGETHER, ExactTest, run_tests
from specrig.audit.multiple_testing import FAMILY_WISE, holm_failures
from specrig.audit.positions import uniformity
from specrig.audit.toy_pair import PROMPT, VOCABULARY, build
from specrig.engines.native import Native

Floats = NDArray[np.float64]
LEVELS = (0.05, 0.01, 0.001)
STUDIES = {"a former study of a tiny pair": (16, 18, 576), "configs/smollm2.yaml": (19, 12, 768)}
"""Study, as it was when the tables were made -> its exact audits of lossless methods, its rows of per-position uniformity,
and the tokens of each such row.
"""
STRICTEST = FAMILY_WISE / sum(STUDIES["a former study of a tiny pair"][:2])
"""The level at which the smallest p-value of the first is judged."""


def tables(native: Native, length: int, temperature: float) -> list[Floats]:
    """Per place `[V^place, V]`: the distribution of the token there after each history, histories as numbers of base V."""
    histories = [(*history, 0) for history in product(range(VOCABULARY), repeat=length - 1)]
    every = conditionals(native.target, PROMPT, histories, temperature)
    return [np.ascontiguousarray(every[:: VOCABULARY ** (length - 1 - place), place]) for place in range(length)]


def biased(p: Floats, distance: float) -> Floats:
    """Distributions `[n, V]` that are `distance` off `p` in total variation, spread so that a chi-squared test sees it
    least.

    The tokens are parted into two sets as equally likely as can be, after each history in another way. One set gains
    `distance`, the other loses it, each token in proportion to its probability.
    """
    parts = np.array(list(product((False, True), repeat=p.shape[1])))[1:-1]  # [2^V - 2, V]
    chances = p @ parts.T
    nearest = np.abs(chances - 0.5).argmin(1)
    gains, chance = parts[nearest], chances[np.arange(len(p)), nearest, np.newaxis]
    assert (distance <= 1 - chance).all(), "one token is so likely that the others cannot lose so much"
    return np.where(gains, p * (1 + distance / chance), p * (1 - distance / (1 - chance)))


def drawn(
    of: list[Floats], samples: int, rng: np.random.Generator, bias: float = 0.0
) -> tuple[NDArray[np.int64], Floats]:
    """Samples `[n, length]` with the target's probabilities `[n, length, V]`, from which they were drawn but for a bias
    at the fourth token.
    """
    history = np.zeros(samples, dtype=np.int64)
    tokens, probabilities = np.empty((samples, len(of)), dtype=np.int64), np.empty((samples, len(of), VOCABULARY))
    for place, table in enumerate(of):
        p = probabilities[:, place] = table[history]
        p = biased(p, bias) if bias and place == TOGETHER - 1 else p
        token = (p.cumsum(1) < rng.random((samples, 1)) * p.sum(1, keepdims=True)).sum(1).clip(max=VOCABULARY - 1)
        tokens[:, place] = token
        history = history * VOCABULARY + token
    return tokens, probabilities


def audited(
    of: list[Floats],
    samples: int,
    rng: np.random.Generator,
    together: Mapping[tuple[int, ...], float],
    bias: float = 0.0,
) -> ExactTest:
    """One audit. Bonus tokens are last tokens but one, picked by chances that depend on the tokens before, as
    acceptance does.
    """
    tokens, probabilities = drawn(of, samples, rng, bias)
    own = np.take_along_axis(probabilities, tokens[:, :, None], 2)[:, :, 0]
    added = np.zeros(tokens.shape, dtype=bool)
    added[:, -2] = rng.random(samples) < np.minimum(1, 2 * own[:, 1:-2]).prod(1)
    return run_tests(tokens, probabilities, together, added)


def share(hits: NDArray[np.bool_]) -> str:
    """A share with its 95 % interval (Clopper and Pearson), as the tables write it."""
    found = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="exact")
    return f"{hits.mean():.5f} [{found.low:.5f}, {found.high:.5f}]"


def family_table(audits: Floats, rng: np.random.Generator) -> str:
    """Shares of studies with any failed row, in Markdown; each audit serves in one study only."""
    lines = [
        "| study | rows | simulated | " + " | ".join(f"{level:g}" for level in LEVELS) + " |",
        "|---|---|---|" + "---|" * len(LEVELS),
    ]
    for name, (exact, positions, tokens) in STUDIES.items():
        studies = audits[: len(audits) // exact * exact].reshape(-1, exact)
        if not len(studies):  # too few audits for one study
            continue
        uniform = np.array([[uniformity(rng.random(tokens)).p_value for _ in range(positions)] for _ in studies])
        rows = np.concatenate([studies, uniform], 1)
        failed = [np.array([holm_failures(row, level).any() for row in rows]) for level in LEVELS]
        lines.append(f"| `{name}` | {exact} + {positions} | {len(rows):,} | " + " | ".join(map(share, failed)) + " |")
    return "\n".join(lines)


def power_table(of: list[Floats], together: Mapping[tuple[int, ...], float], given: argparse.Namespace) -> str:
    """Shares of audits that see a bias at the default study's strictest level, in Markdown, beside what is computed as
    the least.
    """
    rng = np.random.default_rng(given.seed)
    lines = ["| total variation of the bias | computed: at least | simulated |", "|---|---|---|"]
    for bias in given.bias:
        found = [audited(of, given.samples, rng, together, bias) for _ in range(given.audits)]
        least = found[0].each[TOGETHER - 2].power(bias, STRICTEST / len(found[0].parts))
        seen = np.array([test.p_value <= STRICTEST for test in found])
        lines.append(f"| {bias:g} | {least:.3f} | {share(seen)} |")
    return "\n".join(lines)


def main() -> None:
    """Print tables of levels and rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=20_480, help="of each audit")
    parser.add_argument(
        "--tokens",
        type=int,
        default=LENGTH,
        help="of each sample; each more makes the table of histories 8 times as long",
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bias", type=float, nargs="*", help="total variations by which the fourth token's distributions are off"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder of p-values: this run's are added, the tables are of all that lie there"
    )
    given = parser.parse_args()
    if given.bias and not given.audits:
        parser.error("--bias needs --audits of at least 1")
    rows: list[list[float]] = []
    if given.audits:
        with TemporaryDirectory() as folder:
            native = Native(build(Path(folder)), threads=1)
            of = tables(native, given.tokens, given.temperature)
            together = exact_distribution(native.target, PROMPT, TOGETHER, given.temperature)
    if given.bias:
        print(power_table(of, together, given))
        return
    rng = np.random.default_rng(given.seed)
    for number in range(given.audits):
        test = audited(of, given.samples, rng, together)
        rows.append([test.p_value, *(part.p_value for part in test.parts)])
        if given.keep and (number % 500 == 499 or number + 1 == given.audits):
            given.keep.mkdir(parents=True, exist_ok=True)
            np.save(given.keep / f"seed-{given.seed}.npy", rows)
    p_values = (
        np.concatenate([np.load(file) for file in sorted(given.keep.glob("*.npy"))]) if given.keep else np.array(rows)
    )
    audits, parts = p_values[:, 0], p_values[:, 1:].ravel()
    print(
        f"{len(audits):,} audits of {given.samples:,} right samples, {p_values.shape[1] - 1} tests each: share that "
        "fails at a level"
    )
    print("| level | audits | single tests |\n|---|---|---|")
    for level in (*LEVELS, STRICTEST):
        print(f"| {level:.2g} | {share(audits <= level)} | {(parts <= level).mean():.5f} |")
    print(f"\nshare of studies with any failed row, by the level of the family (in use: {FAMILY_WISE:g})")
    print(family_table(audits, rng))


if __name__ == "__main__":
    main()
