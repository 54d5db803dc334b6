"""The EAGLE head: its entries align, its cache changes nothing, its checkpoint is vLLM's, its tree is reranked right,
it learns.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters.eagle2 import Eagle2, rerank
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context
from specrig.heads.eagle.module import EagleHead, head_config, load, random_tensors, save
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D = 23, 16


@pytest.fixture
def target():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.4, tie_word_embeddings=True,
    )  # fmt: skip
    return cached_model(LlamaForCausalLM(config).eval())


@pytest.fixture
def head(target) -> EagleHead:
    config = head_config(target.config)
    return EagleHead(config, random_tensors(config, 3, 0.3), target)


def by_hand(head: EagleHead, tensors: dict[str, Tensor], tokens: Tensor, features: Tensor) -> Tensor:
    """Predicted features of entries (token t + 1, feature t), written out: `[n]`, `[n, D]` -> `[n, D]`."""
    prefix, n, d = "layers.0.", len(tokens), head.head_width
    x = torch.cat((head.target.embedding[tokens], features), -1) @ tensors["fc.weight"].T

    def heads(name: str, count: int) -> Tensor:
        return (x @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T).view(n, count, d)

    cos, sin = head.rotary(x.unsqueeze(0), torch.arange(n).unsqueeze(0))

    def turned(y: Tensor) -> Tensor:
        a, b = y.chunk(2, -1)
        return y * cos[0].unsqueeze(1) + torch.cat((-b, a), -1) * sin[0].unsqueeze(1)

    q, k, v = turned(heads("q", 4)), turned(heads("k", 2)), heads("v", 2)
    k, v = (part.repeat_interleave(2, 1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / d**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    x = x + torch.einsum("hij,jhd->ihd", scores, v).reshape(n, -1) @ tensors[f"{prefix}self_attn.o_proj.weight"].T
    normed = F.rms_norm(x, (D,), tensors[f"{prefix}post_attention_layernorm.weight"], head.eps)
    gate, up = (normed @ tensors[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (F.silu(gate) * up) @ tensors[f"{prefix}mlp.down_proj.weight"].T


def context(*rows: list[int]) -> Context:
    return Context([list(row) for row in rows], [False] * len(rows), Sampler(0.0, range(len(rows))), [4] * len(rows))


def test_an_entry_is_the_feature_of_t_with_the_token_after_it(target, head: EagleHead) -> None:
    tensors = random_tensors(head_config(target.config), 3, 0.3)
    row = [5, 9, 2, 11, 7]  # four of the prompt and the first one generated
    target.start(1, 64)
    _, hidden = target.forward(torch.tensor([row[:-1]]))
    head.begin([row], hidden)
    logits, feature = head.advance([row])
    expected = by_hand(head, tensors, torch.tensor(row[1:]), hidden[0])
    torch.testing.assert_close(feature[0], expected[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[0], expected[-1] @ target.embedding.T, atol=1e-4, rtol=1e-4)
    # Drafted tokens go on with the predicted features.
    _, further = head.step(torch.tensor([3]), feature)
    longer = by_hand(head, tensors, torch.tensor([*row[1:], 3]), torch.cat((hidden[0], expected[-1:])))
    torch.testing.assert_close(further[0], longer[-1], atol=1e-4, rtol=1e-4)


def test_after_a_round_the_cache_is_as_if_nothing_had_been_drafted(target, head: EagleHead) -> None:
    first, later = [5, 9, 2, 11, 7], [5, 9, 2, 11, 7, 3, 8, 1]
    target.start(1, 64)
    _, hidden = target.forward(torch.tensor([later[:-1]]))
    head.begin([first], hidden[:, :4])
    _, feature = head.advance([first])
    head.step(torch.tensor([3]), feature)
    # Tokens 3 and 8 were accepted (nodes 0 and 2 of a tree), 1 is the target's own.
    nodes = torch.stack((hidden[0, 4], hidden[0, 5], torch.full((D,), 9.0), hidden[0, 6])).unsqueeze(0)
    head.accept(nodes, [[0, 2]])
    found = head.advance([later])
    head.begin([later], hidden)
    for one, two in zip(found, head.advance([later]), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_a_branch_sees_its_ancestors_only(target, head: EagleHead) -> None:
    rows = [5, 9, 2, 11], [8, 3]  # ragged: the second row's entries start earlier
    target.start(2, 64)
    _, hidden = target.forward(torch.tensor([[5, 9, 2], [8, 0, 0]]))
    head.begin(rows, hidden)
    _, feature = head.advance(rows)
    level = torch.tensor([[4, 6], [1, 2]])
    _, predicted = head.branch(level, feature.unsqueeze(1).expand(-1, 2, -1))
    above = torch.tensor([[1, 0], [1, 1]])
    below = torch.tensor([[7, 10], [12, 13]])
    deeper = predicted.gather(1, above.unsqueeze(-1).expand(-1, -1, D))
    logits, _ = head.branch(below, deeper, above)
    target.start(1, 64)
    for row, (tokens, parents) in enumerate(zip(below.tolist(), above.tolist(), strict=True)):
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            head.begin([rows[row]], hidden[row : row + 1, : len(rows[row]) - 1])
            _, alone = head.advance([rows[row]])
            _, alone = head.step(level[row, parent : parent + 1], alone)
            chain, _ = head.step(torch.tensor([token]), alone)
            torch.testing.assert_close(logits[row, node], chain[0], atol=1e-4, rtol=1e-4)


def test_tensors_that_do_not_belong_are_named(target) -> None:
    config = head_config(target.config)
    tensors = random_tensors(config, 1)
    with pytest.raises(DecodingError, match=r"fc\.weight is missing; lm_heads\.weight does not belong there"):
        EagleHead(config, {"lm_heads.weight": tensors.pop("fc.weight"), **tensors}, target)


def test_a_head_as_older_ones_were_published(target, tmp_path: Path) -> None:
    config = head_config(target.config)
    save(tmp_path, config, random_tensors(config, 1))
    new = load(tmp_path, target)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert load(tmp_path, target).fc.weight.equal(new.fc.weight)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(DecodingError, match="no EAGLE head there"):
        load(tmp_path, target)


def test_rerank_takes_the_best_nodes_as_a_tree() -> None:
    #         a    b    aa   ab    ba   bb
    values = [0.6, 0.3, 0.5, 0.05, 0.2, 0.01]
    parents = [-1, -1, 0, 0, 1, 1]

    def chosen(values: list[float], nodes: int) -> list[list[list[int]]]:
        return [found.tolist() for found in rerank(torch.tensor([values]).log(), torch.tensor([parents]), nodes)]

    assert chosen(values, 3) == [[[0, 1, 2]], [[-1, -1, 0]]]
    assert chosen(values, 4) == [[[0, 1, 2, 4]], [[-1, -1, 0, 1]]]
    # A child as likely as its parent (probability 1) never comes before it.
    assert chosen([1.0] * 6, 2) == [[[0, 1]], [[-1, -1]]]
    assert chosen(values, 60) == [[[0, 1, 2, 3, 4, 5]], [parents]]


def pair_of(target: Any, folder: Path) -> Any:
    """Resources with a target and one head."""
    return SimpleNamespace(target=target, head=lambda _: folder)


def test_rows_have_their_own_trees_of_likely_paths(target, tmp_path: Path) -> None:
    config = head_config(target.config)
    save(tmp_path, config, random_tensors(config, 3, 0.3))
    drafter = Eagle2(Eagle2.Options(nodes=12, top_k=4), pair_of(target, tmp_path))
    rows = context([5, 9, 2, 11], [8, 3])
    target.start(2, 64)
    _, hidden = target.forward(torch.tensor([[5, 9, 2], [8, 0, 0]]))
    drafter.begin(rows, hidden)
    draft = drafter.propose(rows, 3)
    assert draft.tokens.shape == (2, 12) and draft.probs is None
    assert isinstance(draft.parents, Tensor) and not draft.parents[0].equal(draft.parents[1])
    target.start(1, 64)
    for row, parents in enumerate(draft.parents.tolist()):
        assert all(parent < node for node, parent in enumerate(parents))
        siblings = [(parent, token) for parent, token in zip(parents, draft.tokens[row].tolist(), strict=True)]
        assert len(set(siblings)) == 12  # no sibling twice
        # The same values as chains give: no path outside is more likely than the least likely inside.
        inside = [path(node, parents, draft.tokens[row].tolist()) for node in range(12)]
        worth = every_path(drafter.head, rows.tokens[row], hidden[row : row + 1], 4, 3)
        least = min(worth[nodes] for nodes in inside)
        assert sorted(worth, key=worth.__getitem__, reverse=True)[0] in inside
        assert sum(value > least + 1e-4 for nodes, value in worth.items() if nodes not in inside) == 0


def path(node: int, parents: list[int], tokens: list[int]) -> tuple[int, ...]:
    return (*(path(parents[node], parents, tokens) if parents[node] >= 0 else ()), tokens[node])


def every_path(head: EagleHead, row: list[int], hidden: Tensor, width: int, depth: int) -> dict[tuple[int, ...], float]:
    """Values of all paths that expanding the `width` best of each level offers, computed with chains."""
    worth: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        found: dict[tuple[int, ...], float] = {}
        for nodes in level:
            head.begin([row], hidden[:, : len(row) - 1])
            logits, feature = head.advance([row])
            for token in nodes:
                logits, feature = head.step(torch.tensor([token]), feature)
            best = logits[0].log_softmax(-1).topk(width)
            found |= {
                (*nodes, token): worth.get(nodes, 0.0) + value
                for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            }
        worth |= found
        level = sorted(found, key=found.__getitem__, reverse=True)[:width]
    return worth
