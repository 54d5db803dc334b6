"""The EAGLE-3 head: its layer is what vLLM computes, its checkpoint what vLLM loads, it learns, and its drafts keep the
output.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from llamas import saved_llama
from specrig.decoding.drafters.autoregressive import Autoregressive
from specrig.decoding.drafters.eagle3 import Eagle3
from specrig.decoding.loop import generate
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context
from specrig.heads.eagle3 import Eagle3 as Eagle3Recipe
from specrig.heads.eagle3 import choose_aux_layers
from specrig.heads.eagle3.module import Eagle3Head, head_config, load, random_tensors, save
from specrig.heads.eagle3.training import Eagle3Learner
from specrig.heads.teacher import Teacher
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D = 23, 16
CONFIG = LlamaConfig(
    vocab_size=V, hidden_size=D, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, initializer_range=0.4, tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture
def source():
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture
def target(source):
    return cached_model(source)


def context(row: list[int]) -> Context:
    return Context([list(row)], [False], Sampler(0.0, range(1)), [4])


def by_hand(tensors: dict[str, Tensor], head: Eagle3Head, tokens: Tensor, g: Tensor) -> Tensor:
    """Outputs before the norm of entries (token t + 1, g of t), as vLLM's llama_eagle3 has it: `[n]`, `[n, D]` -> `[n,
    D]`.
    """
    n, d, prefix = len(tokens), head.head_width, "midlayer."

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + head.eps).rsqrt() * tensors[f"{prefix}{name}.weight"]

    both = torch.cat((norm(head.embedding[tokens], "input_layernorm"), norm(g, "hidden_norm")), -1)
    q, k, v = (
        (both @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T).view(n, count, d)
        for name, count in (("q", 4), ("k", 2), ("v", 2))
    )
    cos, sin = (part[0].unsqueeze(1) for part in head.rotary(both.unsqueeze(0), torch.arange(n).unsqueeze(0)))
    q, k = (x * cos + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * sin for x in (q, k))
    k, v = (part.repeat_interleave(2, 1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / d**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    x = g + torch.einsum("hij,jhd->ihd", scores, v).reshape(n, -1) @ tensors[f"{prefix}self_attn.o_proj.weight"].T
    normed = norm(x, "post_attention_layernorm")
    gate, up = (normed @ tensors[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (F.silu(gate) * up) @ tensors[f"{prefix}mlp.down_proj.weight"].T


@pytest.mark.parametrize("direct", [True, False])
def test_the_layer_reads_three_streams_and_feeds_its_own_output_back(source, direct: bool) -> None:
    target = cached_model(source, direct=direct)
    config = head_config(target.config)
    tensors = random_tensors(config, 3, 0.3)
    generator = torch.Generator().manual_seed(4)
    tensors = {n: t if t.dim() > 1 else 1 + 0.2 * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
    head = Eagle3Head(config, tensors, target)
    row = [5, 9, 2, 11, 7]  # four of the prompt and the first one generated
    target.aux_layers = head.target_layers
    target.start(1, 64)
    target.forward(torch.tensor([row[:-1]]))
    assert target.aux_hidden_states is not None
    with torch.no_grad():
        states = source(torch.tensor([row[:-1]]), output_hidden_states=True).hidden_states
    streams = torch.cat([states[layer] for layer in (0, 2, 3)], -1)
    torch.testing.assert_close(target.aux_hidden_states, streams, atol=1e-4, rtol=1e-4)
    head.begin([row], head.fuse(target.aux_hidden_states))
    logits, output = head.advance([row])
    g = streams[0] @ tensors["fc.weight"].T
    expected = by_hand(tensors, head, torch.tensor(row[1:]), g)
    torch.testing.assert_close(output[0], expected[-1], atol=1e-4, rtol=1e-4)
    named = F.rms_norm(expected[-1], (D,), tensors["norm.weight"], head.eps) @ tensors["lm_head.weight"].T
    torch.testing.assert_close(logits[0], named, atol=1e-4, rtol=1e-4)
    _, further = head.step(torch.tensor([3]), output)
    longer = by_hand(tensors, head, torch.tensor([*row[1:], 3]), torch.cat((g, expected[-1:])))
    torch.testing.assert_close(further[0], longer[-1], atol=1e-4, rtol=1e-4)


def test_the_three_streams_differ_whatever_the_depth() -> None:
    assert choose_aux_layers(6) == (1, 3, 5)
    for layers in range(3, 100):
        low, middle, high = choose_aux_layers(layers)
        assert 0 <= low < middle < high < layers
    with pytest.raises(DecodingError, match="a target of 2 has too few"):
        choose_aux_layers(2)


def test_wrong_checkpoints_are_refused(target, tmp_path: Path) -> None:
    config = head_config(target.config, 9)
    tensors = random_tensors(config, 1)
    for offsets in (torch.full((9,), V), torch.tensor([1, *[0] * 8])):
        with pytest.raises(DecodingError, match="d2t maps outside the 23 tokens or twice"):
            Eagle3Head(config, tensors | {"d2t": offsets}, target)
    config.norm_before_fc = config.fc_norm = True
    with pytest.raises(DecodingError, match="norm_before_fc and fc_norm exclude each other"):
        Eagle3Head(config, tensors, target)
    config.norm_before_fc = config.fc_norm = False
    for wrong in ([1, 1, 2], [1, 2, 4], [2, 1, 3]):
        config.eagle_config = {"eagle_aux_hidden_state_layer_ids": wrong}
        with pytest.raises(DecodingError, match="not rising ones from 0 to 3"):
            Eagle3Head(config, tensors, target)


def pair_of(target: Any, folder: Path) -> Any:
    """Resources with a target and one head."""
    return SimpleNamespace(target=target, head=lambda _: folder)


def test_a_reduced_vocabulary_drafts_its_tokens_only_and_keeps_the_output(target, tmp_path: Path) -> None:
    config = head_config(target.config, 9)
    tensors = random_tensors(config, 3, 0.3) | {"d2t": torch.arange(9)}  # the even tokens up to 16
    save(tmp_path, config, tensors)
    pair = pair_of(target, tmp_path)
    for nodes in (0, 10):
        drafter = Eagle3(Eagle3.Options(nodes=nodes, top_k=3), pair)
        offered = []
        propose = drafter.propose

        def watched(context: Context, k: int, propose=propose, offered=offered):
            offered.append(propose(context, k))
            return offered[-1]

        drafter.propose = watched
        prompts = [[5, 9, 2], [8, 3, 3, 1]]
        for temperature in (0.0, 1.0):
            found = generate(target, drafter, prompts, k=3, max_new_tokens=20, temperature=temperature)
            assert all(len(row.tokens) == 20 for row in found)
            if temperature == 0:
                plain = generate(
                    target,
                    Autoregressive(Autoregressive.Options(), pair),
                    prompts,
                    k=0,
                    max_new_tokens=20,
                    temperature=0,
                )
                assert [row.tokens for row in found] == [row.tokens for row in plain]
        assert all((draft.tokens % 2 == 0).all() and (draft.tokens <= 16).all() for draft in offered)
        # Its distributions never leave its own vocabulary; the verifier maps what it needs.
        drawn = [draft for draft in offered if draft.probs is not None]
        assert drawn and all(draft.probs.shape[-1] == 9 for draft in drawn)
        assert all(draft.vocabulary.tolist() == list(range(0, 17, 2)) for draft in drawn)


def test_a_published_head_with_a_mask_of_its_tokens_is_read(target, tmp_path: Path) -> None:
    config = head_config(target.config, 9)
    tensors = random_tensors(config, 3, 0.3) | {"d2t": torch.arange(9)}
    save(tmp_path, config, tensors)
    reached = torch.zeros(V, dtype=torch.bool)
    reached[::2][:9] = True
    save_file(load_file(tmp_path / "model.safetensors") | {"t2d": reached}, tmp_path / "model.safetensors")
    head = load(tmp_path, target)
    target.start(1, 64)
    head.begin([[5, 9]], torch.zeros(1, 1, D))
    assert head.target_ids(torch.arange(9)).tolist() == reached.nonzero().flatten().tolist()


def test_a_head_that_lists_its_tokens_in_any_order_drafts_the_same(target, tmp_path: Path) -> None:
    """d2t need not rise; and of a target whose last tokens are padding none of those is drafted."""
    config = head_config(target.config, 9)
    ids, order = torch.arange(0, 17, 2), torch.tensor([4, 0, 8, 2, 1, 7, 3, 6, 5])
    tensors = random_tensors(config, 3, 0.3) | {"d2t": ids - torch.arange(9)}
    mixed = tensors | {"d2t": ids[order] - torch.arange(9), "lm_head.weight": tensors["lm_head.weight"][order]}
    drafts = []
    for some in (tensors, mixed):
        for text_tokens in (V, 13):
            target.vocab_size = text_tokens
            head = Eagle3Head(config, some, target)
            target.start(1, 64)
            head.begin([[5, 9]], torch.ones(1, 1, D))
            logits, _ = head.advance([[5, 9]])
            drafts.append((head.target_ids(torch.arange(logits.shape[-1])).tolist(), logits))
    assert [names for names, _ in drafts] == 2 * [[*range(0, 17, 2)], [*range(0, 13, 2)]]
    torch.testing.assert_close([logits for _, logits in drafts[:2]], [logits for _, logits in drafts[2:]])


def test_a_target_of_two_layers_is_refused(tmp_path: Path) -> None:
    saved_llama(tmp_path, V, layers=2)
    teacher = Teacher(LlamaForCausalLM.from_pretrained(tmp_path), (0,), torch.device("cpu"))
    with pytest.raises(DecodingError, match="a target of 2 has too few"):
        Eagle3Learner(Eagle3Recipe(), teacher, teacher, None, 0)
