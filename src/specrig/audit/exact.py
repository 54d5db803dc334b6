"""Temperature above 0, exactly: a method's samples on the laboratory pair against the written-down distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specrig.audit.distribution import GTest, exact_distribution, g_test
from specrig.audit.laboratory import PROMPT, build
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry
from specrig.engines.base import Engine

LENGTH = 3
"""Tokens of the tested prefix: long enough for an acceptance, a rejection with its correction, and a bonus token."""
ROWS = 1024


def rows_of(engine: type[Engine], cell: Cell) -> int:
    """Samples that the engine draws at once: one where it refuses batches of the method."""
    return ROWS if engine.refuses(cell.model_copy(update={"batch_size": ROWS})) is None else 1


def sample(engine: Engine, cell: Cell, samples: int) -> list[list[int]]:
    """`samples` continuations of the laboratory prompt through the engine's own front door, seeds 0, 1, 2, …"""
    found: list[list[int]] = []
    at_once = rows_of(type(engine), cell)
    for start in range(0, samples, at_once):
        rows = min(at_once, samples - start)
        seeds = range(start, start + rows)
        generations = engine.generate(cell, [list(PROMPT)] * rows, max_new_tokens=LENGTH, seeds=seeds)
        found += [generation.tokens[:LENGTH] for generation in generations]
    return found


def exact_test(
    engine_name: str, cell: Cell, folder: Path, samples: int, options: Mapping[str, dict[str, Any]] | None = None
) -> GTest:
    """G-test of `cell` (its method, k, temperature, options) on the laboratory pair kept in `folder`.

    options: the study's `engine_options`. An engine that runs the method one prompt at a time draws its own, smaller number.
    """
    from specrig.engines.native import Native

    pair = build(folder, methods()[cell.method].needs)
    expected = exact_distribution(Native(pair).target, PROMPT, LENGTH, cell.temperature)
    kind = registry()[engine_name]
    if rows_of(kind, cell) == 1:
        samples = min(samples, kind.one_by_one_samples)
    with kind(replace(pair, engine_options=dict(options or {})), device="cpu", threads=None) as engine:
        return g_test(sample(engine, cell, samples), expected)
