"""Where a pair's tokenizer and models come from: folders and the hub, or shapes alone. Importing this loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from specrig.errors import first_line
from specrig.models import facts, needs, split
from specrig.models.gate import (
    check_draft,
    check_model,
    config,
    config_of,
    other_vocabulary,
    stop_ids,
    targets_tokenizer,
    vocab_size,
)
from specrig.models.hub import tokenizer
from specrig.models.pair import ModelError, PairFiles
from specrig.models.vocabularies import TokenMap, token_map
from specrig.runtime.whole import load_whole

if TYPE_CHECKING:
    import torch

    from specrig.runtime.model import CachedModel


NOT_NATIVE = "the native engine cannot decode with it"


class Weights(ABC):
    """A pair's tokenizer, the ids that end a sequence, and its models."""

    tokenizer: Any
    eos: frozenset[int]
    vocab_size: int
    """V, the target's tokens. The logits of a draft of the same vocabulary are of these too, whatever rows it has."""
    difference: str | None = None
    """In what the draft's vocabulary is another than the target's; None: it is the same."""

    def __init__(self, pair: PairFiles) -> None:
        self.pair = pair
        self._tokens: dict[bool, TokenMap] = {}

    def tokens(self, *, strings: bool) -> TokenMap | None:
        """How the tokens of target and draft stand for each other; None where the vocabulary is the same. Raises ModelError
        where they have nothing in common.
        """
        pair = self.pair
        if self.difference is None or pair.draft is None:
            return None
        if strings not in self._tokens:
            self._tokens[strings] = token_map(
                pair.target, pair.draft, pair.target_revision, pair.draft_revision, strings=strings
            )
        return self._tokens[strings]

    @abstractmethod
    def cached(self, part: str, device: str) -> CachedModel:
        """`target` or `draft`, ready for the native loop. Raises ModelError."""

    @abstractmethod
    def model(self, part: str, device: str) -> Any:
        """`target` or `draft` as a `…ForCausalLM` of the pair's precision. Raises ModelError where it cannot be loaded."""

    def devices(self, part: str, device: str) -> list[str]:
        """Where `target` or `draft` lies: a split target on several GPUs. Raises ModelError where these or accelerate
        are missing.
        """
        return split.devices_of(self.pair, device) if part == "target" else [device]

    def beside(self) -> int:
        """Bytes of the draft's weights, which lie on a split target's first GPU; 0 where there is none or its size is
        not known.
        """
        shape = facts.shape_of(config_of(self.pair).get("draft"))
        return 0 if shape is None else shape.weight_bytes(self.pair.dtype)

    def dtype(self) -> torch.dtype:
        """The pair's precision. Raises ModelError for what is none."""
        import torch

        found = getattr(torch, self.pair.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ModelError(
                f"pair {self.pair.name}: dtype {self.pair.dtype!r} is no torch dtype; use float32, bfloat16 or float16"
            )
        return found


class PretrainedWeights(Weights):
    """Models with their weights, from folders or the hub. Raises ModelError for a pair that the gate refuses."""

    def __init__(self, pair: PairFiles, *, drafts: bool = False) -> None:
        """drafts: the target is itself a draft, of a target that another process runs. The pair's draft is checked when
        it is loaded, so that a broken one fails only the cells that need it.
        """
        super().__init__(pair)
        self._drafts = drafts
        check_model(pair.target, pair.target_revision, drafts=drafts)
        # A draft that was trained here may have its target's tokenizer, which is not in its folder.
        borrowed = drafts and targets_tokenizer(pair.target)
        self.tokenizer = None if borrowed else tokenizer(pair.target, pair.target_revision)
        self.eos = frozenset(stop_ids(pair.target, pair.target_revision))
        self.vocab_size = vocab_size(pair.target, pair.target_revision, drafts=drafts)
        if pair.draft is not None:
            with suppress(ModelError):  # said when the draft is loaded
                self.difference = other_vocabulary(pair.target, pair.draft, pair.target_revision, pair.draft_revision)

    def cached(self, part: str, device: str) -> CachedModel:
        """See `Weights`."""
        import torch
        from transformers import AutoConfig

        from specrig.runtime import agreement
        from specrig.runtime.transformers_model import cached_model

        source, revision = self._source(part)
        if (reason := needs.unmet(config(source, revision))) is not None:
            raise ModelError(f"{source}: {NOT_NATIVE}: {reason}")
        try:
            agreement.check_architecture(AutoConfig.from_pretrained(source, revision=revision))
            drafts = self._drafts or part == "draft"
            model = cached_model(self.model(part, device), device=self.devices(part, device)[0], drafts=drafts)
        except (ModelError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # transformers has many of its own
            raise ModelError(f"{source}: {NOT_NATIVE}: {first_line(error)}") from error
        if part == "target" or self.difference is None:
            model.vocab_size = self.vocab_size
        return model

    def model(self, part: str, device: str) -> Any:
        """See `Weights`."""
        import torch
        from transformers import AutoConfig

        pair, dtype = self.pair, self.dtype()
        if pair.quantization is not None:
            raise ModelError(
                f"pair {pair.name}: only an engine that serves (vllm) runs a target quantized as {pair.quantization}; "
                "give the pair another row without it for this one"
            )
        source, revision = self._source(part)
        devices, placement = self.devices(part, device), None
        try:
            if len(devices) > 1:
                shape = AutoConfig.from_pretrained(source, revision=revision)
                placement = split.device_map(split.empty(shape, dtype), devices, self.beside())
            model = load_whole(source, revision=revision, dtype=dtype, device_map=placement)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except UnpicklingError as error:
            raise ModelError(
                f"{source}: its pytorch_model.bin holds more than weights, which torch does not load: it could run any code on "
                "this machine; take the model's *.safetensors"
            ) from error
        except Exception as error:  # transformers and safetensors have many of their own
            raise ModelError(
                f"{source}: cannot be loaded ({first_line(error)}); its files fit each other, as far as "
                "they can be read without loading: is it a model that this transformers runs?"
            ) from error
        return (model.to(device) if placement is None else model).eval()

    def _source(self, part: str) -> tuple[str, str | None]:
        pair = self.pair
        source, revision = (
            (pair.target, pair.target_revision) if part == "target" else (pair.draft, pair.draft_revision)
        )
        if source is None:
            raise ModelError(
                f"pair {pair.name}: this method needs a draft model and the pair names none; fill the column in "
                "pairs.tsv"
            )
        if part == "draft":
            check_draft(pair)
        if (reason := needs.unreadable(config(source, revision))) is not None:
            raise ModelError(f"{source}: {reason}")
        return source, revision


class RandomWeights(Weights):
    """Shapes with random weights. The output is not text, so a prompt's bytes serve as tokens, and only the length ends
    a sequence.
    """

    def __init__(self, pair: PairFiles) -> None:
        super().__init__(pair)
        self.configs = config_of(pair)
        self.tokenizer = _Bytes()
        self.eos = frozenset()
        self.vocab_size = int(needs.text_config(self.configs["target"])["vocab_size"])

    def cached(self, part: str, device: str) -> CachedModel:
        """See `Weights`."""
        from specrig.models.random_weights import random_model
        from specrig.runtime.types import DecodingError

        reason = needs.unmet(self.configs[part])
        try:
            if reason is None:
                model = random_model(
                    self.configs[part], devices=self.devices(part, device), dtype=self.dtype(), beside=self.beside()
                )
                model.vocab_size = self.vocab_size
                return model
        except (DecodingError, KeyError, ValueError) as error:
            reason = first_line(error)
        raise ModelError(f"pair {self.pair.name}, {part}: {NOT_NATIVE}: {reason}")

    def model(self, part: str, device: str) -> Any:
        """See `Weights`."""
        raise ModelError(f"pair {self.pair.name} has random weights: only the native engine runs it")


def weights_of(pair: PairFiles, *, drafts: bool = False) -> Weights:
    """The weights of a pair, loaded or random as its row says. Raises ModelError for a pair that the gate refuses.

    drafts: the target is itself a draft, of a target that another process runs.
    """
    return RandomWeights(pair) if pair.random_weights else PretrainedWeights(pair, drafts=drafts)


class _Bytes:
    """A stand-in for a tokenizer: each UTF-8 byte of the prompt is a token."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return ""
