"""REST's datastore against counting by hand, what it refuses, and drafts of small texts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specrig.decoding.drafters.rest import Rest
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context
from specrig.heads.rest import module as rest
from specrig.heads.rest.module import Datastore, datastore, suffix_order
from specrig.runtime.types import DecodingError

V = 5


def texts(seed: int, count: int = 6, length: int = 40) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(V) for _ in range(length)] for _ in range(count)]


def occurrences(known: list[list[int]], run: list[int]) -> list[tuple[int, int]]:
    """(text, end) of every occurrence of a run."""
    return [
        (number, start + len(run))
        for number, text in enumerate(known)
        for start in range(len(text) - len(run) + 1)
        if text[start : start + len(run)] == run
    ]


@pytest.mark.parametrize("vocabulary", [1, 2, 300])
def test_suffixes_are_in_order(vocabulary: int) -> None:
    generator = random.Random(vocabulary)
    tokens = [generator.randrange(vocabulary) for _ in range(200)]
    found = suffix_order(np.array(tokens, np.int32), 200).tolist()
    assert found == sorted(range(200), key=lambda place: tokens[place:])
    assert suffix_order(np.array([], np.int32)).tolist() == []


def test_every_run_is_found_where_it_occurs_and_never_across_two_texts() -> None:
    known = texts(1)
    store = datastore(known, V)
    runs = [text[start : start + size] for text in known for start in (0, 7, 30) for size in (1, 2, 3, 9)]
    for run in [*runs, [0] * 12, [*known[0][-2:], *known[1][:2]]]:
        span = store.find(run)
        assert span.last - span.first == len(occurrences(known, run)) and span.length == len(run)
        if span.first == span.last:
            continue
        after = Counter(known[number][end] for number, end in occurrences(known, run) if end < len(known[number]))
        shares = {token: share for share, _, token, _ in store.followers(span)}
        assert shares == pytest.approx({token: count / len(occurrences(known, run)) for token, count in after.items()})
        for _, _, token, below in store.followers(span):
            assert below == store.find([*run, token])


def test_the_longest_suffix_that_occurs_is_taken() -> None:
    known = texts(2)
    store = datastore(known, V)
    generator = random.Random(3)
    for _ in range(100):
        text = [generator.randrange(V) for _ in range(20)]
        sizes = [size for size in range(1, 9) if occurrences(known, text[-size:])]
        span = store.longest_suffix(text, 8, 1)
        assert span is not None and span.length == max(sizes)
        cut = store.longest_suffix(text, 2, 1)
        assert cut is not None and cut.length == min(2, max(sizes))
        assert (store.longest_suffix(text, 8, max(sizes) + 1)) is None
    assert datastore([[1, 2]], V).longest_suffix([3, 4], 8, 1) is None


def resources_of(folder: Path, vocabulary: int = V) -> Any:
    target = SimpleNamespace(config=SimpleNamespace(vocab_size=vocabulary), vocab_size=vocabulary)
    return SimpleNamespace(target=target, head=lambda name: folder / name)


def test_drafts_by_hand(tmp_path: Path) -> None:
    rest.save(tmp_path / "rest", datastore([[1, 2, 3, 1, 2, 4, 1, 2, 4], [0, 1, 2]], V))
    drafter = Rest(Rest.Options(nodes=4, shortest=2), resources_of(tmp_path))
    context = Context(
        [[4, 1, 2], [0, 3], [1, 2], [3]], [False, False, True, False], Sampler(0.0, range(4)), [3, 3, 0, 3]
    )
    draft = drafter.propose(context, 3)
    # `4 1 2` occurred once, and 4 followed, where the text ends; `0 3` never did; the third row is over; one token is
    # too short.
    assert draft.lengths == [1, 0, 0, 0] and draft.tokens.tolist() == [[4], [0], [0], [0]]
    # Of four occurrences of `1 2` one ends a text, two go on with 4, one with 3.
    assert drafter.store.tree([1, 2], 16, 2, 4, 1) == ([4, 3], [-1, -1])
    # Of equally probable ones that of the lower continuation comes first, and what follows it: 3, then `1 2` behind it.
    assert drafter.store.tree([1, 2], 16, 2, 4, 3) == ([4, 3, 1, 2], [-1, -1, 1, 2])
    empty = Context([[0, 3]], [False], Sampler(0.0, [0]), [3])
    assert drafter.propose(empty, 3).tokens.shape == (1, 0)


def test_what_is_no_datastore_of_the_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DecodingError, match="no datastore of REST there"):
        rest.load(tmp_path, resources_of(tmp_path).target)
    rest.save(tmp_path / "rest", datastore([[1, 2]], V))
    with pytest.raises(DecodingError, match="of 5 tokens, the target has 7"):
        rest.load(tmp_path / "rest", resources_of(tmp_path, 7).target)
    rest.save(tmp_path / "rest", Datastore(np.zeros(3, np.int32), np.zeros(2, np.int32), V))
    with pytest.raises(DecodingError, match="tokens and order of one length"):
        rest.load(tmp_path / "rest", resources_of(tmp_path).target)
    (tmp_path / "rest" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DecodingError, match="no datastore of REST there"):
        rest.load(tmp_path / "rest", resources_of(tmp_path).target)
    with pytest.raises(ValueError, match="shortest 5 is above longest 4"):
        Rest.Options(longest=4, shortest=5)


def test_an_untrained_datastore_has_the_vocabulary_of_the_text_model(tmp_path: Path) -> None:
    """Gemma 3 and others keep it in a configuration of their own, inside the model's."""
    nested = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(vocab_size=V))
    rest.initialise(tmp_path, nested, seed=0)
    assert rest.load(tmp_path, resources_of(tmp_path).target).vocabulary == V


def test_padding_of_the_targets_vocabulary_is_never_drafted(tmp_path: Path) -> None:
    rest.save(tmp_path / "rest", datastore([[1, 4, 1, 3]], V))
    resources = resources_of(tmp_path)
    resources.target.vocab_size = 4
    drafter = Rest(Rest.Options(shortest=1), resources)
    draft = drafter.propose(Context([[0, 1]], [False], Sampler(0.0, [0]), [3]), 3)
    assert draft.tokens.tolist() == [[3]] and torch.equal(draft.tokens, torch.tensor([[3]]))
