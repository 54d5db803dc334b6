"""The DFlash head: its block is what vLLM computes, and other builds are refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaForCausalLM

from llamas import saved_llama
from specrig.heads.dflash import choose_target_layers
from specrig.heads.dflash.module import DFlashHead, head_config, load, random_tensors, save
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
