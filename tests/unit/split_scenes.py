"""Scenes with a target that lies on two pretended devices (`pretended`). `python split_scenes.py FOLDER` runs all; it
prints name -> outcome.

A scene returns what differs from the same target on one device, "" where nothing does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # its threads would know nothing of pretended devices

import pretended
import torch
from accelerate import dispatch_model
from architectures import VOCABULARY, tiny

from specrig.audit import toy_pair as toy_pair
from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.engines.transformers import Transformers
from specrig.models import split
from specrig.models.pair import PairFiles
from specrig.models.random_weights import random_model
from specrig.runtime.cache import KeyValueCache
from specrig.runtime.transformers_model import TransformersModel, cached_model, float32_logits
from specrig.runtime.types import DecodingError

FIRST, SECOND = DEVICES = "npy:0", "npy:1"
"""Where the target lies."""
PROMPTS = [list(toy_pair.PROMPT), list(toy_pair.PROMPT[4:])]
REMOTE = {"remote_draft"}
"""Its draft runs in another process, which knows no pretended devices."""
SHAPE = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
ALIKE = {"adaptive_k", "naive_batching", "rest", "suffix", "suffix_blend", "suffix_hybrid", "suffix_p_eagle"}
"""They use the target's tensors as another method does."""
METHODS = sorted(registry().keys() - REMOTE - ALIKE)
SAMPLED = ("draft_model", "layer_skip", "tree")
"""Methods that are also tried above temperature 0."""


def _cell(method: str, k: int, **options: Any) -> Cell:
    named = {"engine": "native", "pair": "toy_pair", "task": "-", "temperature": 0.0, "batch_size": 2, "options": {}}
    return Cell.model_validate({"method": method, "k": k, **named, **options})


def _decoded(engine: Any, cell: Cell) -> list[tuple[list[int], list[int]]]:
    """Of each prompt the tokens, and how many of a round's drafted ones were accepted."""
    made = engine.generate(cell, PROMPTS[: cell.batch_size], max_new_tokens=8, seeds=[3, 4][: cell.batch_size])
    return [(generation.tokens, [each.accepted for each in generation.rounds]) for generation in made]


class ToyPairs:
    """The toy pair in the native engine, whole and split."""

    def __init__(self, folder: Path) -> None:
        needs = {need for method in METHODS for need in registry()[method].needs}
        self.pair = toy_pair.build(folder, sorted(needs))
        self.whole = Native(self.pair)
        with pretended.devices():
            self.split = Native(replace(self.pair, tensor_parallel=2), device=FIRST)

    def decode(self, method: str, temperature: float) -> str:
        cell = _cell(method, 3 if registry()[method].uses_k else 0, temperature=temperature)
        expected = _decoded(self.whole, cell)
        with pretended.devices():
            found = _decoded(self.split, cell)
        return "" if found == expected else f"{found} instead of {expected}"

    def placed(self) -> str:
        """Layers and caches lie on both devices, all else on the first."""
        target = self.split.target
        assert isinstance(target, TransformersModel)
        layers = [str(next(layer.parameters()).device) for layer in target.model.model.layers]
        caches = [str(keys.device) for keys, _ in target.cache.layers]
        others = {
            str(weight.device)
            for name, weight in target.model.named_parameters()
            if not name.startswith("model.layers.")
        }
        stacks = sorted(str(stack.device) for stack in target.cache._stacks)
        found = (layers == caches, sorted(set(layers)), others, stacks)
        expected = (True, [FIRST, SECOND], {FIRST}, [FIRST] * 2 + [SECOND] * 2)
        return "" if found == expected else f"{found} instead of {expected}"


def architecture(name: str, beside: int = 0) -> str:
    """A batch of two rows of different length, a tree and a chain on it, features and logits in float32."""
    source = tiny(name)
    whole, model = cached_model(source, direct=False), tiny(name)
    with pretended.devices():
        device_map = split.device_map(model, DEVICES, beside)
        model = dispatch_model(model, device_map, skip_keys=model._skip_keys_device_placement)
        found = _walk(cached_model(model, device=FIRST), FIRST)
    expected = _walk(whole, "cpu")
    differences = [float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)]
    return "" if max(differences) < 1e-4 else f"logits differ by {differences}"


def _walk(model: Any, device: str) -> list[torch.Tensor]:
    rows = [[(7 * at + row) % VOCABULARY for at in range(12 + row)] for row in range(2)]
    float32_logits(model)
    model.aux_layers = (1, 2)
    model.start(2, 64)
    seen = [model.catch_up(rows, [False, False])]
    tree = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]], device=device)
    seen += [*model.forward(tree, parents=[[-1, -1, 0, 1]] * 2), model.aux_hidden_states]
    model.keep([[1, 3], [0]])
    seen += [*model.forward(torch.tensor([[9, 3], [4, 8]], device=device)), model.aux_hidden_states]
    assert {str(tensor.device) for tensor in seen} == {device}
    return [tensor.cpu() for tensor in seen]


def misplaced() -> str:
    """What is left on the first device is noticed, not computed."""
    with patch.object(KeyValueCache, "_rows_at", lambda self, _: self._rows):
        try:
            return f"not noticed ({architecture('llama')})"
        except DecodingError as error:
            return "" if f"tensors on {FIRST}, {SECOND}" in str(error) else str(error)


def random_weights() -> str:
    """Shapes alone are split as well."""
    with pretended.devices():
        model = random_model(SHAPE, devices=DEVICES, dtype=torch.float32)
        model.start(1, 32)
        logits = model.catch_up([[1, 2, 3]], [False])
    return "" if logits.isfinite().all() and {shape.device for shape in model.layout} != {None} else "not split"


def transformers(pair: PairFiles) -> str:
    """The audit's reference: transformers' own generation."""
    cell = _cell("autoregressive", 0, engine="transformers", batch_size=1)
    expected = _decoded(Transformers(pair), cell)
    with pretended.devices():
        engine = Transformers(replace(pair, tensor_parallel=2), device=FIRST)
        found = _decoded(engine, cell)
    return "" if found == expected else f"{found} instead of {expected}"


def scenes(folder: Path) -> dict[str, Callable[[], str]]:
    """Name -> scene."""
    lab = ToyPairs(folder)
    requested = [*((method, 0.0) for method in METHODS), *((method, 1.0) for method in SAMPLED)]
    decoded = {f"{method} at {t:g}": lambda m=method, t=t: lab.decode(m, t) for method, t in requested}
    kinds = {
        f"architecture {name}": lambda n=name: architecture(n) for name in ("llama", "gemma4_text", "gpt2", "mistral")
    }
    others = {
        "placed": lab.placed,
        "misplaced": misplaced,
        "no layer on the first": lambda: architecture("llama", beside=1 << 30),
        "random weights": random_weights,
        "transformers": lambda: transformers(lab.pair.only(())),
    }
    return decoded | kinds | others


def main() -> None:
    """Print name -> outcome, a scene's traceback where it fails."""
    pretended.register()
    split.devices_of = lambda pair, device: list(DEVICES) if device != "cpu" and pair.tensor_parallel > 1 else [device]
    Transformers.now = lambda _: 0.0  # type: ignore[method-assign]  # nothing here has a clock
    found = {}
    for name, scene in scenes(Path(sys.argv[1])).items():
        try:
            found[name] = scene()
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
