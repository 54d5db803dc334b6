"""Suffix decoding: the tree's counts against counting by hand, and drafts of small texts."""

from __future__ import annotations

import random

import pytest

from specrig.decoding.drafters.suffix import Node, SuffixTree


def grown(text: list[int], depth: int = 24) -> SuffixTree:
    tree = SuffixTree(depth)
    for end in range(len(text) + 1):
        tree.extend(text[:end])
    return tree


def counts(tree: SuffixTree, node: Node, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
    found = {path: node.count} if path else {}
    for token, child in (node.children or {}).items():
        found |= counts(tree, child, (*path, token))
    return found


@pytest.mark.parametrize("depth", [2, 3, 5, 24])
@pytest.mark.parametrize("vocabulary", [1, 2, 4])
def test_counts_are_those_of_every_substring(vocabulary: int, depth: int) -> None:
    generator = random.Random(vocabulary)
    text = [generator.randrange(vocabulary) for _ in range(60)]
    tree = grown(text, depth)
    substrings = [
        tuple(text[start : start + size]) for size in range(1, depth + 1) for start in range(len(text) - size + 1)
    ]
    spelled = counts(tree, tree.root)
    for path, count in spelled.items():
        assert count == substrings.count(path)
    # What is not spelled out occurs once, below a substring that does.
    assert all(path in spelled or substrings.count(path) == 1 for path in set(substrings))
    lengths = [size for size in range(1, depth) if substrings.count(tuple(text[-size:])) > 1]
    assert [node.count for node in tree.matches] == [substrings.count(tuple(text[-size:])) for size in lengths]


def test_drafts_by_hand() -> None:
    tree = grown([1, 2, 3, 1, 2, 4, 1, 2])
    # 3 and 4 are as frequent: the later one, two tokens
    assert tree.best(1.0, 8, 0.1, branch=False) == ([0.5, 0.5], [4, 1], [-1, 0])
    assert tree.best(2.0, 8, 0.1, branch=False)[1:] == ([4, 1, 2], [-1, 0, 1])  # the text ends there
    assert tree.best(2.0, 2, 0.1, branch=False)[1:] == ([4, 1], [-1, 0])
    assert tree.best(0.5, 8, 0.1, branch=False)[1:] == ([4], [-1])
    assert tree.best(2.0, 8, 0.6, branch=False)[1:] == ([], [])  # one half is below the least probability
    _, tokens, parents = tree.best(2.0, 8, 0.1, branch=True)
    assert sorted(zip(tokens, parents, strict=True)) == [(1, 0), (2, 1), (3, -1), (4, -1)]
    assert grown([1, 2, 3]).best(1.0, 8, 0.1, branch=False)[1:] == ([], [])


def test_frequent_beats_recent_and_long_beats_short() -> None:
    assert grown([1, 5, 1, 5, 1, 6, 1]).best(1.0, 4, 0.1, branch=False)[1] == [5]
    assert grown([9, 1, 7, 7, 1, 5, 1, 5, 9, 1]).best(1.0, 4, 0.1, branch=False)[1] == [7, 7]


def test_a_loop_is_drafted_as_long_as_it_matches() -> None:
    assert grown([3, 4] * 20).best(1.0, 8, 0.1, branch=False)[1] == [3, 4] * 4
