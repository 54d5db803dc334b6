"""Llama-shaped models, computed directly from their weights: a third of the Python and kernel launches of
transformers' own forward, which are most of a small model's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.runtime.compiled import MAX_TOKENS
from specrig.runtime.device import Positions, in_each
from specrig.runtime.layer import DecoderLayer
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel, LevelStep, Step
from specrig.runtime.pointwise import Arithmetic, fused, rotate, signed, swiglu
from specrig.runtime.replay import Replay
from specrig.runtime.types import Parents

MAX_GROUPED = 64
"""Most tokens a row for which attention on a processor lays out grouped heads as queries, with a mask for each."""
TIMED = 2
"""Wide passes that are timed in torch and in compiled code."""
LLAMA_SHAPED = {"llama", "mistral", "qwen2", "qwen3"}
"""Architectures of `LlamaModel`: pre-norm RMSNorm, rotary positions, SwiGLU, optional qkv bias and q/k norms."""


@dataclass(frozen=True, slots=True)
class View:
    """What all layers share of a step: the rotary tables of its positions, and its masks.

    cos, sin: `[n, 1, d]` or `[B, n, 1, d]`. masks: one for each of the model's patterns, True where a query sees a key;
    where attention is `grouped` (recorded passes, and decode passes on a processor) an additive bias `[B, 1, H/K · n,
    end]` instead (see `attend_grouped`); None where a token sees every slot up to its own.
    """

    step: Step
    cos: Tensor
    sin: Tensor
    masks: list[Tensor | None]
    grouped: bool = False
    rotate: Arithmetic = rotate
    swiglu: Arithmetic = swiglu


class CompiledPass(Protocol):
    """Passes of a few tokens in compiled code (`decode_pass.DecodePass`)."""

    wide: bool | None
    """Whether it also runs passes of more than `MAX_TOKENS` tokens, some rows at a time; None: not timed yet."""

    def __call__(
        self, tokens: Tensor, step: Step | LevelStep, last: Positions | None, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `CachedModel._run`."""

    def pruned(self, model: LlamaModel) -> CompiledPass:
        """Passes of `model`, a copy of this one's that leaves layers out."""

    def replace_head(self, head: Linear) -> None:
        """Compute logits with another LM head from now on."""


class LlamaModel(CachedModel):
    """Direct forward pass of a Llama-shaped model, with fused projections."""

    drafted: Tensor | None = None
    """`[Vd]` token ids that it has logits for (`limit_vocabulary`), minus infinity for the others; None: all."""
    entry_norms: tuple[Tensor, Tensor] | None = None
    """Of a head whose attention reads the token's embedding and its feature side by side, each normed: these norms'
    weights `[D]`.
    """
    entry_fc: Linear | None = None
    """Of such a head, where a pass makes the feature itself: the layer that makes it of what `forward` is given."""
    compiled: CompiledPass | None = None
    """Runs passes of a few tokens in compiled code; None where torch runs them."""

    def __init__(self, model: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        """`model`: a loaded `…ForCausalLM`; its weights are taken over, the module can be dropped."""
        super().__init__(model.config, device=device, dtype=dtype)
        body = model.model
        self.rotary = body.rotary_emb
        self.embedding = body.embed_tokens.weight.detach()
        self.head = Linear(model.lm_head.weight.detach(), few_rows=False)
        self.norm = body.norm.weight.detach()
        self.eps: float = self.config.rms_norm_eps
        self.q_heads: int = self.config.num_attention_heads
        self.blocks = [DecoderLayer.of(layer.state_dict(), "", self.config, few_rows=False) for layer in body.layers]
        self.skipped: frozenset[int] = frozenset()  # layers left out (`runtime.pruned`)
        self.cos = self.sin = torch.empty(0)

    def linears(self) -> list[Linear]:
        """All products of a pass."""
        return [
            *(layer for block in self.blocks for layer in (block.qkv, block.out, block.gate_up, block.down)),
            self.head,
        ]

    def weight_bytes(self) -> int:
        """Bytes of the weights of all products: what a pass of one token reads."""
        return sum(layer.weight.numel() * layer.weight.dtype.itemsize for layer in self.linears())

    @staticmethod
    def serves(config: Any) -> bool:
        """Whether this class computes the architecture (else `TransformersModel` does)."""
        return config.model_type in LLAMA_SHAPED and getattr(config, "hidden_act", "silu") == "silu"

    def _grown(self, slots: int) -> None:
        # Not beyond the context's end, where some models would scale all their frequencies by the cache's size.
        positions = torch.arange(slots, device=self.device).clamp(max=self.max_positions - 1).unsqueeze(0)
        cos, sin = self.rotary(self.embedding[:1].unsqueeze(0), positions)
        self.cos, self.sin = cos[0].to(self.dtype), signed(sin[0]).to(self.dtype)

    def view(self, step: Step) -> View:
        """The `View` of a step."""
        # [n, 1, d] for level rows, [B, n, 1, d] for ragged ones or trees.
        cos, sin = self.cos[step.positions].unsqueeze(-2), self.sin[step.positions].unsqueeze(-2)
        grouped = step.fixed or (
            self.device.type == "cpu" and self.q_heads != self.kv_heads and cos.shape[-3] <= MAX_GROUPED
        )
        masks = step.masks
        if grouped:
            # Patterns that hide nothing more share one mask.
            shared = {id(mask): self.bias(mask) for mask in masks if mask is not None}
            masks = [shared.get(id(mask)) for mask in masks]
        elif step.first:
            # A kernel that knows the mask's shape skips what it hides: half of a prompt's attention, with the same sums.
            hides = [pattern.hides_any(step.end) for pattern in self.patterns]
            masks = [mask if more else None for mask, more in zip(masks, hides, strict=True)]
        if not step.fixed:
            return View(step, cos, sin, masks, grouped)
        # Only for passes that are recorded: to compile for a prompt's every length would cost more than it gains.
        kind = self.device.type
        return View(step, cos, sin, masks, grouped, fused(rotate, kind), fused(swiglu, kind))

    def bias(self, mask: Tensor) -> Tensor:
        """The mask `[n, end]` or `[B, 1, n, end]` of True where a token sees a slot as `attend_grouped` adds it."""
        mask = mask.view(-1, 1, *mask.shape[-2:])
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(~mask, -torch.inf)
        return bias.repeat(1, 1, self.q_heads // self.kv_heads, 1)

    def attend_grouped(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of H query heads `[B, H, n, d]` over K key heads `[B, K, end, d]`, for kernels without grouped
        heads.

        The H/K query heads that share a key head become H/K · n queries of that head. mask: additive, `[B, 1, H/K · n,
        end]`. A processor's kernel has grouped heads, but is three to seven times as fast in bfloat16 this way.
        """
        B, H, n, d = q.shape
        K = self.kv_heads
        # Kernels lay their result out as they like: a GPU's has the heads behind the tokens.
        attended = F.scaled_dot_product_attention(q.reshape(B, K, H // K * n, d), keys, values, attn_mask=mask)
        return attended.reshape(B, H, n, d)

    def block(self, index: int, block: DecoderLayer, x: Tensor, view: View, reads: Tensor | None = None) -> Tensor:
        """Run layer `index` on hidden states x `[B, n, D]`, which may be overwritten; keys and values go to the cache.
        reads: see `DecoderLayer`.
        """
        found: Tensor = block(x, partial(self._attend, index, view), reads, view.swiglu)
        return found

    def _attend(self, index: int, view: View, qk: Tensor, v: Tensor) -> Tensor:
        """See `layer.Attention`: attention of layer `index` over the cache."""
        B, n, H, K = *qk.shape[:2], self.q_heads, self.kv_heads
        qk, v = view.rotate(qk, view.cos, view.sin).transpose(1, 2), v.transpose(1, 2)
        # The cache takes keys and values [B, K, n, d] and gives those of all slots up to `end`.
        keys, values = self.cache.write(index, qk[:, H:], v, view.step.slots, view.step.end)
        mask = view.masks[self.pattern_of[index]]
        if view.grouped:
            attended = self.attend_grouped(qk[:, :H], keys, values, mask)
        else:
            attended = F.scaled_dot_product_attention(
                qk[:, :H], keys, values, attn_mask=mask, is_causal=mask is None and n > 1, enable_gqa=H != K
            )
        return attended.transpose(1, 2).reshape(B, n, H * self.head_width)  # heads joined again

    def _pass(
        self, tokens: Tensor, parents: Parents | None, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        compiled, end = self._compiled_for(tokens), self.lengths[0] + tokens.shape[1]
        if (
            compiled is None
            or isinstance(parents, Tensor)
            or not (self.sees_ancestors and self.cache.aligned)
            or any(pattern.hides_any(end) for pattern in self.patterns)
        ):
            return super()._pass(tokens, parents, features, last)
        self._check_room(end)
        logits, hidden = compiled(tokens, LevelStep(end, parents), last, features)
        return self._full_logits(logits), hidden

    def _compiled_for(self, tokens: Tensor) -> CompiledPass | None:
        """What runs a pass of these tokens; None: torch does."""
        if self.compiled is None or self.cache.scattered:
            return None
        fits = tokens.numel() <= MAX_TOKENS or (tokens.shape[1] <= MAX_TOKENS and self.compiled.wide)
        return self.compiled if fits else None

    def _prepare(
        self, tokens: Tensor, parents: Parents | None, features: Tensor | None, last: Positions | None
    ) -> None:
        """Choose what runs passes of more tokens than compiled code runs at once, by running the first one both ways."""
        compiled = self.compiled
        if not tokens.shape[1] <= MAX_TOKENS < tokens.numel() or compiled is None or compiled.wide is not None:
            return
        if self.replay is not None or self.cache.scattered:
            return
        began, seconds = self.now(), {False: inf, True: inf}
        try:
            for compiled.wide in (False, True) * TIMED:
                started = self.now()
                self._pass(tokens, parents, features, last)
                seconds[compiled.wide] = min(seconds[compiled.wide], self.now() - started)
        except BaseException:
            compiled.wide = None
            raise
        compiled.wide, self.choices = seconds[True] < seconds[False], None
        Replay.spent += self.now() - began  # a warm-up has them, but for that of a batch with fewer rows

    def _run(
        self, tokens: Tensor, step: Step, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        compiled = None if step.fixed else self._compiled_for(tokens)
        if compiled is not None:
            logits, hidden = compiled(tokens, step, last, features)
            return self._full_logits(logits), hidden
        hidden = self._hidden(tokens, step, features)
        return self._logits(hidden if last is None else in_each(hidden, last)), hidden

    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """A head's input: the hidden states before its layer `[B, n, D]`, and what attention reads `[B, n, R]`.

        None for a model: it begins with the tokens' embeddings, and attention reads the normed hidden states.
        """
        return None

    @torch.inference_mode()
    def _hidden(self, tokens: Tensor, step: Step, features: Tensor | None) -> Tensor:
        x, view = F.embedding(tokens, self.embedding), self.view(step)
        collected = []
        for index, block in enumerate(self.blocks):
            if index in self.aux_layers:
                collected.append(x.clone())  # layers may add to it in place
            if index not in self.skipped:
                x = self.block(index, block, x, view)
        if collected:
            self.aux_hidden_states = torch.cat(collected, -1)
        return F.rms_norm(x, (x.shape[-1],), self.norm, self.eps)

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self._full_logits(self.head(hidden))

    def _full_logits(self, logits: Tensor) -> Tensor:
        """The LM head's logits as logits of the whole vocabulary, `[..., V]`."""
        if self.drafted is None:
            return logits
        return logits.new_full((*logits.shape[:-1], len(self.embedding)), -torch.inf).index_copy_(
            -1, self.drafted, logits
        )

    def limit_vocabulary(self, drafted: Tensor) -> None:
        """Compute logits of the tokens `drafted` `[Vd]` only: a large LM head is most of a small draft's pass."""
        self.head, self.drafted = self.head.select_outputs(drafted), drafted
        if self.compiled is not None:
            self.compiled.replace_head(self.head)
