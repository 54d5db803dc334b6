"""`CachedModel` over any decoder-only transformers model whose layers keep keys and values, through the model's own
`forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.pytorch_utils import Conv1D

from specrig.runtime import agreement
from specrig.runtime.cache import KeyValueCache, LayerShape
from specrig.runtime.decode_pass import compile_passes, compile_products, round_weights
from specrig.runtime.device import Positions, constant, in_each, spans
from specrig.runtime.linear import Float32Linear, Linear
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel, Step
from specrig.runtime.rotary import HeldTables, rotary_modules, switch_of
from specrig.runtime.types import DecodingError


class _CacheView(Cache):
    """The interface that transformers models write to; the memory is our KeyValueCache."""

    def __init__(self, cache: KeyValueCache, step: Step) -> None:
        super().__init__(layers=[])
        self.memory, self.step = cache, step
        self._slots: Tensor | slice = step.slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if isinstance(self._slots, Tensor) and self._slots.device != key_states.device:
            self._slots = self._slots.to(key_states.device)  # for this layer and the next ones on its device
        return self.memory.write(layer_idx, key_states, value_states, self._slots, self.step.end)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.memory.lengths)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.step.end, 0


class TransformersModel(CachedModel):
    """Runs `model(...)` with explicit positions and a 4-D mask for each pattern of attention, over our cache."""

    replays = False

    def __init__(
        self, model: Any, *, device: torch.device, dtype: torch.dtype, layout: Sequence[LayerShape] | None = None
    ) -> None:
        """`model`: a loaded `…ForCausalLM` in eval mode on `device`; layout: what its layers write to a cache
        (`CachedModel`).

        Its layers may lie on several devices (`models.split`), if all else is on `device`: it then moves what passes
        between them itself.

        Raises DecodingError where layers of one type differ in their window: a model takes one mask a type.
        """
        super().__init__(model.config, device=device, dtype=dtype, layout=layout)
        used = [self.patterns[number] for number in sorted(set(self.pattern_of))]
        if len({pattern.kind for pattern in used}) < len(used):
            raise DecodingError(
                f"its windows are of {', '.join(str(pattern.size) for pattern in used)} tokens: one a layer, "
                "not one a type"
            )
        self.model = model

    @torch.inference_mode()
    def _run(
        self, tokens: Tensor, step: Step, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        B, n = tokens.shape
        if isinstance(step.positions, slice):
            positions = torch.arange(step.positions.start, step.positions.stop, device=self.device).expand(B, n)
        else:
            positions = step.positions
        # Tokens that no row can emit may lie beyond the context's end: tables of positions have no entry for them.
        positions = positions.clamp(max=self.max_positions - 1)
        # The model computes the logits itself (some scale or cap them), of every position that some row needs.
        rows = spans(last or ())
        needed = tuple(sorted({at for row in rows for at in row}))
        output = self.model(
            **({"input_ids": tokens} if features is None else {"inputs_embeds": features}),
            position_ids=positions,
            attention_mask=self._masks(step, B, n),
            past_key_values=_CacheView(self.cache, step),
            use_cache=True,
            output_hidden_states=True,
            logits_to_keep=constant(needed, self.device) if needed else 0,
        )
        if self.aux_layers:
            self.aux_hidden_states = torch.cat([output.hidden_states[layer] for layer in self.aux_layers], -1)
        logits = output.logits
        if last is not None:
            firsts = [needed.index(row.start) for row in rows]
            logits = in_each(logits, [range(first, first + len(row)) for first, row in zip(firsts, rows, strict=True)])
        return logits, output.hidden_states[-1]

    def _masks(self, step: Step, B: int, n: int) -> Tensor | dict[str, Tensor]:
        """Per type of layer what is added to its scores, `[B, 1, n, end]`; one tensor where all layers see the same."""
        made: dict[int, Tensor] = {}
        for mask in step.masks:
            if id(mask) not in made:
                every = torch.ones(1, step.end, dtype=torch.bool, device=self.device) if mask is None else mask
                # Additive form: every attention implementation takes it.
                added = torch.zeros(every.shape, dtype=self.dtype, device=self.device)
                added.masked_fill_(~every, torch.finfo(self.dtype).min)
                made[id(mask)] = added.view(-1, 1, *added.shape[-2:]).expand(B, 1, n, step.end)
        by_type: dict[str, Tensor] = {self.patterns[at].kind: made[id(step.masks[at])] for at in self.pattern_of}
        return by_type if len(by_type) > 1 else next(iter(by_type.values()))


def _replace_products(model: nn.Module) -> None:
    """Let `Linear` multiply in the place of a model's own linear layers. Layers of a form of their own, such as quantized
    ones and the stacked experts of a mixture, stay as they are.
    """
    products, layers = list[Linear](), list[Any](model.modules())
    for layer in layers:
        if type(layer) in (nn.Linear, Conv1D):  # of a subclass it is not known what else it does
            weight = layer.weight.detach() if type(layer) is nn.Linear else layer.weight.detach().t()
            products.append(Linear(weight, None if layer.bias is None else layer.bias.detach(), few_rows=False))
            vars(layer)["forward"] = products[-1]  # what a module calls
    compile_products(products)


def float32_logits(model: CachedModel) -> None:
    """From now on compute the logits of a wrapped model in float32, from the hidden states as they are.

    bfloat16 logits near 20 are multiples of 0.125, so the two best tokens are often equal. The LM head's weight is kept
    in float32.
    """
    if isinstance(model, LlamaModel):
        model.head = Float32Linear(model.head.weight)
        model.compiled = None  # compiled passes have an LM head of the model's precision
        return
    assert isinstance(model, TransformersModel)
    head = model.model.get_output_embeddings()
    vars(head).pop("forward", None)  # a product of the model's precision (`_replace_products`)
    for name, weight in list(head.named_parameters(recurse=False)):  # its own: the embedding may share it
        setattr(head, name, torch.nn.Parameter(weight.detach().float(), requires_grad=False))
    head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))


def cached_model(
    model: Any, *, device: torch.device | str = "cpu", direct: bool = True, drafts: bool = False
) -> CachedModel:
    """Wrap a loaded `…ForCausalLM`: directly where the architecture allows (and `direct`), else through its own
    forward.

    A model that lies on several devices, the first of which is `device`, always runs through its own.

    drafts: it is a draft model, so it drafts only the token ids that its config names under `specrig.drafted`, if any.

    Raises DecodingError for a model whose logits over our cache are not its own (`agreement`).
    """
    model = model.eval()
    device = torch.device(device)
    direct = direct and LlamaModel.serves(model.config)
    if device.type == "cpu" and not direct:
        # Before the reference: in bfloat16 another order of sums changes some models' logits much.
        _replace_products(model)
    switch = switch_of(model.config.get_text_config(decoder=True).to_dict())
    reference = agreement.reference_pass(model, device)
    beyond = None if switch is None else agreement.reference_pass(model, device, first=switch)
    tables = None if switch is None else HeldTables(rotary_modules(model), switch)
    wrapped: CachedModel
    split = any(shape.device is not None for shape in reference.layout)
    if direct and not split:
        wrapped = LlamaModel(model, device=device, dtype=model.dtype)
        compile_passes(wrapped)
    else:
        wrapped = TransformersModel(model, device=device, dtype=model.dtype, layout=reference.layout)
    if tables is not None:
        wrapped.tables = tables
        wrapped.choose_tables([max(map(len, reference.rows))], 0)
    agreement.check(wrapped, reference)
    if tables is not None and beyond is not None:  # also on the other side of the switch
        wrapped.choose_tables([tables.at + 1], 0)
        agreement.check(wrapped, beyond)
        wrapped.choose_tables([1], 0)
    drafted = (getattr(wrapped.config, "specrig", None) or {}).get("drafted")
    if drafts and drafted is not None and isinstance(wrapped, LlamaModel):
        wrapped.limit_vocabulary(torch.tensor(drafted, device=device))
    if drafts:
        round_weights(wrapped, "draft")
    return wrapped
