"""A draft that drafts in one pass: what it learns from is what it will see, and its checkpoint says for whom it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters.pard import Pard as Drafter
from specrig.decoding.loop import generate
from specrig.heads.anchors import Copies, kept_anchors
from specrig.heads.learner import Texts
from specrig.heads.pard import Pard
from specrig.heads.pard import module as pard
from specrig.heads.pard.training import PardLearner
from specrig.heads.teacher import Teacher
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V = 40


def llama(seed: int, vocabulary: int = V) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.35, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def learner(draft: Any, **settings: Any) -> PardLearner:
    draft, target = (Teacher(model, (0,), torch.device("cpu")) for model in (draft, llama(0)))
    return PardLearner(Pard.model_validate(settings), draft, target, None, 3)


def test_few_anchors_are_kept_at_depth_and_those_that_are_have_their_shallower_copies() -> None:
    written = torch.ones(3, 200, dtype=torch.bool)
    written[1, :150] = False
    written[2, 50:60] = False
    kept = kept_anchors(written, 6, torch.Generator().manual_seed(0))
    assert torch.equal(kept[0], written)
    assert not (kept[1:] & ~kept[:-1]).any()
    for depth, share in enumerate((1.0, 0.7, 0.49, 0.343, 0.2401, 0.2)):
        # Some near the end of a text, or of what was written, have no token so far ahead.
        assert 200 * share - 6 <= int(kept[depth, 0].sum()) <= 200 * share + 1
        assert 50 * share - 6 <= int(kept[depth, 1].sum()) <= 50 * share + 1
        assert not kept[depth, 2, 50 - depth : 60].any()
    assert torch.equal(kept_anchors(written, 6, torch.Generator().manual_seed(0)), kept)
    assert not torch.equal(kept_anchors(written, 6, torch.Generator().manual_seed(1)), kept)
    every = kept_anchors(written, 6)
    assert not (kept & ~every).any() and int(every[5, 0].sum()) == 195


@pytest.mark.parametrize("dropped", [True, False])
def test_a_copy_in_training_sees_what_the_draft_sees_when_it_drafts(dropped: bool) -> None:
    own, T = learner(llama(1), mask_token=7), 12
    tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    written = torch.ones(2, T, dtype=torch.bool)
    written[1, :5] = False
    copies = Copies.of(kept_anchors(written, 4, torch.Generator().manual_seed(0) if dropped else None))
    assert copies.kept.sum() > 2 * T
    with torch.no_grad():
        found = own.states(tokens, copies)
        for row, place in copies.kept.nonzero().tolist():
            anchor, depth = int(copies.anchors[row, place]), int(copies.depths[row, place])
            drafting = torch.cat((tokens[row, : anchor + 1], torch.tensor([7] * depth, dtype=torch.long)))
            alone = own.draft.base_model(input_ids=drafting[None]).last_hidden_state[0, -1]
            # Both in bfloat16 products, in another order.
            torch.testing.assert_close(found[row, place].float(), alone, atol=0.1, rtol=0.1)


def test_it_starts_as_the_draft_and_learns_what_the_target_wrote() -> None:
    draft = llama(1)
    own = learner(draft, k=3)
    assert own.mask == V - 1
    batch = Texts(torch.randint(V, (4, 17)), torch.ones(4, 17, dtype=torch.bool))
    taught = own.teacher.states(batch.tokens)
    loss = own.loss(batch, taught, taught)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in own.parameters())
    assert all(weight.grad is None for weight in draft.parameters()), "the pair's draft stays as it is"
    with pytest.raises(Exception, match=f"no token {V}"):
        learner(draft, mask_token=V)


def test_an_untrained_drafts_mask_ends_no_text(tmp_path: Path) -> None:
    config = llama(1).config
    config.eos_token_id = V - 1
    pard.initialise(tmp_path, config, seed=0)
    assert json.loads((tmp_path / "config.json").read_bytes())["pard_token"] == V - 2


@pytest.mark.parametrize("rows", [V, V + 4, V - 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_pass_a_round_and_no_mask_in_the_cache(tmp_path: Path, rows: int, temperature: float) -> None:
    """Whether or not one of the two embeddings has more padding."""
    pard.save(tmp_path, llama(1, rows), rows - 1)
    whole = llama(0)
    with torch.no_grad():
        whole.lm_head.weight.mul_(30)[V - 4 :] = 0  # it never emits a token that the smaller embedding lacks
    target = cached_model(whole)
    resources: Any = SimpleNamespace(target=target, head=lambda _: tmp_path)
    drafter = Drafter(Drafter.Options(), resources)
    lengths, observe = [], drafter.observe

    def watched(verdict: Any) -> None:
        lengths.append(drafter.model.lengths.copy())
        observe(verdict)

    drafter.observe = watched  # type: ignore[method-assign]
    prompts = [[5, 9, 11, 5, 9], [3, 7]]
    found = generate(target, drafter, prompts, k=4, max_new_tokens=12, temperature=temperature)
    rounds = max(len(row.rounds) for row in found)
    assert sum(calls for calls, _ in drafter.passes().values()) == rounds == len(lengths)
    for number, held in enumerate(lengths):
        for prompt, row, length in zip(prompts, found, held, strict=True):
            if number < len(row.rounds):
                assert length == len(prompt) + 1 + sum(entry.emitted for entry in row.rounds[:number])


def test_what_is_no_draft_of_one_pass_is_refused(tmp_path: Path) -> None:
    target = cached_model(llama(0))
    pard.save(tmp_path, llama(1), 3, target_vocabulary=V)
    assert pard.load(tmp_path, target).config.pard_token == 3
    config = json.loads((tmp_path / "config.json").read_text())
    assert set(load_file(tmp_path / "model.safetensors")) == set(llama(1).model.state_dict(prefix="model."))
    for keys, message in (
        ({"pard_token": None}, "drafts with `draft_model`"),
        ({"pard_token": V}, f"`pard_token` is {V}"),
        ({"specrig": {"target_vocabulary": 9}}, f"trained for a target of 9 tokens, this one has {V}"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | keys))
        with pytest.raises(DecodingError, match=message):
            pard.load(tmp_path, target)
