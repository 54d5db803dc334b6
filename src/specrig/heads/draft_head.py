"""A head of decoder layers that follows a target: its cache, its weights, and the target's embedding and LM head.

After each pass of the target the head runs the states of the accepted tokens (`_take`) and keeps them in its cache; the
target has given them by then. What it drafted is dropped.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads.checkpoint import Checkpoint, check_vocabulary, untrained
from specrig.heads.markov import MarkovBias
from specrig.runtime import compiled
from specrig.runtime.attention import FULL
from specrig.runtime.decode_pass import compile_passes, round_weights
from specrig.runtime.device import on_device, padded
from specrig.runtime.linear import Float32Linear, Linear
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel


class DraftHead(Checkpoint, LlamaModel):
    """The head with its cache. B rows, D hidden width, V vocabulary, Vd the head's."""

    config_class: ClassVar[type[PreTrainedConfig]] = LlamaConfig
    target_layers: tuple[int, ...] = ()
    """The target's layers whose states it reads besides the final one."""
    norm: Tensor | None = None
    _every: Tensor
    _ids: Sequence[int] = ()
    checkpoint_order: Tensor | slice = slice(None)
    """Of the drafted tokens in the checkpoint, that makes their ids rise; rows of its LM head follow it."""
    markov: MarkovBias | None = None
    """Of the token before, for a head that drafts in one pass; None: there is none."""
    vocabulary: Tensor | None = None
    """`[Vd]` rising ids of the target's tokens that its logits are of; None: of all V."""

    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        CachedModel.__init__(self, config, device=target.device, dtype=target.dtype)
        self.patterns, self.pattern_of = [FULL], [0] * self.layers  # whatever its config repeats of the target's
        self._check(tensors, target)
        self.target, self.eps = target, config.rms_norm_eps
        # Rotary positions have no end; a head's configuration may name fewer than the target's.
        self.max_positions = max(self.max_positions, target.max_positions)
        self.embedding, self.head = shared(target)
        if (drafted := (getattr(config, "specrig", None) or {}).get("drafted")) is not None:
            token_ids = torch.tensor(drafted, device=self.device)
            check_vocabulary(token_ids, target.vocab_size, "specrig.drafted in its config")
            self.set_vocabulary(token_ids)
            self.head = self.head.select_outputs(self._every)
        weights = {
            name: tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
            for name, tensor in tensors.items()
        }
        own = weights.pop("embed_tokens.weight", None)
        if own is not None and not torch.equal(own, self.embedding):  # mostly it is the target's once more
            self.embedding = own
        self.take_weights(weights)
        self.rotary = LlamaRotaryEmbedding(config).to(self.device)
        self.q_heads = config.num_attention_heads
        self.skipped = frozenset()
        self.cos = self.sin = torch.empty(0)
        self._features = torch.empty(0)
        self._counts: list[int] = []
        self._ran = True
        self._base: list[int] = []
        compile_passes(self)
        if round_weights(self, self.title) and self.markov is not None:
            self.markov.round_weights()

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        self.check(self.config, tensors, target)

    def take_output(self, weights: dict[str, Tensor]) -> None:
        """Take a checkpoint's own LM head, where it has one, and the target's tokens that its rows are of: all, the
        first ones, or those that `d2t` names.
        """
        if (rows := weights.get("lm_head.weight")) is None:
            return
        offsets = weights.get("d2t")
        if offsets is None:
            offsets = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
        if len(rows) < self.config.vocab_size or bool(offsets.any()):
            self.set_vocabulary(torch.arange(len(rows), device=self.device) + offsets.long())
            rows = rows[self.checkpoint_order]
        self.head = Linear(rows)

    @classmethod
    def random_tensors(cls, config: Any, seed: int, deviation: float = 0.02) -> dict[str, Tensor]:
        """See `Checkpoint`: normal matrices, norms of one."""
        return untrained(cls.shapes(config), seed, deviation)

    @abstractmethod
    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""

    @abstractmethod
    def _take(self, rows: list[list[int]], features: Tensor) -> Any:
        """Run and keep, in each row, the true features `[B, n, D]` before the tokens `rows[b]`."""

    def set_vocabulary(self, token_ids: Tensor) -> None:
        """Draft none but the target's tokens `token_ids` `[Vd]`, in their rising `order`."""
        # Rising, so that the tokens below a bound are the first ones.
        self._every, self.checkpoint_order = token_ids.sort()
        self._ids = self._every.tolist()

    def limit_to_first(self, V: int) -> None:
        """Draft none but the target's first V tokens, and of a cut vocabulary those among them: what follows is
        padding, no text.
        """
        self.vocab_size = V
        if self._ids:
            self.vocab_size = bisect_left(self._ids, V)
            self.vocabulary = self._every[: self.vocab_size]

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of tokens of the head's own vocabulary, of any shape."""
        return draft_ids if self.vocabulary is None else self.vocabulary[draft_ids]

    def greedy_tree(
        self, logits: Tensor, least: Sequence[float], children: int, trust: float
    ) -> list[tuple[list[int], list[int], list[float]]] | None:
        """Of logits `[B, k, Vd]` each row's most promising nodes, by `compiled.greedy_tree`; None where it cannot.

        Returns each row's tokens of the target, their parents and their values.
        """
        supported = compiled.supports(logits.device, logits.dtype)
        if not least or not supported or logits.shape[-1] % compiled.vector_width():
            return None
        bias = None if self.markov is None else self.markov.compiled_for(logits)
        if self.markov is not None and bias is None:
            return None
        found = compiled.greedy_tree(logits, bias, self.vocabulary, least, min(children, logits.shape[-1]), trust)
        if self.vocabulary is None:
            return found
        return [([self._ids[place] for place in places], parents, values) for places, parents, values in found]

    def begin(self, rows: Sequence[Sequence[int]], features: Tensor) -> None:
        """Run the prompts but for each row's last position, which the first round runs. features: `[B, P, D]`, rows
        left-aligned.
        """
        self.limit_to_first(self.target.vocab_size)
        # States that wait while another method drafts are run behind the longest row, whichever row they are of.
        self.start(len(rows), self.target.cache.slots * (2 if len(rows) > 1 else 1))
        last = [len(tokens) - 2 for tokens in rows]  # the prompt's last position: its feature yields the first draft
        if max(last) > 0:
            entries = [list(tokens[1 : end + 1]) for tokens, end in zip(rows, last, strict=True)]
            self._take(entries, features[:, : max(last)])
        self._base = list(self.lengths)
        self.watch.clear()
        self._ran = True  # what waited was of other prompts
        self._wait(features, [[end] for end in last])

    def rewind(self) -> None:
        """Drop what was drafted."""
        self.cache.truncate(self._base)

    def accept(self, hidden: Tensor, paths: Sequence[Sequence[int]]) -> None:
        """Drop what was drafted, and set aside for the next time that the head runs the true features of the last token
        and the accepted path.

        hidden: `[B, n + 1, D]`, the target's states at the root and every node.
        """
        self.rewind()
        self._wait(hidden, [[0, *(node + 1 for node in path)] for path in paths])

    def _accepted(self, rows: Sequence[Sequence[int]], done: Sequence[bool]) -> list[list[int]]:
        """Of each row that is not over the tokens whose features were set aside; the head runs them now."""
        self._ran = True
        return [
            [] if over else list(tokens[-count:])
            for tokens, over, count in zip(rows, done or [False] * len(rows), self._counts, strict=True)
        ]

    def _wait(self, features: Tensor, positions: list[list[int]]) -> None:
        """Set aside the features at `positions[b]` of each row b, behind those that the head has not run."""
        if not self._ran:
            waiting = self._features.shape[1]
            features = torch.cat((self._features, features), 1)
            positions = [
                [*range(count), *(waiting + position for position in row)]
                for count, row in zip(self._counts, positions, strict=True)
            ]
        self._ran = False
        self._counts = [len(row) for row in positions]
        if len(positions) == 1:
            own, count = positions[0], len(positions[0])
            # A view where they follow each other, unless the target's next pass may overwrite what this one returned.
            if self.target.replay is None and own[-1] - own[0] < count:
                self._features = features[:, own[0] : own[0] + count]
            else:
                self._features = features.index_select(1, on_device(own, self.device))
            return
        index = padded(positions, max(self._counts), self.device)
        self._features = features[torch.arange(len(positions), device=self.device).unsqueeze(1), index]


def shared(target: CachedModel) -> tuple[Tensor, Linear]:
    """The target's embedding `[V, D]` and LM head: the same weights in a layer of its own, whose kernel is chosen for
    itself. Of a draft that is limited to some tokens, all rows: such a draft was trained here, and its LM head is its
    embedding.
    """
    if isinstance(target, LlamaModel):
        return target.embedding, copy.copy(target.head) if target.drafted is None else Linear(target.embedding)
    model: Any = target.model  # type: ignore[attr-defined]
    output = model.get_output_embeddings()
    bias = output.bias.detach() if getattr(output, "bias", None) is not None else None
    kind = Linear if output.weight.dtype == target.dtype else Float32Linear
    return model.get_input_embeddings().weight.detach(), kind(output.weight.detach(), bias)
