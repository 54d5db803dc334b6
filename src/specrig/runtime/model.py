"""A language model with a static cache: what the loop and the drafters run.

Two implementations of one forward pass, tested against each other: `llama_model` computes Llama-shaped architectures
directly, `transformers_model` calls the model's own `forward` and so runs any decoder-only architecture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.runtime.attention import FULL, layer_patterns
from specrig.runtime.cache import KeyValueCache, LayerShape
from specrig.runtime.device import Positions, Stopwatch, in_each, now, on_device, on_host, padded
from specrig.runtime.replay import Replay, Run, Unrecorded
from specrig.runtime.rotary import HeldTables, check_side
from specrig.runtime.tree_mask import ancestors, ancestors_on_device, pad_mask
from specrig.runtime.types import DecodingError, Parents

MAX_ALL_LOGITS = 16
"""Widest pass that computes all its logits where only one a row is needed, so that it can be replayed."""
MAX_RECORDED = 256
"""Widest pass that is replayed; wider ones are prompts."""
WINDOW = 256
"""Fewest cache slots that a replayed pass reads; more are a power of two of them."""


@dataclass(slots=True)
class Step:
    """The positions, cache slots and attention masks of a forward pass of n tokens.

    positions, slots: `[B, n]` positions in the text and cache slots to write to; slices where all rows are alike. end:
    the pass reads the cache's first `end` slots. masks: for each of the model's `patterns`, True where a token sees a
    slot, `[n, end]` or `[B, 1, n, end]`; None where every token sees every slot.
    fixed: no shape depends on the rows' lengths, so the pass can be replayed.
    first: the tokens begin the text in every row, and each sees those before it.
    """

    positions: Tensor | slice
    slots: Tensor | slice
    end: int
    masks: list[Tensor | None]
    fixed: bool = False
    first: bool = False

    def of_rows(self, rows: slice) -> Step:
        """The step of these rows alone, over the same slots."""

        def own(index: Tensor | slice) -> Tensor | slice:
            return index if isinstance(index, slice) else index[rows]

        masks = {id(mask): mask[rows] if mask.dim() == 4 else mask for mask in self.masks if mask is not None}
        shared = [None if mask is None else masks[id(mask)] for mask in self.masks]
        return replace(self, positions=own(self.positions), slots=own(self.slots), masks=shared)


@dataclass(slots=True)
class LevelStep:
    """A forward pass behind contexts of one length, of which no pattern hides a slot: compiled code lays it out itself.

    end: slots that it reads, its own included. parents: those of `CachedModel.forward`, on the host.
    """

    end: int
    parents: Sequence[Sequence[int]] | None

    def of_rows(self, rows: slice) -> LevelStep:
        """The step of these rows alone."""
        return replace(self, parents=None if self.parents is None else self.parents[rows])


class CachedModel(ABC):
    """A decoder-only model with its cache and a stopwatch over its bare forward passes.

    `forward` writes the tokens' keys and values behind each row's context; `keep` makes them part of it. On a GPU,
    decode passes are recorded and replayed (`runtime.replay`): the next pass of the same width overwrites the tensors
    that such a pass returns.
    """

    replays: ClassVar[bool] = True
    """Whether its passes can be recorded: nothing in them may run on the host or depend on it."""
    consecutive: ClassVar[bool] = False
    """Whether a pass's tokens stand one after another, whatever they see of each other."""
    rows: int
    """Tokens that the model's embedding and LM head hold, padding included."""
    vocab_size: int
    """V, the tokens that `forward` gives logits for: the target's, for its draft too (`models.weights`)."""
    order: Tensor | None = None
    """Of a model whose tokens are numbered anew: its own id of each, `[Vd]`, the V that it has logits for first."""
    slots_per_token: float = 1.0
    """Cache slots that it takes for each token of another model's text (`prefill_like`)."""
    choices: Tensor | None = None
    """The highest token of each of the last pass's logits, `[B, n]` int64, of equals the first; None: the pass named none."""

    def __init__(
        self, config: Any, *, device: torch.device, dtype: torch.dtype, layout: Sequence[LayerShape] | None = None
    ) -> None:
        """layout: what each layer writes to the cache; None: by the config's numbers of heads and their width."""
        text = config.get_text_config(decoder=True)
        self.config = text
        self.device, self.dtype = device, dtype
        self.rows = self.vocab_size = int(text.vocab_size)
        self.hidden_size: int = text.hidden_size
        self.layers: int = text.num_hidden_layers
        self.max_positions: int = getattr(text, "max_position_embeddings", None) or 1 << 20
        self.layout = list(layout or [_uniform(text)] * self.layers)
        self.kv_heads, self.head_width = self.layout[0][:2]
        reaches = layer_patterns(text)
        self.patterns = list(dict.fromkeys([FULL, *reaches]))
        self.pattern_of = [self.patterns.index(pattern) for pattern in reaches]  # a layer's
        self.cache = KeyValueCache([], 1, 0, dtype=dtype, device=device)
        self.watch = Stopwatch(device)
        self.replay = Replay(device) if device.type == "cuda" and self.replays else None
        self.aux_layers: tuple[int, ...] = ()  # the layers whose hidden states a pass collects
        self.aux_hidden_states: Tensor | None = None
        self._caches: dict[int, KeyValueCache] = {}
        self.tables: HeldTables | None = None  # of a model whose rotary tables depend on the length
        self._table_slots = 0  # the slots that tables of positions have been made for
        self._ancestry: dict[tuple[int, ...], Tensor] = {}

    @property
    def sees_ancestors(self) -> bool:
        """Whether a pass's tokens see the context, their ancestors and themselves, and nothing else."""
        return True

    def start(self, batch_size: int, slots: int) -> None:
        """A new batch: empty rows with room for `slots` positions each (allocations are kept and reused)."""
        cache = self._caches.get(batch_size)
        if cache is None or cache.slots < slots:
            room = -(-slots // 128) * 128 if self.replay is None else _window(slots)
            cache = self._caches[batch_size] = KeyValueCache(
                self.layout, batch_size, room, dtype=self.dtype, device=self.device
            )
            self.grow_tables(room)
            if self.replay is not None:
                self.replay.clear()
        cache.lengths = [0] * batch_size
        self.cache = cache
        self.watch.clear()

    def free_caches(self) -> None:
        """Give the caches' memory back, and what was timed."""
        self._caches.clear()
        self.cache = KeyValueCache([], 1, 0, dtype=self.dtype, device=self.device)
        self.aux_hidden_states = None
        self.watch.clear()

    def choose_tables(self, lengths: Sequence[int], new: int) -> None:
        """Take the rotary tables for prompts of these lengths and `new` more tokens each, where they depend on the length.

        Raises DecodingError where the texts do not all stay with one table (`runtime.rotary`).
        """
        if self.tables is not None:
            check_side(self.tables.at, list(lengths), new)
            self._take_tables(self.tables, max(lengths))

    def _take_tables(self, tables: HeldTables, length: int) -> None:
        if tables.choose(length):
            self._table_slots, slots = 0, self._table_slots
            self.grow_tables(slots)
            if self.replay is not None:
                self.replay.clear()

    def grow_tables(self, slots: int) -> None:
        """Make tables of positions for a cache of `slots` slots, where they are shorter."""
        if slots > self._table_slots:
            self._table_slots = slots
            self._grown(slots)

    def _grown(self, slots: int) -> None:  # noqa: B027
        """The cache now has `slots` positions; implementations extend their tables."""

    def _causal(self, start: int, end: int) -> Tensor:
        """What each of the tokens `[start, end)` of a chain sees of the slots before `end`: bool `[end - start, end]`."""
        if on_host(self.device):
            return torch.from_numpy(np.tri(end - start, end, start, dtype=bool))
        return torch.ones((end - start, end), dtype=torch.bool, device=self.device).tril(start)

    @property
    def lengths(self) -> list[int]:
        """Context length of every row."""
        return self.cache.lengths

    def now(self) -> float:
        """Seconds on a clock that has waited for the device."""
        return now(self.device)

    def forward(
        self,
        tokens: Tensor,
        *,
        parents: Parents | None = None,
        last: Positions | None = None,
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run `tokens` `[B, n]` behind each row's context: (logits `[B, n, V]`, hidden `[B, n, D]` after the final
        norm).

        parents: None for a chain; else per row and token the index of its predecessor in this pass, -1 for the context.
        last: one position a row, or m a row; logits are then computed for these alone, `[B, m, V]`.
        features: `[B, n, D]`, a second input of heads such as EAGLE's; None for a whole model.
        Raises DecodingError where the tokens do not fit the cache.
        """
        n, self.choices = tokens.shape[1], None
        if self.order is not None:
            tokens = self.order[tokens].clamp(max=self.rows - 1)
        elif self.rows < self.vocab_size:
            # The target writes tokens that this draft has no embedding of; its last one stands in. Any would do: what a
            # draft reads decides how much of what it proposes is accepted, and never what the target emits.
            tokens = tokens.clamp(max=self.rows - 1)
        self._prepare(tokens, parents, features, last)
        if self.replay is not None and n <= (MAX_RECORDED if last is None else MAX_ALL_LOGITS):
            run, inputs = self._recorded(self.replay, tokens, self._own(n, parents), features)
            mark = self.watch.start()
            logits, hidden, *aux = run(inputs)
            self.aux_hidden_states = aux[0][:, :n] if aux else None
            logits, hidden = logits[:, :n], hidden[:, :n]  # widths are rounded up
            if last is not None:
                logits = in_each(logits, last)
        else:
            mark = self.watch.start()
            logits, hidden = self._pass(tokens, parents, features, last)
        self.watch.stop(n, mark)
        if self.order is not None:
            return logits.index_select(-1, self.order[: self.vocab_size]), hidden
        return of_vocabulary(logits, self.vocab_size), hidden

    def _prepare(  # noqa: B027
        self, tokens: Tensor, parents: Parents | None, features: Tensor | None, last: Positions | None
    ) -> None:
        """Whatever is to be done before a pass and is no time of it."""

    def pad_passes(self) -> None:
        """From now on pad every pass to a multiple of 8 tokens, over a multiple of `WINDOW` cache slots.

        Kernels add in another order for 1 token than for 5, which decides ties in bfloat16. In passes of one shape they
        add in the same order.
        """
        if self.replay is None:
            self.replay = Unrecorded(self.device)
        self.replay.rows = 8

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Make some of the tokens just run part of the context: their indices per row, rising."""
        self.cache.keep(nodes)

    def renumber(self, order: Tensor | None, count: int) -> None:
        """Number the tokens anew: what is token i from now on is `order[i]`, and only the first `count` have logits.

        None: every token keeps its id.
        """
        self.order, self.vocab_size = order, count

    def prefill_like(self, other: CachedModel, rows: Sequence[Sequence[int]], done: Sequence[bool]) -> None:
        """Start a batch with as much room as `other`'s and run `rows`, each but for its last token. The stopwatch does
        not count this.
        """
        longest, room = max(map(len, rows)) - 1, other.cache.slots - max(other.lengths)
        self.start(other.cache.batch_size, longest + int(self.slots_per_token * room))
        if self.tables is not None:  # a draft's text may cross: its drafts get worse, the target's output does not
            self._take_tables(self.tables, max(map(len, rows)))
        self.catch_up(rows, done, hold_last=True)
        self.watch.clear()

    def catch_up(self, rows: Sequence[Sequence[int]], done: Sequence[bool], *, hold_last: bool = False) -> Tensor:
        """Run and keep the tokens of every unfinished row that are not in the cache; returns next-token logits `[B,
        V]`.

        hold_last: leave each row's last token out; the next call runs it.
        """
        end = -1 if hold_last else None
        new = [
            [] if over else list(row[length:end]) for row, over, length in zip(rows, done, self.lengths, strict=True)
        ]
        # Rows share a pass's columns: what a short row lacks may not fit behind the longest one, and then runs in parts.
        while max(map(len, new)) > (room := max(1, self.cache.slots - max(self.lengths))):
            part = [row[:room] if len(row) > room else [] for row in new]
            self.forward(padded(part, room, self.device), last=[0] * len(part))
            self.keep([range(len(row)) for row in part])
            new = [row[len(run) :] for row, run in zip(new, part, strict=True)]
        tokens = padded(new, max(1, *map(len, new)), self.device)
        logits, _ = self.forward(tokens, last=[max(len(row) - 1, 0) for row in new])
        self.keep([range(len(row)) for row in new])
        return logits[:, 0]

    def pass_totals(self) -> dict[int, tuple[int, float]]:
        """Bare forward passes since `start`: width -> (calls, seconds)."""
        return self.watch.totals()

    def _pass(
        self, tokens: Tensor, parents: Parents | None, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        """What `forward` returns, of a pass that is not replayed."""
        n = tokens.shape[1]
        return self._run(tokens, self._step(n, self._own(n, parents)), features, last)

    @abstractmethod
    def _run(
        self, tokens: Tensor, step: Step, features: Tensor | None, last: Positions | None
    ) -> tuple[Tensor, Tensor]:
        """What `forward` returns, of a pass whose step is laid out."""

    def _bases(self) -> list[int]:
        """Per row the length of the context that all of a pass's tokens see."""
        return self.cache.lengths

    def _own(self, n: int, parents: Parents | None) -> Tensor | None:
        """What each of the n tokens sees beyond the context: `[B, n, m]`, True for itself and its ancestors; None for a
        chain. The columns are the last m tokens in the cache after the pass, which end with the pass's own n.
        """
        if parents is None:
            return None
        if isinstance(parents, Tensor):
            if not on_host(self.device):
                return ancestors_on_device(parents)
            parents = parents.tolist()
        first = tuple(parents[0])
        shared = all(row is parents[0] or tuple(row) == first for row in parents[1:])
        known = self._ancestry.get(first) if shared else None
        if known is None:
            known = ancestors([first] if shared else parents).to(self.device)
            if shared:  # a static tree is met every round
                if len(self._ancestry) >= 256:  # trees that change every round push the oldest out
                    del self._ancestry[next(iter(self._ancestry))]
                self._ancestry[first] = known
        return known.expand(len(parents), -1, -1)

    def _check_room(self, end: int) -> None:
        if end > self.cache.slots:
            raise DecodingError(
                f"{end} positions do not fit the cache of {self.cache.slots}: lower k or the size of the tree"
            )

    def _step(self, n: int, own: Tensor | None) -> Step:
        start = max(self.cache.lengths)
        end = start + n
        self._check_room(end)
        slots = slice(start, end)
        if self.cache.aligned and own is None:
            causal = None if n == 1 else self._causal(start, end)
            masks = [causal] * len(self.patterns)
            for number, pattern in enumerate(self.patterns):
                if pattern.hides_any(end):
                    positions = torch.arange(end, device=self.device)
                    visible = pattern.visible(positions[start:].unsqueeze(-1), positions)
                    masks[number] = visible if causal is None else causal & visible
            return Step(slots, slots, end, masks, first=start == 0)
        if (
            own is not None
            and self.cache.aligned
            and on_host(self.device)
            and not any(pattern.hides_any(end) for pattern in self.patterns)
        ):
            return self._place_aligned(n, own, end)
        step = self._place(n, on_device(self._bases(), self.device), own, end)
        if self.cache.aligned:
            step.slots = slots
        return step

    def _place_aligned(self, n: int, own: Tensor, end: int) -> Step:
        """`_place` on the host, behind contexts of one length that no pattern hides."""
        base = end - own.shape[-1]
        seen = np.ones((len(own), 1, n, end), bool)
        seen[:, 0, :, base:] = own.numpy()
        depths = np.broadcast_to(np.arange(n), own.shape[:2]) if self.consecutive else own.numpy().sum(-1) - 1
        positions = torch.from_numpy(base + depths)
        return Step(positions, slice(end - n, end), end, [torch.from_numpy(seen)] * len(self.patterns))

    def _place(self, n: int, base: Tensor, own: Tensor | None, end: int) -> Step:
        """The step of n tokens behind contexts of lengths `base` `[B]`. own: see `_own`; end: slots that are read."""
        if own is None:
            own = self._causal(0, n).expand(len(base), n, n)
        m = own.shape[-1]
        base = base.unsqueeze(1)
        # Each slot's distance behind the row's context, [B, end]: below 0 it is context, 0 to m - 1 is a column of
        # `own`, from m on it is unused.
        behind = torch.arange(end, device=self.device) - base
        # What each token sees, [B, n, end]: all of the context, and what `own` says of the slots behind it.
        column = behind.clamp(0, m - 1).unsqueeze(1).expand(-1, n, -1)
        seen = own.gather(-1, column) & (behind < m).unsqueeze(1) | (behind < 0).unsqueeze(1)
        slots = base + torch.arange(m - n, m, device=self.device)
        # A token's position is the context's length plus its depth in the tree, that is the number of its ancestors.
        positions = base + (torch.arange(n, device=self.device) if self.consecutive else own.sum(-1) - 1)
        masks: list[Tensor | None] = [seen.unsqueeze(1)] * len(self.patterns)
        for number, pattern in enumerate(self.patterns):
            if pattern.hides_any(end):
                # A context slot's position is its index; a slot of the pass has its node's.
                held = torch.where(behind < 0, behind + base, positions.gather(-1, behind.clamp(0, m - 1)))
                masks[number] = (seen & pattern.visible(positions.unsqueeze(-1), held.unsqueeze(1))).unsqueeze(1)
        return Step(positions, slots, end, masks)

    def _recorded(
        self, replay: Replay, tokens: Tensor, own: Tensor | None, features: Tensor | None
    ) -> tuple[Run, list[Tensor]]:
        """A recording of this pass, and its inputs. Widths above 8 are rounded up to multiples of 8: few shapes."""
        n = tokens.shape[1]
        extra = -n % (8 if n > 8 else replay.rows)
        bases = self._bases()
        reach = max(bases) + (n if own is None else own.shape[-1]) + extra
        self._check_room(reach)
        # Tokens added by the rounding see only the context and themselves. No token sees them; `forward` cuts them off.
        inputs = [F.pad(tokens, (0, extra)), on_device(bases, self.device)]
        if own is not None:
            inputs.append(pad_mask(own, extra))
        if features is not None:
            inputs.append(F.pad(features, (0, 0, 0, extra)))
        end, is_tree, has_features = min(_window(reach), self.cache.slots), own is not None, features is not None
        key = end, is_tree, has_features, self.aux_layers
        return replay.recorded(key, partial(self._fixed, end, is_tree, has_features), inputs), inputs

    def _fixed(
        self, end: int, is_tree: bool, has_features: bool, tokens: Tensor, base: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """A pass that launches the same kernels for all values of its inputs, so that it can be recorded.

        end: the slots that are read. is_tree: the first of `rest` is `_own`'s matrix. has_features: the last of `rest`
        are features `[B, n, D]`.
        """
        step = self._place(tokens.shape[1], base, rest[0] if is_tree else None, end)
        step.fixed = True
        logits, hidden = self._run(tokens, step, rest[-1] if has_features else None, None)
        aux = self.aux_hidden_states if self.aux_layers else None
        return (logits, hidden) if aux is None else (logits, hidden, aux)


def of_vocabulary(logits: Tensor, V: int) -> Tensor:
    """Logits `[..., rows]` as logits of the first V tokens, `[..., V]`: minus infinity for those that have no row."""
    rows = logits.shape[-1]
    if rows < V:
        return F.pad(logits, (0, V - rows), value=-torch.inf)
    return logits if rows == V else logits[..., :V]


def _uniform(config: Any) -> LayerShape:
    """What each layer writes of a model whose layers are alike."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return LayerShape(getattr(config, "num_key_value_heads", None) or heads, width, width)


def _window(slots: int) -> int:
    """The power of two, at least WINDOW, that holds so many slots."""
    return max(WINDOW, 1 << (slots - 1).bit_length())
