"""The blended tree: its chances by hand, and drafts that one source alone has not seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specrig.decoding.drafters.suffix import SuffixTree
from specrig.decoding.drafters.suffix_blend import SuffixBlend, TreePosition, followers
from specrig.heads.likeliest import likeliest
from specrig.heads.rest.module import Datastore, datastore

A, B, X, Y = 1, 2, 7, 8


class Blend(SuffixBlend):
    """One whose datastore is given."""

    def __init__(self, store: Datastore, **options: Any) -> None:
        self.options, self.store = SuffixBlend.Options.model_validate(options), store


def grown(text: list[int]) -> SuffixTree:
    tree = SuffixTree(24)
    tree.extend(text)
    return tree


def drafted(
    text: list[int], texts: list[list[int]], nodes: int = 8, least: float = 0.1, **options: Any
) -> dict[tuple[int, ...], int]:
    """Path of every node -> its place in the tree."""
    tree, store = grown(text), datastore(texts, 100)
    start = Blend(store, **options).start(tree)
    _, tokens, parents = likeliest(start, lambda place: followers(place, tree, store, least), nodes, 8, least)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return {path: place for place, path in enumerate(paths)}


def test_chances_are_those_of_the_example() -> None:
    text = [A, B, X, A, B, X, A, B]
    store = datastore([[A, B, token] for token in (X, X, X, Y, Y, Y, Y, Y, Y)], 100)
    tree = grown(text)
    place = Blend(store, longest=2, lengths=1).start(tree)
    # The longest match in the sequence is `A B X A B` of 5 tokens, seen once; the example's is the one of two tokens.
    assert len(place.own) == 1 and place.own[0][0] == pytest.approx(5 / 6)
    place = TreePosition(((2 / 3, tree.matches[1]),), place.stored)
    chances = {token: chance for chance, _, token, _ in followers(place, tree, store, 0)}
    assert chances == pytest.approx({X: 1 - (1 - 2 / 3 * 2 / 2.5) * (1 - 2 / 3 * 3 / 9.5), Y: 2 / 3 * 6 / 9.5})


def test_each_source_drafts_what_the_other_has_not_seen() -> None:
    own, stored = [A, B, X, 20, 21, A, B], [[A, B, Y, 30], [A, B, Y, 30]]
    both = drafted(own, stored)
    assert (X,) in both and (X, 20) in both and (Y,) in both and (Y, 30) in both
    assert (Y,) not in drafted(own, [[50, 51]]) and (X,) not in drafted([60, A, B], stored)
    assert drafted([60], [[50, 51]]) == {}


def test_a_path_that_both_know_is_one_and_comes_first() -> None:
    found = drafted([A, B, X, 20, A, B], [[A, B, X, 20], [A, B, Y, 30]])
    assert found[(X,)] == 0 and found[(X, 20)] < found[(Y,)]
    assert len(set(found)) == len(found)


def test_shorter_matches_add_what_followed_elsewhere() -> None:
    text = [5, A, B, X, 6, B, Y, 5, A, B]
    assert (Y,) not in drafted(text, [[50, 51]], lengths=1)
    assert (Y,) in drafted(text, [[50, 51]], lengths=2)


def test_nodes_and_the_least_chance_bound_the_tree() -> None:
    text = [A, B, X, 20, 21, 22, A, B]
    assert len(drafted(text, [[A, B, Y, 30]], nodes=3)) == 3
    assert drafted(text, [[A, B, Y, 30]], least=0.9) == {}


def test_what_is_too_unlikely_is_left_out_of_the_search_alone() -> None:
    """The tree is that of a search through every token that ever followed."""
    numbers = random.Random(0)
    texts = [[numbers.choice([A, B, X, Y, *range(30, 60)]) for _ in range(60)] for _ in range(20)]
    calls = {True: 0, False: 0}
    for _ in range(50):
        tree = grown([numbers.choice([A, B, X, Y, *range(30, 60)]) for _ in range(40)])
        store, least = datastore(texts, 100), numbers.choice([0.05, 0.1, 0.3])
        found = []
        for cut in calls:

            def children(place: TreePosition, bound: float = least * cut) -> list[Any]:
                known = list(followers(place, tree, store, bound))  # noqa: B023
                calls[cut] += len(known)  # noqa: B023
                return known

            found.append(likeliest(Blend(store).start(tree), children, 8, 8, least))
        assert found[0] == found[1]
    assert calls[True] < 0.6 * calls[False]
