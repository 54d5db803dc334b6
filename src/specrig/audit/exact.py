"""Temperature above 0, exactly: a method's samples on the laboratory pair against the written-down distribution."""

from __future__ import annotations

from pathlib import Path

from specrig.audit.distribution import GTest, exact_distribution, g_test
from specrig.audit.laboratory import PROMPT, build
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry
from specrig.engines.base import PairFiles

LENGTH = 3
"""Tokens of the tested prefix: long enough for an acceptance, a rejection with its correction, and a bonus token."""
ROWS = 1024


def sample(engine_name: str, cell: Cell, pair: PairFiles, samples: int) -> list[list[int]]:
    """`samples` continuations of the laboratory prompt through the engine's own front door, seeds 0, 1, 2, …"""
    found: list[list[int]] = []
    with registry()[engine_name](pair, device="cpu", threads=None) as engine:
        for start in range(0, samples, ROWS):
            rows = min(ROWS, samples - start)
            seeds = range(start, start + rows)
            generations = engine.generate(cell, [list(PROMPT)] * rows, max_new_tokens=LENGTH, seeds=seeds)
            found += [generation.tokens[:LENGTH] for generation in generations]
    return found


def exact_test(engine_name: str, cell: Cell, folder: Path, samples: int) -> GTest:
    """G-test of `cell` (its method, k, temperature, options) on the laboratory pair kept in `folder`."""
    from specrig.engines.native import Native

    pair = build(folder, methods()[cell.method].needs)
    reference = Native(pair)
    expected = exact_distribution(reference.target, PROMPT, LENGTH, cell.temperature)
    return g_test(sample(engine_name, cell, pair, samples), expected)
