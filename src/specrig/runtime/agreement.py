"""Does a model give the same logits over our cache as by itself? Checked when a model is loaded, with a few tokens.

Speculation runs trees whose siblings have one position, batches whose rows differ in length, and contexts that are cut
back when a draft is rejected. An architecture with a state that cannot be rolled back, or that counts positions along
its cache, would silently go wrong, in plain decoding as well, which is the reference of everything else. So the model's
own forward pass runs first, without our code. A prompt, a tree, and tokens behind its kept path must then give the same
logits over our cache. Four small passes in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers import __version__ as transformers_version
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from specrig.errors import first_line
from specrig.runtime.attention import layer_patterns
from specrig.runtime.cache import LayerShape
from specrig.runtime.device import padded
from specrig.runtime.model import CachedModel
from specrig.runtime.types import DecodingError

TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 2e-1}
"""Largest relative difference (`relative_difference`) that rounding explains. In bfloat16 another order of sums makes .03 to
.11 of SmolLM2 and Gemma 3 270M.
"""
CONTEXT = 8
"""Tokens before the tree; more for models with a window, which the tree must lie beyond."""
WIDEST_WINDOW = 64
"""Windows up to here are filled, and wider ones where `MOST_WORK` allows; the audit compares with longer prompts
(`audit.reference`).
"""
MOST_WORK = 3e11
"""Operations that filling a window may take: seconds on two cores."""
PARENTS = (-1, -1, 0, 1)
"""The tree: two siblings, each with a child."""
BRANCHES = ((0, 2), (1, 3))
"""Its paths; the second is kept."""
FOLLOWING = 2
"""Tokens that follow the kept path."""


@dataclass(frozen=True, slots=True)
class ModelReference:
    """What a model's own forward pass gives for two rows of different length.

    rows: their contexts, then the tree's tokens, then the tokens that follow its kept path. branches: per row and path
    of the tree the logits `[n, V]` from the context's last token on. layout: what each layer wrote to its own cache.
    """

    rows: list[list[int]]
    branches: list[list[Tensor]]
    layout: list[LayerShape]


@torch.inference_mode()
def reference_pass(model: Any, device: torch.device, first: int = 0) -> ModelReference:
    """Run a loaded `…ForCausalLM` once, by itself. Raises DecodingError where its cache cannot be rolled back.

    first: the texts' first position, for a model whose rotary tables change at some length: from there on it uses the
    others, of which only differences of positions count, so that no long text has to be run.
    """
    text = model.config.get_text_config(decoder=True)
    windows = [pattern.size for pattern in layer_patterns(text)]
    passed = 2 * len(BRANCHES) * sum(weight.numel() for weight in model.parameters())  # weights a position, of all rows
    fill = max((size for size in windows if size <= WIDEST_WINDOW or 2 * size * passed <= MOST_WORK), default=0)
    tokens = len(PARENTS) + FOLLOWING
    room = (getattr(text, "max_position_embeddings", None) or 1 << 20) - tokens
    lengths = [min(max(CONTEXT, fill + 4), room), min(max(CONTEXT, fill + 4), room) - 3]
    rows = [
        [(37 * (at + 5 * row) + 11) % text.vocab_size for at in range(length + tokens)]
        for row, length in enumerate(lengths)
    ]
    paths = []
    for row, length in zip(rows, lengths, strict=True):
        for branch in BRANCHES:
            following = row[length + len(PARENTS) :] if branch == BRANCHES[-1] else []
            paths.append([*row[:length], *(row[length + node] for node in branch), *following])
    inputs = padded(paths, max(map(len, paths)), device)
    places = {"position_ids": first + torch.arange(inputs.shape[1], device=device).unsqueeze(0)} if first else {}
    output = model(input_ids=inputs, use_cache=True, **places)
    logits = [output.logits[index, lengths[index // 2] - 1 : len(path)] for index, path in enumerate(paths)]
    if not all(bool(found.isfinite().all()) for found in logits):
        raise DecodingError(
            f"its own forward pass gives logits that are no numbers in {model.dtype}; try another dtype"
        )
    return ModelReference(
        rows, [logits[:2], logits[2:]], layout(getattr(output, "past_key_values", None), output.logits.device)
    )


def layout(cache: Any, home: torch.device) -> list[LayerShape]:
    """What each layer wrote to a model's own cache, and on which device if not `home`, which has the logits.

    Raises DecodingError where that is not keys and values of every token.
    """
    layers = cache.layers if isinstance(cache, Cache) else []
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    others = {type(layer).__name__ for layer in layers if type(layer) not in plain or layer.keys is None}
    if others or not layers:
        kept = ", ".join(sorted(others)) or "no cache of keys and values"
        raise DecodingError(
            f"it keeps more than keys and values of each token ({kept}), which cannot be rolled back when drafts are "
            "rejected"
        )
    return [
        LayerShape(
            layer.keys.shape[1],
            layer.keys.shape[3],
            layer.values.shape[3],
            None if layer.keys.device == home else layer.keys.device,
        )
        for layer in layers
    ]


def check(model: CachedModel, reference: ModelReference) -> None:
    """Compare a wrapped model with the reference. Raises DecodingError where it differs, or fails."""
    replay, model.replay = model.replay, None  # nothing is recorded for so few passes
    try:
        difference = _difference(model, reference)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)
        raise DecodingError(
            f"its forward pass fails over a cache that can be rolled back ({type(error).__name__}: {reason})"
        ) from error
    finally:
        model.replay = replay
        model.free_caches()
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE[torch.float32])
    if not difference <= tolerance:
        raise DecodingError(
            f"over a cache that can be rolled back its logits are not its own: they differ by {difference:.2g} of "
            f"their spread, and rounding explains {tolerance:g}"
        )


def _difference(model: CachedModel, reference: ModelReference) -> float:
    """`relative_difference` over all tokens."""
    after = len(PARENTS) + FOLLOWING
    contexts = [row[:-after] for row in reference.rows]
    model.start(len(contexts), max(map(len, reference.rows)))
    prompt = model.catch_up(contexts, [False] * len(contexts))
    trees = torch.tensor([row[-after:-FOLLOWING] for row in reference.rows], device=model.device)
    nodes, _ = model.forward(trees, parents=[list(PARENTS)] * len(contexts))
    model.keep([list(BRANCHES[-1])] * len(contexts))
    following, _ = model.forward(torch.tensor([row[-FOLLOWING:] for row in reference.rows], device=model.device))
    found, expected = [], []
    for row, (first, second) in enumerate(reference.branches):
        found += [prompt[row : row + 1], nodes[row, list(BRANCHES[0])], nodes[row, list(BRANCHES[1])], following[row]]
        expected += [first, second[1:]]
    return relative_difference(torch.cat(found), torch.cat(expected)[:, : model.vocab_size])


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """RMS of the differences of logits `[n, V]`, over the RMS of `expected` around each row's mean."""
    found, expected = found.double(), expected.double()
    spread = expected - expected.mean(-1, keepdim=True)
    return float((found - expected).norm() / spread.norm())


def check_architecture(config: Any) -> None:
    """Raise DecodingError where transformers' config or class of an architecture does not fit our cache; reads no
    weights.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        raise DecodingError(f"transformers {transformers_version} has no …ForCausalLM for {config.model_type}")
    kind = kind[0] if isinstance(kind, tuple) else kind
    layer_patterns(config.get_text_config(decoder=True))
    if kind._is_stateful:
        raise DecodingError("it keeps a state, which cannot be rolled back when drafts are rejected")
    if "position_ids" not in signature(kind.forward).parameters:
        raise DecodingError(
            "it takes no positions: a tree's siblings have one position, which it would count along its cache"
        )
