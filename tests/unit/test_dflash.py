"""The heads of DFlash and DSpark: their blocks are what vLLM computes, DSpark's confidence cuts chains, and other builds
are refused.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaForCausalLM

from llamas import saved_llama
from specrig.decoding.drafters.dspark import DSpark
from specrig.decoding.loop import generate
from specrig.heads.dflash import DFlash, choose_target_layers
from specrig.heads.dflash.module import DFlashHead, head_config, load, random_tensors, save
from specrig.heads.dspark import module as dspark
from specrig.heads.shapes import CONFIDENCE, CONFIDENCE_BIAS, MARKOV_W1, MARKOV_W2
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D, H = 23, 32, 2
MASK = 22
EVERY = [0, 3, 4, 11, 20, 22]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target."""
    saved_llama(tmp_path, V, layers=4)
    return tmp_path


def by_hand(tensors: dict[str, Tensor], head: DFlashHead, streams: Tensor, block: Tensor) -> Tensor:
    """The states `[n, D]` of a block `[n]` after the norm, behind the target's streams `[T, F D]`, as vLLM's
    qwen3_dflash has it.
    """
    T, n, d = len(streams), len(block), D // H

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + head.eps).rsqrt() * tensors[f"{name}.weight"]

    def turned(x: Tensor, start: int) -> Tensor:
        cos, sin = (part[0].unsqueeze(1) for part in head.rotary(x, torch.arange(start, start + len(x)).unsqueeze(0)))
        return x * cos + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * sin

    features = norm(streams @ tensors["fc.weight"].T, "hidden_norm")
    x = head.embedding[block]
    for index in range(head.layers):

        def project(read: Tensor, part: str, layer: str = f"layers.{index}.") -> Tensor:
            found = (read @ tensors[f"{layer}self_attn.{part}_proj.weight"].T).view(len(read), H, d)
            return found if part == "v" else norm(found, f"{layer}self_attn.{part}_norm")

        layer = f"layers.{index}."
        read = norm(x, f"{layer}input_layernorm")
        q, own, context = (
            turned(project(read, "q"), T),
            turned(project(read, "k"), T),
            turned(project(features, "k"), 0),
        )
        k, v = torch.cat((context, own)), torch.cat((project(features, "v"), project(read, "v")))
        weights = (torch.einsum("ihd,jhd->hij", q, k) / d**0.5).softmax(-1)  # nobody is masked
        x = x + torch.einsum("hij,jhd->ihd", weights, v).reshape(n, -1) @ tensors[f"{layer}self_attn.o_proj.weight"].T
        inner = norm(x, f"{layer}post_attention_layernorm")
        gate, up = (inner @ tensors[f"{layer}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ tensors[f"{layer}mlp.down_proj.weight"].T
    return norm(x, "norm")


@pytest.mark.parametrize("direct", [True, False])
def test_a_block_sees_the_features_before_it_and_all_of_itself(folder: Path, direct: bool) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder), direct=direct)
    config = head_config(target.config)
    assert config.dflash_config == {"mask_token_id": MASK, "target_layer_ids": [0, 1, 2]}
    generator = torch.Generator().manual_seed(4)
    tensors = random_tensors(config, 3, 0.3)
    tensors = {n: t if t.dim() > 1 else 1 + 0.2 * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
    head = DFlashHead(config, dict(tensors), target)
    assert head.target_layers == (1, 2, 3)
    streams = torch.randn(7, 3 * D, generator=generator)
    row = [5, 9, 2, 11, 7, 3, 8, 14]  # the last one is not yet run by the target
    target.start(1, 64)
    for first in (8, 5):  # all at once, or the last three after a round that accepted two
        head.begin([row[:first]], head.fuse(streams[None, : first - 1]))
        if first == 5:
            head.draft([row[:5]], [False], 3)
            head.accept(head.fuse(streams[None, 4:7]), [[0, 1]])
        logits = head.draft([row], [False], 3)
        expected = by_hand(tensors, head, streams, torch.tensor([14, MASK, MASK, MASK]))[1:]
        torch.testing.assert_close(
            logits[0], expected @ target.embedding.T if direct else head.head(expected), atol=1e-4, rtol=1e-4
        )


def test_the_layers_that_it_reads_lie_within_the_target() -> None:
    assert choose_target_layers(30) == (5, 15, 25)
    assert choose_target_layers(2) == (1,)
    for layers in range(2, 100):
        found = choose_target_layers(layers)
        assert 1 <= len(found) <= 3 and all(low < high for low, high in itertools.pairwise((0, *found, layers)))
    with pytest.raises(DecodingError, match="a target of 1 has none"):
        choose_target_layers(1)


def test_engines_that_would_draft_with_tokens_that_it_never_learnt_are_refused() -> None:
    words = "would draft with all of 9 tokens, and the DFlash head learnt the scores of 2 alone"
    assert words in str(DFlash.unloadable("vllm", {"vocab_size": 9, "specrig": {"drafted": [3, 5]}}))
    assert DFlash.unloadable("vllm", {"vocab_size": 9}) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target_layer_ids": [2, 1, 0]}, "not rising ones from 0 to 2"),
        ({"target_layer_ids": [1, 2, 3]}, "not rising ones from 0 to 2"),
        ({"mask_token_id": V}, "mask_token_id is 23, not one of the 23 tokens"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"causal": True}, "causal in its config is not supported"),
    ],
)
def test_wrong_checkpoints_are_refused(folder: Path, changed: dict[str, Any], message: str) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    config = head_config(target.config)
    config.dflash_config |= changed
    save(folder / "head", config, random_tensors(config, 1))
    with pytest.raises(DecodingError, match=message):
        load(folder / "head", target)


def chances(tensors: dict[str, Tensor], states: Tensor, before: Tensor) -> Tensor:
    """The confidence head of vLLM's qwen3_dspark: `[n]` of states `[n, D]` and the tokens before `[n]`."""
    reads = torch.cat((states, tensors[MARKOV_W1][before]), -1)
    return (reads @ tensors[CONFIDENCE][0] + tensors[CONFIDENCE_BIAS]).sigmoid()


@pytest.mark.parametrize("from_anchor", [True, False])
def test_each_token_of_a_block_drafts_the_one_behind_it(folder: Path, from_anchor: bool) -> None:
    """As speculators writes it, the first mask drafts the first token instead."""
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    config = dspark.head_config(target.config)
    assert (config.mask_token_id, config.target_layer_ids, config.markov_rank) == (MASK, [0, 1, 2], D)
    config.sample_from_anchor = from_anchor
    tensors = dspark.random_tensors(config, 3, 0.3)
    head = dspark.DSparkHead(config, dict(tensors), target)
    streams = torch.randn(7, 3 * D, generator=torch.Generator().manual_seed(4))
    row = [5, 9, 2, 11, 7, 3, 8, 14]
    target.start(1, 64)
    head.begin([row], head.fuse(streams[None]))
    logits = head.draft([row], [False], 3)[0]
    block = [14, MASK, MASK] if from_anchor else [14, MASK, MASK, MASK]
    states = by_hand(tensors, head, streams, torch.tensor(block))[-3:]
    expected = states @ target.embedding.T
    expected[0] += tensors[MARKOV_W2] @ tensors[MARKOV_W1][14]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    drafted = torch.tensor([[4, 6, 1]])
    found = head.confidences([row], drafted)[0]
    torch.testing.assert_close(found, chances(tensors, states, torch.tensor([14, 4, 6])), atol=1e-4, rtol=1e-4)


def drafter(folder: Path, **options: Any) -> tuple[Any, DSpark]:
    """The target, and the drafter of the head in `folder/head`."""
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    resources: Any = SimpleNamespace(target=target, head=lambda name: folder / "head")
    return target, DSpark(DSpark.Options(**options), resources)


def test_a_chain_ends_where_the_product_of_its_confidences_falls_below_the_threshold(folder: Path) -> None:
    config = dspark.head_config(LlamaForCausalLM.from_pretrained(folder).config)
    tensors = dspark.random_tensors(config, 3, 0.3)
    tensors[CONFIDENCE].zero_()
    tensors[CONFIDENCE_BIAS].fill_(torch.logit(torch.tensor(0.7)).item())
    dspark.save(folder / "head", config, tensors)
    for threshold, length in ((0.0, 6), (0.1, 6), (0.3, 3), (0.5, 1), (0.8, 0)):  # .7, .49, .343, .24, .17, .12
        target, made = drafter(folder, confidence_threshold=threshold)
        rows = generate(target, made, [[5, 9, 11], [7]], k=6, max_new_tokens=30, temperature=0)
        for row in rows:
            assert {entry.drafted for entry in row.rounds[:-1]} == {length}, threshold


def test_a_head_without_confidences_verifies_whole_chains_alone(folder: Path) -> None:
    config = dspark.head_config(LlamaForCausalLM.from_pretrained(folder).config)
    config.enable_confidence_head = False
    dspark.save(folder / "head", config, dspark.random_tensors(config, 3, 0.3))
    for options in ({}, {"confidence_threshold": 0.0, "length": "auto"}):
        with pytest.raises(DecodingError, match="no confidence head: use it with `confidence_threshold: 0`"):
            drafter(folder, **options)
    target, made = drafter(folder, confidence_threshold=0.0)
    (row,) = generate(target, made, [[5, 9, 11]], k=3, max_new_tokens=20, temperature=0)
    assert {entry.drafted for entry in row.rounds[:-1]} == {3}
    assert dspark.load(folder / "head", target).confidence is None
