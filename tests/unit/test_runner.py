"""How the runner lays out its experiment; that it runs is shown by the workflow tests."""

from __future__ import annotations

from specrig.cell import Cell
from specrig.measurement.freshness import baseline_of
from specrig.measurement.runner import _blocks, seed_of


def cell(method: str, k: int, batch_size: int, temperature: float = 0.0) -> Cell:
    return Cell(engine="native", pair="p", method=method, k=k, task="t", temperature=temperature, batch_size=batch_size)


def test_cells_share_a_block_only_where_they_share_prompts_batches_and_baseline() -> None:
    cells = [cell("draft_model", k, size, t) for k in (2, 4) for size in (1, 2) for t in (0.0, 1.0)]
    blocks = list(_blocks(cells))
    assert [len(block) for block in blocks] == [2, 2, 2, 2]
    assert all(
        {(each.batch_size, each.temperature) for each in block} == {(block[0].batch_size, block[0].temperature)}
        for block in blocks
    )


def test_batches_of_different_sizes_never_share_a_block_even_with_one_baseline() -> None:
    cells = [cell("naive_batching", 0, size) for size in (2, 4)]
    assert {baseline_of(each).batch_size for each in cells} == {1}
    assert [[each.batch_size for each in block] for block in _blocks(cells)] == [[2], [4]]


def test_a_prompts_seed_depends_on_the_prompt_not_on_the_method() -> None:
    assert seed_of(0, "t", "a", 0) == seed_of(0, "t", "a", 0)
    assert len({seed_of(0, "t", "a", 0), seed_of(0, "t", "b", 0), seed_of(0, "t", "a", 1), seed_of(1, "t", "a", 0)}) == 4
