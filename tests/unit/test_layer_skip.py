"""A target that drafts for itself: which layers are left out, and what its pruned model predicts."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters.layer_skip import LayerSkip
from specrig.decoding.loop import generate
from specrig.heads.layer_skip import module as layer_skip
from specrig.heads.layer_skip.module import spread
from specrig.runtime.pruned import follow, prune
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError
from specrig.study.config import MethodEntry

LAYERS, V = 5, 30


def llama() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=128, initializer_range=0.3)
    ).eval()


def without(model: Any, skipped: set[int]) -> Any:
    """The model with its list of layers cut, which transformers then runs as it is."""
    other = copy.deepcopy(model)
    body = other.model if hasattr(other, "model") else other.transformer
    name = "layers" if hasattr(body, "layers") else "h"
    setattr(body, name, nn.ModuleList(layer for index, layer in enumerate(getattr(body, name)) if index not in skipped))
    other.config.num_hidden_layers = LAYERS - len(skipped)
    return other


def test_an_even_spread_keeps_first_and_last() -> None:
    assert spread(8, 0.5) == [1, 3, 4, 6]
    for layers in range(1, 40):
        for share in (0.1, 0.3, 0.5, 0.9):
            found = spread(layers, share)
            assert len(found) == len(set(found)) == min(round(share * layers), max(layers - 2, 0))
            assert not {0, layers - 1} & set(found)


@pytest.mark.parametrize(("make", "direct"), [(llama, True), (llama, False), (gpt2, False)])
def test_the_thinned_model_is_the_model_without_its_layers(make: Any, direct: bool) -> None:
    """Over a context of its own: token by token, its logits are those of a model that never had the layers."""
    model, skipped = make(), {1, 2}
    tokens = torch.tensor([[3, 7, 1, 9, 4, 4, 2]])
    expected = without(model, skipped)(input_ids=tokens, use_cache=False).logits
    whole = cached_model(model, direct=direct)
    thin = prune(whole, skipped)
    whole.start(1, 32)
    follow(thin, whole, [0])
    first, _ = thin.forward(tokens[:, :4])
    thin.keep([range(4)])
    found = [first, *[step(thin, tokens[:, at : at + 1]) for at in range(4, 7)]]
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-4, rtol=1e-3)
    assert whole.lengths == [0], "the whole model's context is its own"
    assert not torch.allclose(whole.forward(tokens)[0], expected, atol=1e-2), "the whole model still has all layers"


def step(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits, _ = model.forward(tokens)
    model.keep([[0]])
    return logits


def test_it_reads_the_context_that_the_whole_model_wrote() -> None:
    """Keys and values of the kept layers come from a stream that passed all layers, so a thinned prompt would say
    otherwise.
    """
    whole = cached_model(llama())
    thin = prune(whole, {1, 2})
    prompt, last = torch.tensor([[3, 7, 1, 9]]), torch.tensor([[4]])
    whole.start(1, 32)
    whole.forward(prompt)
    whole.keep([range(4)])
    follow(thin, whole, [4])
    shared, _ = thin.forward(last)
    before = whole.forward(last)[0]
    follow(thin, whole, [0])
    thin.forward(prompt)
    thin.keep([range(4)])
    alone, _ = thin.forward(last)
    assert not torch.allclose(shared, alone, atol=1e-2)
    assert before.shape == shared.shape


def resources(whole: Any, folder: Path) -> Any:
    return SimpleNamespace(target=whole, head=lambda name: folder / name)


def test_layers_by_share_by_number_and_as_found(tmp_path: Path) -> None:
    whole = cached_model(llama())
    layer_skip.save(tmp_path / "layer_skip", LAYERS, [2, 3])
    for skip, expected in ((None, {2, 3}), (0.4, set(spread(LAYERS, 0.4))), ((1,), {1})):
        drafter = LayerSkip(LayerSkip.Options.model_validate({"skip": skip}), resources(whole, tmp_path))
        assert drafter.model.skipped == expected  # type: ignore[attr-defined]


def test_a_share_that_leaves_no_layer_out_is_refused(tmp_path: Path) -> None:
    options = LayerSkip.Options(skip=0.05)
    with pytest.raises(DecodingError, match=f"leaves out none of the target's {LAYERS} layers"):
        LayerSkip(options, resources(cached_model(llama()), tmp_path))


def test_layers_that_are_named_need_no_search() -> None:
    assert MethodEntry.model_validate({"method": "layer_skip"}).needs == {"layer_skip"}
    assert MethodEntry.model_validate({"method": "layer_skip", "skip": [0.2, 0.4]}).needs == set()
    assert MethodEntry.model_validate({"method": "layer_skip", "skip": [1, 3]}).needs == set()
    assert MethodEntry.model_validate({"method": "medusa_draft"}).needs == {"draft", "draft_medusa"}


def test_leaving_nothing_out_is_accepted_in_full(tmp_path: Path) -> None:
    """The draft is the target: every token is accepted, alone and beside longer rows."""
    for direct in (True, False):
        whole = cached_model(llama(), direct=direct)
        drafter = LayerSkip(LayerSkip.Options(skip=()), resources(whole, tmp_path))
        for found in generate(whole, drafter, [[3, 1], [5, 2, 9, 9]], k=3, max_new_tokens=17, temperature=0):
            assert [entry.accepted for entry in found.rounds] == [3, 3, 3, 3]
        for found in generate(whole, drafter, [[3, 1], [5, 2, 9, 9]], k=3, max_new_tokens=17, temperature=1.0):
            assert {entry.accepted for entry in found.rounds} == {3}


def test_what_cannot_be_left_out_is_said(tmp_path: Path) -> None:
    whole = cached_model(llama())
    with pytest.raises(DecodingError, match="no layer 7 to leave out: the model's are 0 to 4"):
        prune(whole, [1, 7])
    with pytest.raises(DecodingError, match="all 5 layers are left out"):
        prune(whole, range(LAYERS))
    with pytest.raises(DecodingError, match="no layer_skip there"):
        layer_skip.load(tmp_path, whole)
    layer_skip.save(tmp_path, LAYERS + 1, [2])
    with pytest.raises(DecodingError, match="found for a target of 6 layers, this one has 5"):
        layer_skip.load(tmp_path, whole)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 5, "skipped": "2"}')
    with pytest.raises(DecodingError, match="`skipped` is not a list"):
        layer_skip.load(tmp_path, whole)


def test_layers_in_no_list_are_refused() -> None:
    whole = cached_model(gpt2(), direct=False)
    whole.layers = 4
    with pytest.raises(DecodingError, match="keeps its 4 layers in no list"):
        prune(whole, [1])
