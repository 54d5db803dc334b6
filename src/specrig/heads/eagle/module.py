"""The EAGLE head: one decoder layer that continues the target's features (Li et al., 2401.15077, section 4.1).

The feature of position t is the target's hidden state after the final norm, which its LM head reads to predict token t
+ 1. From the feature of t and the embedding of token t + 1 the head predicts the feature of t + 1, and the target's own
LM head turns that into the distribution of token t + 2. The head goes on without the target by reading the features
that it predicted itself.

    tokens     x0  x1  x2  x3       context: prompt and output so far, x3 not yet run by the target
    features   f0  f1  f2           true, from target passes
    entries    f0+x1  f1+x2  f2+x3  -> f3', and LM head(f3') drafts x4; then f3'+x4 -> f4' and so on

The head's cache holds such entries. Entries made of true features stay. Entries made of predicted features are dropped
after each round; for the accepted tokens they are computed again from the true features, which the target's pass has
given by then.

Checkpoint (what vLLM loads): config.json of a Llama with one layer, model.safetensors with `fc.weight` `[D, 2D]`
(embedding first), `layers.0.{self_attn,mlp}.*` and `layers.0.post_attention_layernorm.weight`; no input norm, no final
norm, no embedding, no LM head.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads.checkpoint import Shapes, check_vocabulary, faults, read, untrained, write
from specrig.heads.layer import layer_like, layer_of
from specrig.runtime.attention import FULL
from specrig.runtime.decode_pass import compile_passes
from specrig.runtime.device import at_each, padded
from specrig.runtime.linear import Float32Linear, Linear
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel, Step
from specrig.runtime.types import DecodingError, Parents

if TYPE_CHECKING:
    from pathlib import Path

_NOT_READ = ("embed_tokens.weight", "t2d")
"""What published checkpoints hold besides: the target's embedding again, and which of its tokens `d2t` reaches (a mask
`[V]`).
"""


class EagleHead(LlamaModel):
    """The head with its cache, and with the target's embedding and LM head. B rows, D hidden width, V vocabulary, Vd
    the head's.
    """

    title: ClassVar[str] = "EAGLE"
    norm: Tensor | None = None
    _every: Tensor
    _ids: Sequence[int] = ()
    vocabulary: Tensor | None = None
    """`[Vd]` rising ids of the target's tokens that its logits are of; None: of all V."""

    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        """`tensors`: see the module; they take the target's device and precision. Raises DecodingError where they do
        not fit.
        """
        CachedModel.__init__(self, config, device=target.device, dtype=target.dtype)
        self.patterns, self.pattern_of = [FULL], [0]  # whatever its config repeats of the target's
        self._check(tensors, target)
        self.target = target
        self.embedding, self.head = shared(target)
        if (drafted := (getattr(config, "specrig", None) or {}).get("drafted")) is not None:
            token_ids = torch.tensor(drafted, device=self.device)
            check_vocabulary(token_ids, target.vocab_size, "specrig.drafted in its config")
            self.cut_to(token_ids)
            self.head = self.head.select_outputs(self._every)
        self.take_weights(
            {
                n: tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
                for n, tensor in tensors.items()
            }
        )
        self.rotary = LlamaRotaryEmbedding(config).to(self.device)
        self.eps = config.rms_norm_eps
        self.q_heads = config.num_attention_heads
        self.cos = self.sin = torch.empty(0)
        self._features = torch.empty(0)
        self._counts: list[int] = []
        self._base: list[int] = []
        self._above: Tensor | None = None
        compile_passes(self)

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        if self.hidden_size != target.hidden_size:
            raise DecodingError(
                f"the head is for a hidden size of {self.hidden_size}, the target's is {target.hidden_size}"
            )
        if wrong := faults(tensors, self.tensor_shapes()):
            raise DecodingError(f"not an {self.title} head of this target: {wrong}")

    def tensor_shapes(self) -> Shapes:
        """What its checkpoint must hold."""
        return shapes(self.config)

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layer from the checkpoint's tensors."""
        self.fc = Linear(weights["fc.weight"])
        self.blocks = [layer_of(weights, "layers.0")]

    def cut_to(self, token_ids: Tensor) -> Tensor:
        """Draft none but the target's tokens `token_ids` `[Vd]`; returns the order that makes them rise, which its LM head
        must follow.
        """
        # Rising, so that the tokens below a bound are the first ones.
        self._every, order = token_ids.sort()
        self._ids = self._every.tolist()
        return order

    def run(self, tokens: Tensor, features: Tensor, *, last: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Entries of `tokens` `[B, n]`, each with the `features` `[B, n, D]` of the position before it, behind the
        cache.

        Returns logits `[B, n, Vd]` of the tokens that follow (with `last` `[B, 1, Vd]`) and the predicted features `[B,
        n, D]`.
        """
        return self.forward(tokens, last=last, features=features)

    def offer_first(self, V: int) -> None:
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

    def begin(self, rows: Sequence[Sequence[int]], features: Tensor) -> None:
        """Run the prompts' entries but for each row's last, which `advance` runs. features: `[B, P, D]`, rows
        left-aligned.
        """
        self.offer_first(self.target.vocab_size)
        self.start_like(self.target)
        self._above = None
        last = [len(tokens) - 2 for tokens in rows]  # the prompt's last position: its feature yields the first draft
        if max(last) > 0:
            entries = [list(tokens[1 : end + 1]) for tokens, end in zip(rows, last, strict=True)]
            self._take(entries, features[:, : max(last)])
        self._base = list(self.lengths)
        self.watch.clear()
        self._wait(features, [[end] for end in last])

    def advance(self, rows: Sequence[Sequence[int]], done: Sequence[bool] = ()) -> tuple[Tensor, Tensor]:
        """Run the entries of the tokens that were accepted; returns next-token logits `[B, Vd]` and the last token's
        predicted feature `[B, D]`. rows: the contexts; done: which of them are over, none by default.
        """
        accepted = [
            [] if over else list(tokens[-count:])
            for tokens, over, count in zip(rows, done or [False] * len(rows), self._counts, strict=True)
        ]
        logits, features = self._take(accepted, self._features)
        self._base = list(self.lengths)
        return logits[:, 0], at_each(features, [max(len(row) - 1, 0) for row in accepted])

    def step(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Run one drafted token a row, `[B]`, with the predicted `features` `[B, D]` before it; returns logits `[B,
        Vd]`, feature `[B, D]`.
        """
        logits, predicted = self.run(tokens.unsqueeze(1), features.unsqueeze(1))
        self.keep([[0]] * len(tokens))
        return logits[:, 0], predicted[:, 0]

    def branch(self, tokens: Tensor, features: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run one level of a tree: `tokens` `[B, w]`, each with its parent's `features` `[B, w, D]`.

        Returns logits `[B, w, Vd]` and predicted features `[B, w, D]`. above: `[B, w]`, each node's parent among the
        nodes of the level before; None for the first level. Only the new level runs: it sees the context and its
        ancestors, whose entries are in the cache.
        """
        B, w = tokens.shape
        # own: [B, w, m], what each node sees among the m nodes of all levels so far: what its parent sees, and itself.
        own = torch.eye(w, dtype=torch.bool, device=self.device).expand(B, w, w)
        if above is not None:
            assert self._above is not None
            lineage = self._above.gather(1, above.unsqueeze(-1).expand(-1, -1, self._above.shape[-1]))
            own = torch.cat((lineage, own), -1)
        self._above = own
        result = self.run(tokens, features)
        self.keep([range(w)] * B)
        return result

    def rewind(self) -> None:
        """Drop every entry made of a predicted feature."""
        self.cache.truncate(self._base)
        self._above = None

    def accept(self, hidden: Tensor, paths: Sequence[Sequence[int]]) -> None:
        """Drop the predicted entries, and set aside for `advance` the true features of the last token and the accepted
        path.

        hidden: `[B, n + 1, D]`, the target's states at the root and every node.
        """
        self.rewind()
        self._wait(hidden, [[0, *(node + 1 for node in path)] for path in paths])

    def _wait(self, features: Tensor, positions: list[list[int]]) -> None:
        """Set aside the features at `positions[b]` of each row b for the next `advance`."""
        self._counts = [len(row) for row in positions]
        width = max(self._counts)
        index = padded(positions, width, self.device)
        self._features = features[torch.arange(len(positions), device=self.device).unsqueeze(1), index]

    def _take(self, rows: list[list[int]], features: Tensor) -> tuple[Tensor, Tensor]:
        """Run and keep entries of true features; returns logits behind each row's last entry `[B, 1, Vd]` and features
        `[B, n, D]`.
        """
        width = features.shape[1]
        result = self.run(padded(rows, width, self.device), features, last=[max(len(row) - 1, 0) for row in rows])
        self.keep([range(len(row)) for row in rows])
        return result

    def _bases(self) -> list[int]:
        return self.lengths if self._above is None else self._base

    def _own(self, n: int, parents: Parents | None) -> Tensor | None:
        return super()._own(n, parents) if self._above is None else self._above

    @torch.inference_mode()
    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LlamaModel.entry`."""
        assert features is not None
        # [B, n, 2D] -> [B, n, D]. There is no input norm: attention reads the residual stream itself.
        x = self.fc(torch.cat((F.embedding(tokens, self.embedding), features), -1))
        return x, x

    @torch.inference_mode()
    def _hidden(self, tokens: Tensor, step: Step, features: Tensor | None) -> Tensor:
        x, reads = self.entry(tokens, features)
        return self.block(0, self.blocks[0], x, self.view(step), reads)


Head = TypeVar("Head", bound=EagleHead)


def head_config(target: Any, drafted: Tensor | None = None) -> Any:
    """The configuration of a head for a target with this configuration: a Llama of one layer with the target's sizes.

    drafted: `[Vd]`, the tokens that it can draft, None: all. vLLM, which knows no such key, then drafts among all.
    """
    own = {} if drafted is None else {"specrig": {"drafted": drafted.tolist()}}
    return LlamaConfig(
        **own,
        **layer_like(target.get_text_config(decoder=True)),
        num_hidden_layers=1,
        architectures=["EagleLlamaForCausalLM"],
    )


def shapes(config: Any) -> Shapes:
    """Tensor names of a checkpoint and their shapes."""
    return {"fc.weight": (config.hidden_size, 2 * config.hidden_size)} | layer_shapes(
        config, "layers.0", config.hidden_size
    )


def layer_shapes(config: Any, name: str, reads: int) -> Shapes:
    """Of the decoder layer `name`, whose attention projects vectors of width `reads`."""
    D, intermediate = config.hidden_size, config.intermediate_size
    width = getattr(config, "head_dim", None) or D // config.num_attention_heads
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    return {
        f"{name}.self_attn.q_proj.weight": (queries, reads),
        f"{name}.self_attn.k_proj.weight": (keys, reads),
        f"{name}.self_attn.v_proj.weight": (keys, reads),
        f"{name}.self_attn.o_proj.weight": (D, queries),
        f"{name}.mlp.gate_proj.weight": (intermediate, D),
        f"{name}.mlp.up_proj.weight": (intermediate, D),
        f"{name}.mlp.down_proj.weight": (D, intermediate),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def random_tensors(config: Any, seed: int, deviation: float = 0.02) -> dict[str, Tensor]:
    """Weights of an untrained head: normal matrices, norms of one."""
    return untrained(shapes(config), seed, deviation)


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


def save(folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors (fp32)."""
    write(folder, config, tensors, shapes(config))


def load(folder: Path, target: CachedModel) -> EagleHead:
    """Read a head's folder for this target. Raises DecodingError where it is no EAGLE head of it."""
    return load_as(EagleHead, folder, target)


def load_as(kind: type[Head], folder: Path, target: CachedModel) -> Head:
    """Read a folder as that kind of head. Raises DecodingError where it does not hold one."""
    try:
        config = LlamaConfig.from_pretrained(folder)
        tensors = read(folder)
    except OSError as error:
        raise DecodingError(f"{folder}: no {kind.title} head there ({str(error).splitlines()[0]})") from error
    for name in _NOT_READ:
        tensors.pop(name, None)
    try:
        return kind(config, tensors, target)
    except DecodingError as error:
        raise DecodingError(f"{folder}: {error}") from error


def shared(target: CachedModel) -> tuple[Tensor, Linear]:
    """The target's embedding `[V, D]` and LM head: the same weights in a layer of its own, whose kernel is chosen for
    itself.
    """
    if isinstance(target, LlamaModel):
        return target.embedding, copy.copy(target.head)
    model: Any = target.model  # type: ignore[attr-defined]
    output = model.get_output_embeddings()
    bias = output.bias.detach() if getattr(output, "bias", None) is not None else None
    kind = Linear if output.weight.dtype == target.dtype else Float32Linear
    return model.get_input_embeddings().weight.detach(), kind(output.weight.detach(), bias)
