"""Heads that are right by construction, on a target that goes round a cycle: whatever is offered must be accepted, in
every round.

A feature, a token or a position that is off by one makes them wrong.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from references import of_rounds
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.heads.eagle import module as eagle
from specrig.heads.eagle3 import module as eagle3
from specrig.heads.hydra import module as hydra
from specrig.heads.medusa import module as medusa
from specrig.runtime.transformers_model import cached_model

PERIOD, D = 24, 32


def following(steps: int) -> Tensor:
    """`[PERIOD, D]`: reads token x's direction as the token that comes `steps` later in the cycle x -> 13x + 1."""
    matrix = torch.zeros(PERIOD, D)
    for token in range(PERIOD):
        after = token
        for _ in range(steps):
            after = (13 * after + 1) % PERIOD
        matrix[after, token] = 1.0
    return matrix


def silenced(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Layers that add nothing to the stream."""
    return {name: torch.zeros_like(t) if "o_proj" in name or "down_proj" in name else t for name, t in tensors.items()}


@pytest.fixture(scope="module")
def cycle() -> Any:
    """A target that goes round a cycle of 24 tokens: its stream is the token's own direction, its LM head names the
    successor.
    """
    config = LlamaConfig(
        vocab_size=PERIOD, hidden_size=D, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    weights = silenced(model.state_dict())
    weights["model.embed_tokens.weight"] = torch.eye(PERIOD, D)
    weights["lm_head.weight"] = following(1)
    model.load_state_dict(weights)
    return model


def exact_head(kind: str, reads: str, target: Any, folder: Path) -> None:
    """Heads that are right by construction, as far as one of the two things they read goes: a wrong one, a place off,
    and they fail.
    """
    if kind == "medusa":
        config = medusa.heads_config(hidden=D, vocabulary=PERIOD, heads=4)
        tensors = {name: torch.zeros(shape) for name, shape in medusa.shapes(config).items()}
        tensors |= {f"lm_heads.{head}.weight": following(head + 2) for head in range(4)}
        medusa.save(folder, config, tensors)
    elif kind == "hydra":
        config = hydra.heads_config(hidden=D, vocabulary=PERIOD, heads=4)
        tensors = {name: torch.zeros(shape) for name, shape in hydra.shapes(config).items()}
        for head in range(4):
            # Which part of the input names the last token drafted so far: its own embedding, or the state, some steps
            # on.
            part = (
                torch.eye(D)
                if reads == "token"
                else torch.nn.functional.pad(following(head + 1), (0, 0, 0, D - PERIOD))
            )
            at = -D if reads == "token" else 0
            tensors[f"heads.{head}.res_connection.weight"][:, at : at + D or None] = part
        hydra.save(folder, config, tensors)
    elif kind == "eagle":
        config = eagle.head_config(target.config)
        tensors = silenced(eagle.random_tensors(config, 0))
        # The embedding stands first: the next token's direction comes from the token itself, or from the feature one
        # step on.
        step = torch.nn.functional.pad(following(1), (0, 0, 0, D - PERIOD))
        tensors["fc.weight"] = torch.cat(
            (8 * torch.eye(D), 0 * step) if reads == "token" else (torch.zeros(D, D), step), 1
        )
        eagle.save(folder, config, tensors)
    else:
        config = eagle3.head_config(target.config)
        tensors = silenced(eagle3.random_tensors(config, 0))
        parts = [torch.eye(D) if reads == stream else torch.zeros(D, D) for stream in ("low", "middle", "high")]
        tensors |= {"fc.weight": torch.cat(parts, 1), "lm_head.weight": following(2)}
        eagle3.save(folder, config, tensors)


@pytest.mark.parametrize(
    ("method", "options", "k", "reads"),
    [
        ("medusa", {}, 4, ""),
        ("medusa", {"tree": (1,)}, 4, ""),
        ("medusa", {"tree": (1,), "acceptance": "typical"}, 4, ""),
        *(("hydra", options, 4, reads) for options in ({}, {"tree": (1,)}) for reads in ("token", "state")),
        ("medusa_draft", {}, 5, ""),
        ("medusa_draft", {"tree": (3, 1)}, 5, ""),
        *(("eagle", {}, 4, reads) for reads in ("token", "feature")),
        *(("eagle2", {"nodes": 12, "top_k": 3}, 4, reads) for reads in ("token", "feature")),
        # Without attention this head cannot tell how far it has come, so it is right about the first token only.
        *(("eagle3", {}, 1, reads) for reads in ("low", "middle", "high")),
    ],
)
def test_a_head_that_knows_the_text_is_always_accepted(
    cycle: Any, tmp_path: Path, method: str, options: dict[str, Any], k: int, reads: str
) -> None:
    target, draft = cached_model(cycle), cached_model(cycle)
    for name in registry()[method].needs:
        if name != "draft":
            (tmp_path / name).mkdir()
            exact_head(name.removeprefix("draft_"), reads, target, tmp_path / name)
    resources: Any = SimpleNamespace(target=target, model=lambda _: draft, head=lambda name: tmp_path / name)
    drafter = registry()[method](registry()[method].Options.model_validate(options), resources)
    prompts = [[3, 16], [9], [1, 6, 7, 12, 13]]
    for found, prompt in zip(
        generate(target, drafter, prompts, k=k, max_new_tokens=32, temperature=0), prompts, strict=True
    ):
        assert all(after == (13 * before + 1) % PERIOD for before, after in pairwise([prompt[-1], *found.tokens]))
        assert set(of_rounds(found)) == {k}
