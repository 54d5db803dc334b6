"""Hydra: the plan of its tree, its tree against one filled plainly, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters.hydra import Hydra
from specrig.decoding.sampling import Sampler
from specrig.decoding.static_tree import Plan, sparse_tree
from specrig.decoding.types import Context
from specrig.heads.hydra import module as hydra
from specrig.runtime.linear import SMALL, Linear
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D, K = 30, 32, 3
ACCURACY = [[0.5, 0.2, 0.1], [0.4, 0.3], [0.3, 0.1]]


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
        initializer_range=0.4, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def saved(folder: Path, drafted: list[int] | None = None) -> dict[str, Tensor]:
    config = hydra.heads_config(
        hidden=D, vocabulary=V, heads=K, drafted=drafted and len(drafted), measured={"accuracy": ACCURACY}
    )
    tensors = hydra.random_tensors(config, 3, 0.2)
    if drafted:
        tensors["token_map"] = torch.tensor(drafted)
    hydra.save(folder, config, tensors)
    return tensors


def drafter_of(target: Any, folder: Path, **options: Any) -> Hydra:
    resources: Any = SimpleNamespace(target=cached_model(target), head=lambda _: folder)
    drafter = Hydra(Hydra.Options.model_validate(options), resources)
    drafter.hidden = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    drafter.shape = drafter.options.shape(drafter.heads.accuracy, resources)
    return drafter


def test_a_plan_by_hand() -> None:
    plan = Plan.of([(0,), (1,), (2,), (0, 0), (0, 2), (2, 1), (2, 1, 0)], 9)
    assert plan.parents == [-1, -1, -1, 0, 0, 2, 5]
    first, second, third = plan.levels
    assert (first.open, first.width, first.slots, first.draws) == (1, 3, (0, 1, 2), (0, 1, 2))
    assert (first.opened, first.origins) == ((0, 2), (0, 0))
    # Two of the first level's nodes have children, three choices each; the second's only child has rank 1, and is born
    # first.
    assert (second.open, second.width, second.slots, second.draws) == (2, 3, (0, 2, 4), (0, 1, 3))
    assert (second.opened, second.origins) == ((2,), (1,))
    assert (third.open, third.width, third.slots, third.opened) == (1, 1, (0,), ())
    assert plan.sources == (0, 1, 0, 2, 0, 0, 3)
    assert Plan.of([(0,), (4,), (0, 0)], 4).parents == [-1, 0]


@pytest.mark.parametrize("drafted", [None, [1, 4, 5, 9, 12, 20, 29]])
@pytest.mark.parametrize("options", [{"nodes": 9}, {"tree": (2, 1, 2)}, {"tree": (1,)}])
def test_the_tree_is_what_each_node_alone_would_be_given(
    target: Any, tmp_path: Path, options: dict[str, Any], drafted: list[int] | None
) -> None:
    """Node by node from the paper's formula: the state, then the tokens of the node's own path."""
    weights = saved(tmp_path, drafted)
    drafter = drafter_of(target, tmp_path, **options)
    rows = [[3, 8], [5, 2, 11]]
    draft = drafter.propose(Context(rows, [False] * 2, Sampler(0.0, range(2)), [K] * 2), K)
    embedding, lm_head = target.model.embed_tokens.weight, target.lm_head.weight
    known = torch.tensor(drafted or range(V))

    def choices(row: int, path: list[int]) -> list[int]:
        """The tokens that may follow the context's last token and this path, best first."""
        head = len(path)
        x = torch.cat((drafter.hidden[row], *(embedding[token] for token in (rows[row][-1], *path))))
        inner = F.silu(weights[f"heads.{head}.linear.weight"] @ x + weights[f"heads.{head}.linear.bias"])
        state = weights[f"heads.{head}.res_connection.weight"] @ x + inner
        return known[(lm_head[known] @ state).argsort(descending=True)].tolist()

    paths = sparse_tree(ACCURACY, 9, K) if "nodes" in options else drafter.options.paths(ACCURACY, K)
    for row in range(2):
        for node, ranks in enumerate(paths):
            path: list[int] = []
            for rank in ranks:
                path.append(choices(row, path)[rank])
            assert draft.tokens[row, node] == path[-1]


def test_drawn_children_come_with_the_distribution_of_their_own_path(target: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    drafter = drafter_of(target, tmp_path, nodes=9)
    context = Context([[3, 8], [5, 2, 11]], [False] * 2, Sampler(0.8, range(2)), [K, 1])
    draft = drafter.propose(context, K)
    [plan] = drafter.plans.values()
    assert draft.lengths == [9, plan.parents.count(-1)], "levels that a row draws no numbers for are not offered"
    assert draft.probs is not None and draft.probs.shape == (2, len(plan.sources), V)
    for row in range(2):
        for node, parent in enumerate(plan.parents if row == 0 else plan.parents[:1]):
            q, token = draft.probs[row, parent + 1], draft.tokens[row, node]
            assert q[token] > 0
            elder = [draft.tokens[row, other] for other in range(node) if plan.parents[other] == parent]
            assert token not in elder, "without replacement"
    opened = {parent for parent in plan.parents if parent >= 0}
    assert len({tuple(draft.probs[0, node + 1].tolist()) for node in opened}) == len(opened), "each has its own"


def test_what_does_not_fit_is_refused(target: Any, tmp_path: Path) -> None:
    model = cached_model(target)
    with pytest.raises(DecodingError, match="no Hydra heads there"):
        hydra.load(tmp_path, model)
    for sizes, message in (
        ({"hidden": D + 1, "vocabulary": V}, "hidden size of 33, the target's is 32"),
        ({"hidden": D, "vocabulary": V + 2}, "are for 32 tokens, the target has 30"),
    ):
        config = hydra.heads_config(heads=2, **sizes)
        hydra.save(tmp_path / "head", config, hydra.random_tensors(config, 0))
        with pytest.raises(DecodingError, match=message):
            hydra.load(tmp_path / "head", model)
    saved(tmp_path / "cut", [3, 5, V])
    with pytest.raises(DecodingError, match="token_map maps outside the 30 tokens or twice"):
        hydra.load(tmp_path / "cut", model)
    config = hydra.heads_config(hidden=D, vocabulary=V, heads=2)
    tensors = hydra.random_tensors(config, 0)
    config.num_heads = 3
    config.save_pretrained(tmp_path / "head")
    hydra.save(tmp_path / "other", hydra.heads_config(hidden=D, vocabulary=V, heads=2), tensors)
    (tmp_path / "head" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(DecodingError, match=r"heads\.2\.linear\.weight is missing"):
        hydra.load(tmp_path / "head", model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 2 * SMALL // 64])
def test_rows_of_a_layer_are_its_outputs(size: int, dtype: torch.dtype) -> None:
    """Of a weight that compiled code multiplies, too."""
    torch.manual_seed(0)
    layer, x = Linear(torch.randn(size, 64).to(dtype), torch.randn(size).to(dtype)), torch.randn(3, 64).to(dtype)
    positions = torch.tensor([5, 0, 63, 17])
    torch.testing.assert_close(layer.select_outputs(positions)(x), layer(x)[:, positions], atol=1e-2, rtol=1e-2)
