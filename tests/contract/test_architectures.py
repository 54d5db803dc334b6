"""Every architecture decodes as transformers' own `generate` does, whatever drafts, or is refused by what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
from architectures import REFUSED, RUN, VOCABULARY, WINDOW, tiny
from models import perturbed

from specrig.decoding.drafters import registry
from specrig.decoding.llama_model import LlamaModel
from specrig.decoding.loop import generate
from specrig.decoding.model import CachedModel
from specrig.decoding.transformers_model import cached_model
from specrig.decoding.types import DecodingError, Drafter
from specrig.models import needs

PROMPTS = [[(37 * at + 11 + 5 * row) % VOCABULARY for at in range(length)] for row, length in enumerate((14, 19))]
"""Longer than a window from the first token on, and of two lengths."""
TOKENS = 24


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
        found = generate(self.target, self.drafter(method, **options), prompts, k=k, max_new_tokens=TOKENS, temperature=0)
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
    assert [pair.decode("autoregressive", [prompt], 0)[0] for prompt in PROMPTS] == expected
    assert pair.decode("autoregressive", PROMPTS, 0) == expected, "a batch of two"
    assert pair.decode("draft_model", PROMPTS[:1], 3) == expected[:1]
    assert pair.decode("tree", PROMPTS[:1], 3, branching=(2, 2)) == expected[:1]
    assert pair.decode("tree", PROMPTS, 3, branching=(2, 2)) == expected, "trees in a batch of two"


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
    told = needs.unmet(json.loads((tmp_path / "config.json").read_text()))
    if name == "openai-gpt":
        assert told is None, "its config says nothing of it"
    else:
        assert reason in (told or "")
    # Had the config said nothing, the model itself would have been found out.
    with pytest.raises(DecodingError, match="rolled back"):
        cached_model(tiny(name))


@pytest.mark.parametrize("name", RUN)
def test_a_config_that_runs_is_not_refused(name: str, tmp_path: Path) -> None:
    architectures.config(name).save_pretrained(tmp_path)
    assert needs.unmet(json.loads((tmp_path / "config.json").read_text())) is None
    assert len(PROMPTS[0]) > WINDOW
