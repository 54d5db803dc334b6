"""How the cells of a job are laid out: their baselines, their blocks and their seeds. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain, pairwise

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods

MOST = 8
"""Cells of one block, which a job that is killed loses one repeat of. The baseline's runs serve them all."""
WARMUP_TOKENS = 16
"""Tokens of each generation that warms up."""


def blocks(cells: Iterable[Cell], *, most: int = MOST) -> Iterator[list[Cell]]:
    """Yield the blocks of some cells of one engine and pair, in the cells' order.

    A block holds cells with the same baseline and batch size, at most `most` of them, in parts of about equal size.
    """
    # Cells of different batch sizes group their prompts differently, even where they share a baseline that runs alone.
    same: dict[tuple[Cell, int], list[Cell]] = {}
    for cell in cells:
        same.setdefault((baseline_of(cell), cell.batch_size), []).append(cell)
    for members in same.values():
        parts = -(-len(members) // most)
        bounds = [len(members) * part // parts for part in range(parts + 1)]
        yield from (members[start:end] for start, end in pairwise(bounds))


def in_turn(cells: Iterable[Cell], *, paired: bool) -> Iterator[Iterator[list[Cell]]]:
    """Yield the blocks of cells of one engine and pair, those together that are measured together.

    paired: whether the engine alternates; then all are. Else it runs method by method, in as few blocks as it can: each
    one runs the baseline twice more.
    """
    if paired:
        yield blocks(cells)
        return
    by_method: dict[str, list[Cell]] = {}
    for cell in cells:
        by_method.setdefault(cell.method, []).append(cell)
    yield from (blocks(own, most=len(own)) for own in by_method.values())


def with_baselines(cells: Iterable[Cell], *, paired: bool) -> Iterator[list[Cell]]:
    """Yield the blocks of `in_turn`, each with the baseline as often as it runs."""
    for block in chain.from_iterable(in_turn(cells, paired=paired)):
        yield [*block, *[baseline_of(block[0])] * (1 if paired else 2)]


def baseline_of(cell: Cell) -> Cell:
    """The baseline's cell for `cell`: autoregressive, with the same engine, pair, task, temperature and batch size.

    The batch size is 1 instead for a method whose baseline runs its prompts one by one.
    """
    batch_size = 1 if methods()[cell.method].baseline_alone else cell.batch_size
    return cell.model_copy(
        update={"method": "autoregressive", "k": 0, "variant": "", "options": {}, "batch_size": batch_size}
    )


def is_lossless(cell: Cell) -> bool:
    """Whether the cell's acceptance rule keeps the target's distribution."""
    method = methods()[cell.method]
    return method.lossless(method.Options.model_validate(cell.options))


def seed_of(study_seed: int, task: str, prompt_id: str) -> int:
    """The seed of a prompt: the same for the baseline, for every method and in every repeat."""
    return int.from_bytes(sha256(f"{study_seed}/{task}/{prompt_id}".encode()).digest()[:4]) & 0x7FFFFFFF
