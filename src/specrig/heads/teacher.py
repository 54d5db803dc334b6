"""The target as a teacher: any causal language model of transformers, read from a model folder.

Heads and draft learn from its states after the final norm, which its LM head reads, and from its logits. Shapes: B
sequences, T tokens, D hidden, V vocabulary, Vd the tokens that a draft may offer, F auxiliary hidden states.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.errors import first_line
from specrig.heads.base import TrainingError
from specrig.runtime.linear import multiplies_bfloat16
from specrig.runtime.whole import load_whole, named_ends

_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
"""What architectures call the norm before the LM head."""
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "tokenizer.model",
    "vocab.json", "merges.txt",
)  # fmt: skip


def moved(tensor: Tensor, where: torch.device) -> Tensor:
    """`tensor` on `where`. It goes to a GPU from pinned memory, so that the host does not wait for the copy."""
    if tensor.device.type == where.type:
        return tensor
    return tensor.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else tensor.to(where)


def rows_at_once(where: torch.device) -> int:
    """How many sequences go through a model at once without gradients: few on a CPU, so that they fit its cache."""
    return 16 if where.type == "cpu" else 64


def product_dtype(where: torch.device) -> torch.dtype:
    """In what training multiplies matrices: bfloat16, but float32 on a processor that has no products for it. There
    bfloat16 takes nine to twenty times as long.
    """
    return torch.float32 if where.type == "cpu" and not multiplies_bfloat16() else torch.bfloat16


def autocast(where: torch.device) -> torch.autocast:
    """`product_dtype` for matrix products; weights, optimiser and losses stay float32."""
    return torch.autocast(where.type, torch.bfloat16, enabled=product_dtype(where) == torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LMHead:
    """An LM head over some tokens: weight `[Vd, D]`, bias `[Vd]` or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""
        return F.linear(hidden, self.weight, self.bias)

    def subset(self, vocabulary: Tensor | None) -> LMHead:
        """The rows of the tokens `vocabulary` `[Vd]` alone; None: of all."""
        if vocabulary is None:
            return self
        return LMHead(self.weight[vocabulary].contiguous(), None if self.bias is None else self.bias[vocabulary])


class Teacher:
    """A frozen causal language model. Matrix products run in `product_dtype`, the residual stream in the weights' own
    precision, or in bfloat16 where that is float16 and products are bfloat16's.
    """

    def __init__(self, model: Any, eos: tuple[int, ...], where: torch.device) -> None:
        """`model`: a `…ForCausalLM`. Raises TrainingError for one whose logits are more than its LM head's product."""
        self.products = product_dtype(where)
        if self.products == torch.float32:
            model = model.float()  # what is narrower would be widened at each product
        elif model.dtype == torch.float16:
            model = model.bfloat16()  # as autocast's products read it; autocast joins no float16 with bfloat16
        self.model = model.to(where).eval().requires_grad_(False)
        self.where, self.eos = where, eos
        self.config = model.config.get_text_config(decoder=True)
        self.body: nn.Module = model.base_model
        self.hidden: int = self.config.hidden_size
        self.layers: int = self.config.num_hidden_layers
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()
        head = model.get_output_embeddings()
        bias = getattr(head, "bias", None)
        self.output = LMHead(head.weight.detach(), None if bias is None else bias.detach())
        self.vocabulary: int = len(self.output.weight)
        self._check()

    @torch.no_grad()
    def _check(self) -> None:
        tokens = torch.arange(8, device=self.where).clamp(max=self.vocabulary - 1).unsqueeze(0)
        own_logits = self.model(input_ids=tokens, use_cache=False).logits.float()
        own = self.logits(self.body(input_ids=tokens, use_cache=False).last_hidden_state).float()
        if own_logits.shape != own.shape or (own_logits - own).abs().max() > 0.02 * own_logits.abs().max() + 1e-3:
            raise TrainingError(
                f"a {self.config.model_type} model scales or caps its logits after its LM head; drafts and heads "
                "cannot be trained for it: they would learn from other logits than its own. Take methods that train "
                "nothing (such as ngram or suffix), or another target"
            )

    def forward(self, tokens: Tensor) -> Tensor:
        """`[B, T]` -> the states after the final norm `[B, T, D]`, with gradients where its weights learn."""
        with autocast(self.where):
            hidden: Tensor = self.body(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    @torch.no_grad()
    def states(self, tokens: Tensor, aux_layers: tuple[int, ...] = ()) -> Tensor:
        """Of tokens `[B, T]` the states after the final norm, `[B, T, (F + 1) D]`, behind those after the F
        `aux_layers`: j is the one after j layers.
        """
        with autocast(self.where):
            found: Any = self.body(input_ids=tokens, use_cache=False, output_hidden_states=bool(aux_layers))
        return torch.cat((*(found.hidden_states[layer] for layer in aux_layers), found.last_hidden_state), -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., D]` -> `[..., V]`."""
        return self.output(hidden)

    @torch.no_grad()
    def final_norm(self) -> Tensor:
        """The scale `[D]` of the norm before the LM head; ones where it has no name that is known.

        Some norms multiply by 1 + weight, and LayerNorm adds a bias. So the scale is read off what the norm makes of
        alternating signs, which are normed already, and of their opposites.
        """
        signs = torch.ones(self.hidden, device=self.where, dtype=self.embedding.dtype)
        signs[1::2] = -1
        for name in _FINAL_NORMS:
            norm = getattr(self.body, name, None)
            if norm is not None:
                scale: Tensor = (norm(signs) - norm(-signs)) / 2 * signs
                return scale
        return signs.abs()

    def outer(self) -> Iterable[Tensor]:
        """See `outer`."""
        return outer(self.model)


def outer(model: Any) -> list[Tensor]:
    """A model's matrices whose rows are tokens or positions: the optimiser treats them apart."""
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    return [*embeddings, model.get_output_embeddings().weight]


def load_teacher(folder: Path, where: torch.device, *, learns: bool = False) -> Teacher:
    """The model of a folder, in the precision it is stored in; in float32 where its weights are to learn.

    Raises TrainingError for a folder that transformers cannot load, that names no end token, or whose model cannot
    teach.
    """
    model, ends = read_model(folder, torch.float32 if learns else "auto"), end_tokens(folder)
    try:
        return Teacher(model, ends, where)
    except TrainingError as error:
        raise TrainingError(f"{folder}: {error}") from error


def read_model(folder: Path, dtype: Any) -> Any:
    """The `…ForCausalLM` of a folder. Raises TrainingError for one that transformers cannot read."""
    try:
        return load_whole(str(folder), dtype=dtype)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise TrainingError(f"{folder}: transformers cannot load this model ({first_line(error)})") from error


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The ids that end a text, by the folder's generation config, else its config. Raises TrainingError where neither
    names one.
    """
    for file in (folder / "generation_config.json", folder / "config.json"):
        try:
            ends = named_ends(json.loads(file.read_bytes())) if file.is_file() else None
        except (AttributeError, ValueError, RecursionError) as error:
            raise TrainingError(f"{file}: it cannot be read ({first_line(error)}); correct it") from error
        if ends is not None:
            return ends
    raise TrainingError(
        f"{folder}: no eos_token_id in generation_config.json or config.json; add the ids that end a text"
    )


def copy_tokenizer(source: Path, out: Path) -> None:
    """Give the model folder `out` the tokenizer and the chat template of `source`."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def weight_files(folder: Path) -> list[Path]:
    """The weights of a model folder, in one file or in several."""
    return sorted(folder.glob("*.safetensors"))
