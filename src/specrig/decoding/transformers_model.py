"""`CachedModel` over any decoder-only transformers model, through the model's own `forward`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specrig.decoding.cache import KeyValueCache
from specrig.decoding.llama_model import LlamaModel
from specrig.decoding.model import CachedModel, Step


class _CacheView(Cache):
    """The face that transformers models write to; the memory is our KeyValueCache."""

    def __init__(self, cache: KeyValueCache, step: Step) -> None:
        super().__init__(layers=[])
        self.memory, self.step = cache, step

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.memory.write(layer_idx, key_states, value_states, self.step.slots, self.step.end)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.memory.lengths)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.step.end, 0


class TransformersModel(CachedModel):
    """Runs `model(...)` with explicit positions and a 4-D mask over our cache."""

    replays = False

    def __init__(self, model: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        """`model`: a loaded `…ForCausalLM` in eval mode on `device`."""
        super().__init__(model.config, device=device, dtype=dtype)
        self.model = model
        self._output_logits: Tensor | None = None

    @torch.inference_mode()
    def _hidden(self, tokens: Tensor, step: Step, features: Tensor | None) -> Tensor:
        B, n = tokens.shape
        if isinstance(step.positions, slice):
            positions = torch.arange(step.positions.start, step.positions.stop, device=self.device).expand(B, n)
        else:
            positions = step.positions
        mask = step.mask if step.mask is not None else torch.ones(1, step.end, dtype=torch.bool, device=self.device)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        # Additive form: every attention implementation takes it.
        additive = torch.zeros(mask.shape, dtype=self.dtype, device=self.device)
        additive.masked_fill_(~mask, torch.finfo(self.dtype).min)
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=additive.expand(B, 1, n, step.end),
            past_key_values=_CacheView(self.cache, step),
            use_cache=True,
            output_hidden_states=True,
        )
        if self.feature_layers:
            self.features = torch.cat([output.hidden_states[layer] for layer in self.feature_layers], -1)
        self._output_logits = output.logits
        return output.hidden_states[-1]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits, self._output_logits = self._output_logits, None
        assert logits is not None
        if hidden.shape[1] == logits.shape[1]:
            return logits
        return self.model.get_output_embeddings()(hidden)


def cached_model(model: Any, *, device: torch.device | str = "cpu", direct: bool = True) -> CachedModel:
    """Wrap a loaded `…ForCausalLM`: directly where the architecture allows (and `direct`), else through its own forward."""
    model = model.eval()
    device = torch.device(device)
    chosen = LlamaModel if direct and LlamaModel.serves(model.config) else TransformersModel
    return chosen(model, device=device, dtype=model.dtype)
