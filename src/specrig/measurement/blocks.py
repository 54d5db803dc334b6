"""Which cells of a job run in turn with one run of their baseline. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from specrig.cell import Cell
from specrig.measurement.freshness import baseline_of

MOST = 8
"""Cells of one block. The baseline's runs serve them all; but they are further apart in time, and a job that is killed
loses its block.
"""


def blocks(cells: Iterable[Cell], *, most: int = MOST) -> Iterator[list[Cell]]:
    """Yield the blocks of some cells, of one engine and pair, in the cells' order: cells with the same baseline and
    batch size, at most `most` of them, in parts of about the same size.
    """
    # Cells of different batch sizes group their prompts differently, even where they share a baseline that runs alone.
    same: dict[tuple[Cell, int], list[Cell]] = {}
    for cell in cells:
        same.setdefault((baseline_of(cell), cell.batch_size), []).append(cell)
    for members in same.values():
        parts = -(-len(members) // most)
        bounds = [len(members) * part // parts for part in range(parts + 1)]
        yield from (members[start:end] for start, end in pairwise(bounds))
