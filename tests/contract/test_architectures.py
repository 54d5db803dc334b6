"""Every architecture decodes as transformers' own `generate` does, whatever drafts, or is refused by what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
from architectures import REFUSED, RUN, VOCABULARY, WINDOW, tiny
from models import Traced, perturbed, torch_passes

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.types import Drafter
from specrig.heads import initialise
from specrig.models import needs
from specrig.runtime import compiled, linear
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

PROMPTS = [[(37 * at + 11 + 5 * row) % VOCABULARY for at in range(length)] for row, length in enumerate((14, 19))]
"""Longer than a window from the first token on, and of two lengths."""
TOKENS = 12
TIED = {"gemma3n_text"}
"""Layers that read what other layers leave for them: none of these can be left out."""


@pytest.fixture(autouse=True)
def tiny_layers_are_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code multiplies a few rows of large layers, where there is some: here of all."""
    monkeypatch.setattr(linear, "SMALL", 1)


class Pair:
    """Resources of a tiny target and a draft of the same architecture that agrees with it sometimes."""

    def __init__(self, name: str) -> None:
        self.source = tiny(name)
        self.target: CachedModel = cached_model(self.source)
        self._draft: CachedModel = cached_model(perturbed(self.source, 0.2))

    def model(self, name: str) -> CachedModel:
        assert name == "draft"
        return self._draft

    def head(self, name: str) -> Path:
        raise AssertionError(f"no {name} head here")

    def drafter(self, name: str, **options: Any) -> Drafter:
        method = registry()[name]
        return method(method.Options.model_validate(options), self)

    def decode(self, method: str, prompts: list[list[int]], k: int, **options: Any) -> list[list[int]]:
        found = generate(
            self.target, self.drafter(method, **options), prompts, k=k, max_new_tokens=TOKENS, temperature=0
        )
        return [generation.tokens for generation in found]


def own(model: Any, prompt: list[int]) -> list[int]:
    """What transformers generates, greedily and with its own cache."""
    tokens = torch.tensor([prompt])
    mask = torch.ones_like(tokens)
    output = model.generate(tokens, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", RUN)
def test_it_decodes_as_transformers_does(name: str) -> None:
    pair = Pair(name)
    expected = [own(pair.source, prompt) for prompt in PROMPTS]
    assert pair.decode("autoregressive", PROMPTS, 0) == expected, "a batch of two"
    assert pair.decode("draft_model", PROMPTS[1:], 3) == expected[1:], "a row alone"
    assert pair.decode("tree", PROMPTS, 3, branching=(2, 2)) == expected, "trees in a batch of two"
    if name in TIED:
        with pytest.raises(DecodingError, match=r"does not run without layers \[1\]"):
            pair.drafter("layer_skip", skip=(1,))
    else:
        assert pair.decode("layer_skip", PROMPTS[:1], 3, skip=(1,)) == expected[:1], "drafted with a layer left out"


@pytest.mark.skipif(compiled.library() is None, reason="no compiler here")
@pytest.mark.parametrize(("name", "layers"), [("gpt2", 3 * 4 + 1), ("gemma3_text", 3 * 7 + 1)])
def test_compiled_code_multiplies_a_few_rows_of_layers_that_are_transformers_own(
    name: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cached_model(tiny(name))
    model.start(1, 64)
    products, product = list[int](), compiled.product

    def counted(x: torch.Tensor, *given: Any) -> torch.Tensor:
        products.append(x.shape[-2])
        return product(x, *given)

    monkeypatch.setattr(compiled, "product", counted)
    model.forward(torch.arange(5)[None])
    assert products == [5] * layers


@pytest.mark.parametrize("name", RUN)
def test_the_logits_of_a_prompt_and_of_its_last_token_are_the_models_own(name: str) -> None:
    source = tiny(name)
    model = cached_model(source)
    with torch.no_grad():
        whole = [source(input_ids=torch.tensor([prompt])).logits[0] for prompt in PROMPTS]
    model.start(1, 32)
    every, _ = model.forward(torch.tensor(PROMPTS[:1]))
    torch.testing.assert_close(every[0], whole[0], atol=2e-4, rtol=1e-3)
    model.start(2, 32)
    last = model.catch_up(PROMPTS, [False, False])
    torch.testing.assert_close(last, torch.stack([logits[-1] for logits in whole]), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3"])
def test_windows_need_no_detour(name: str) -> None:
    assert isinstance(cached_model(tiny(name)), LlamaModel)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_what_it_needs_before_and_after_loading(name: str, tmp_path: Path) -> None:
    reason = REFUSED[name][0]
    architectures.config(name).save_pretrained(tmp_path)
    output = needs.unmet(json.loads((tmp_path / "config.json").read_text()))
    if name == "openai-gpt":
        assert output is None, "its config says nothing of it"
    else:
        assert reason in (output or "")
    # Had the config said nothing, the model itself would have been found out.
    with pytest.raises(DecodingError, match="rolled back"):
        cached_model(tiny(name))


@pytest.mark.parametrize("name", RUN)
def test_a_config_that_runs_is_not_refused(name: str, tmp_path: Path) -> None:
    architectures.config(name).save_pretrained(tmp_path)
    assert needs.unmet(json.loads((tmp_path / "config.json").read_text())) is None
    assert len(PROMPTS[0]) > WINDOW


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss"])
def test_what_heads_read_of_a_target_with_windows_is_its_own(name: str) -> None:
    """The streams after layers, in one pass and after a rollback: what EAGLE-3 learns from and drafts with."""
    source, layers, prompt = tiny(name), (0, 1, 2), PROMPTS[1]
    with torch.no_grad():
        states = source(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer] for layer in layers], -1)[0]
    model = cached_model(source)
    model.aux_layers = layers
    model.start(1, 32)
    _, hidden = model.forward(torch.tensor([prompt]))
    torch.testing.assert_close(model.aux_hidden_states[0], expected, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(hidden[0], states[-1][0], atol=2e-4, rtol=1e-3)
    model.start(1, 32)
    model.forward(torch.tensor([prompt[:12]]))
    model.keep([range(12)])
    # Root, a wrong sibling, the right one: what follows hangs on the latter.
    model.forward(torch.tensor([[prompt[12], prompt[13] ^ 1, prompt[13]]]), parents=[[-1, 0, 0]])
    torch.testing.assert_close(model.aux_hidden_states[0, [0, 2]], expected[12:14], atol=2e-4, rtol=1e-3)
    model.keep([[0, 2]])
    model.forward(torch.tensor([prompt[14:]]))
    torch.testing.assert_close(model.aux_hidden_states[0], expected[14:], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["mistral", "qwen3"])
@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "medusa"])
def test_heads_on_a_target_with_windows_keep_its_output(name: str, method: str, tmp_path: Path) -> None:
    pair = Pair(name)
    initialise(registry()[method].needs[0], tmp_path / "head", pair.source.config, pair.source.config, seed=5)
    pair.head = lambda _: tmp_path / "head"
    expected = [own(pair.source, prompt) for prompt in PROMPTS]
    assert pair.decode(method, PROMPTS, 3) == expected


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_passes_that_are_replayed_have_the_same_windows(name: str) -> None:
    """As on a GPU: what is recorded once knows a row's length from its inputs alone."""
    with torch_passes():
        pair = Pair(name)
    expected = [own(pair.source, prompt) for prompt in PROMPTS]
    for model in (pair.target, pair.model("draft")):
        model.replay = Traced(model.device)
    assert pair.decode("draft_model", PROMPTS, 3) == expected
    assert pair.decode("tree", PROMPTS, 3, branching=(2, 2)) == expected


def test_a_forward_pass_that_goes_wrong_over_our_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an architecture does that nobody has foreseen: here it sees no mask, or counts positions by itself."""
    source = tiny("llama")
    forward = type(source).forward

    def without(key: str) -> Any:
        return lambda self, *args, **kwargs: forward(
            self, *args, **kwargs | ({key: None} if "past_key_values" in kwargs else {})
        )

    for key in ("attention_mask", "position_ids"):
        monkeypatch.setattr(type(source), "forward", without(key))
        with pytest.raises(DecodingError, match=r"its logits are not its own|fails over a cache"):
            cached_model(source, direct=False)
    monkeypatch.setattr(type(source), "forward", forward)
    cached_model(source, direct=False)


def test_logits_that_are_no_numbers_are_no_reference() -> None:
    source = tiny("llama")
    with torch.no_grad():
        source.model.norm.weight.fill_(float("nan"))
    with pytest.raises(DecodingError, match=r"no numbers in torch\.float32; try another dtype"):
        cached_model(source)


def test_layers_of_different_sizes_share_a_cache_by_their_shape() -> None:
    model = cached_model(tiny("gemma4_text"))
    assert len(set(model.layout)) == 2
    latent = cached_model(tiny("deepseek_v3"))
    assert {shape.key_width != shape.value_width for shape in latent.layout} == {True}
