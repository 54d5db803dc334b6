"""Programs that decode a target by themselves: llama.cpp on a GGUF file, and transformers' `generate` on a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from specrig.audit.multiple_testing import LLAMA_CPP, REFERENCE
from specrig.engines.base import EngineError
from specrig.models import gguf, hub
from specrig.models.gguf.header import read as read_header
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of
from specrig.runtime.gpus import resolve_device

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from specrig.study.study import Study

EIGHT_BITS = 0.2
"""Largest difference that rounding explains where llama.cpp multiplies quantized weights, whose factors it rounds to 8
bits: 1.7 times the largest that occurred (docs/audit.md).
"""
TABLES = 0.005
"""The same where it multiplies unquantized weights: it looks activations such as GELU up in tables of float16."""
CANDIDATES = 64
"""Tokens whose log-probabilities llama.cpp gives at each position but the first, where it gives all."""
SPARE = 16
"""Positions of a context beyond the longest prompt with its output: llama.cpp stops one short of the end."""
STOP_IDS = ("eos", "eot", "eom")
"""Keys of a GGUF header that name ids which end an output: `tokenizer.ggml.<key>_token_id`."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a GGUF file says. windows: positions that its attention reaches back; rotary: contexts up to
    which other rotary tables hold.
    """

    vocabulary: int
    stops: frozenset[int]
    windows: frozenset[int]
    rotary: frozenset[int]


@cache
def header(file: Path) -> Header:
    """The header of a GGUF file."""
    read = read_header(str(file), file)

    def numbers(key: str) -> frozenset[int]:
        value = read.keys.get(key, [])
        return frozenset(int(each) for each in (value if isinstance(value, list) else [value]) if each)

    kind = read.architecture
    several_tables = "rope_factors_long.weight" in read.tensors
    named = (read.keys.get(f"tokenizer.ggml.{name}_token_id") for name in STOP_IDS)
    return Header(
        vocabulary=len(read.keys["tokenizer.ggml.tokens"]),
        stops=frozenset(int(token) for token in named if token is not None),
        windows=numbers(f"{kind}.attention.sliding_window"),
        rotary=numbers(f"{kind}.rope.scaling.original_context_length") if several_tables else frozenset(),
    )


def tolerance(precision: str) -> float:
    """The largest relative difference of logits that rounding explains. precision: a dtype, or GGUF's type of weights."""
    import torch

    from specrig.runtime.agreement import TOLERANCE

    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    dtype = getattr(torch, names.get(precision, precision), None)
    return TOLERANCE.get(dtype, EIGHT_BITS) if isinstance(dtype, torch.dtype) else EIGHT_BITS


@dataclass(frozen=True, slots=True)
class Output:
    """What a reference makes of a prompt.

    prompt: its own ids. scores: `[n, V]` of each token, logits or log-probabilities; where the reference gives only the
    likeliest, the others have the least of these. exact: whether they are logits. precision: what it computes in.
    """

    prompt: list[int]
    tokens: list[int]
    scores: Tensor
    exact: bool
    precision: str

    @property
    def spread(self) -> float:
        """The standard deviation of the first token's scores."""
        first = self.scores[0].double()
        return float(first[first.isfinite()].std(correction=0))

    def difference(self, logits: NDArray[np.float32]) -> float:
        """`agreement.relative_difference` of an engine's logits `[V]` of the first token, as log-probabilities.

        Rows of the vocabulary that either side masks or lacks are left out.
        """
        import torch

        from specrig.runtime.agreement import relative_difference

        width = min(len(logits), self.scores.shape[1])
        found, expected = torch.from_numpy(logits[:width]).double(), self.scores[0, :width].double()
        both = found.isfinite() & expected.isfinite()
        found, expected = found[both].log_softmax(-1), expected[both].log_softmax(-1)
        return relative_difference(found[None], expected[None])


class Reference(ABC):
    """A program that decodes a target. stops: ids that it is told end an output."""

    test: ClassVar[str]
    title: ClassVar[str]
    stops: frozenset[int]

    @abstractmethod
    def output(self, prompt: Sequence[int], text: str | None, max_new_tokens: int) -> Output:
        """Decode greedily after a text or, where there is none, after the ids `prompt`."""

    @abstractmethod
    def ends(self, token: int) -> bool:
        """Whether an output ends with this token."""

    @abstractmethod
    def close(self) -> None:
        """Free memory and processes."""


class TransformersReference(Reference):
    """transformers' `generate` on a folder or a model of the hub, without the generation settings that lie beside it:
    only the ids that end an output are kept.
    """

    test, title = REFERENCE, "transformers"

    def __init__(self, files: PairFiles, study: Study) -> None:
        from transformers import GenerationConfig

        self.device = resolve_device(study.device, study.most_gpus())
        self.model = weights_of(files).model("target", self.device)
        self.precision = files.dtype
        self.tokenizer = hub.tokenizer(files.target, files.target_revision)
        try:
            settings = GenerationConfig.from_pretrained(files.target, revision=files.target_revision)
        except OSError:  # there is none
            settings = GenerationConfig()
        named = (settings.eos_token_id, self.model.config.eos_token_id, self.tokenizer.eos_token_id)
        ids = next((ids for ids in named if ids is not None), None)
        self.stops = frozenset([ids] if isinstance(ids, int) else ids or [])
        # `generate` merges the model's own settings into those that it is given.
        self.model.generation_config = GenerationConfig()

    def ends(self, token: int) -> bool:
        """See `Reference`."""
        return token in self.stops

    def output(self, prompt: Sequence[int], text: str | None, max_new_tokens: int) -> Output:
        """See `Reference`."""
        import torch
        from transformers import GenerationConfig

        ids: list[int] = list(prompt) if text is None else self.tokenizer(text)["input_ids"]
        tokens = torch.tensor([ids], device=self.device)
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(self.stops) or None,
            pad_token_id=min(self.stops, default=0),
            return_dict_in_generate=True,
            output_logits=True,
        )
        made = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
        scores = torch.cat(list(made.logits)).float().cpu()
        return Output(ids, made.sequences[0, len(ids) :].tolist(), scores, exact=True, precision=self.precision)

    def close(self) -> None:
        """See `Reference`."""
        del self.model


class LlamaCppReference(Reference):
    """llama.cpp's server on a GGUF file: its tokenizer, its stop ids, its passes."""

    test, title = LLAMA_CPP, "llama.cpp"

    def __init__(self, file: Path, study: Study, positions: int, rotary: Sequence[int] = ()) -> None:
        """positions: the longest prompt with its output. rotary: contexts up to which other rotary tables hold."""
        import torch

        from specrig.engines.llamacpp import LlamaCpp

        if (missing := LlamaCpp.missing()) is not None:
            raise EngineError(missing)
        read = header(file)
        self.file, self.vocabulary, self.stops = str(file), read.vocabulary, read.stops
        self.precision = gguf.stored_type(file)
        self.threads = study.threads or torch.get_num_threads()
        self.device = resolve_device(study.device)
        self.contexts = sorted({length for length in rotary if length < positions} | {positions + SPARE})
        self._context = 0
        self._server: Any = None
        self._client: Any = None
        self._bos = ""

    def _serve(self, positions: int) -> Any:
        """The client of a server whose context is the smallest of `contexts` that holds so many positions."""
        context = next((length for length in self.contexts if length >= positions), positions)
        if context != self._context:
            from specrig.engines.llamacpp import serve
            from specrig.http_client import Client

            self.close()
            settings = {
                "model": self.file,
                "context": context,
                "vocabulary": self.vocabulary,
                "slots": 1,
                "threads": self.threads,
                "device": self.device,
                "exact_cache": True,
                "speculation": None,
            }
            self._server, url = serve.start(settings)
            self._client, self._context = Client(url), context
            self._bos = self._client.get("/props").json().get("bos_token") or ""
        return self._client

    def _complete(self, prompt: Sequence[int], **settings: Any) -> dict[str, Any]:
        body = {"prompt": list(prompt), "samplers": ["temperature"], "temperature": 0, "return_tokens": True}
        client = self._serve(len(prompt) + settings["n_predict"])
        # A slow model is silent until all is done.
        more_s = len(prompt) + settings["n_predict"]
        answer: dict[str, Any] = client.post("/completion", {"cache_prompt": False} | body | settings, more_s=more_s)
        if answer["truncated"]:
            raise EngineError(f"llama.cpp cut a prompt of {len(prompt)} tokens and its output at its context")
        return answer

    def ends(self, token: int) -> bool:
        """See `Reference`. The token is forced upon it."""
        if not 0 <= token < self.vocabulary:
            return False
        forced = self._complete([token], n_predict=1, logit_bias=[[token, 1e6]])
        return bool(forced["stop_type"] == "eos")

    def output(self, prompt: Sequence[int], text: str | None, max_new_tokens: int) -> Output:
        """See `Reference`."""
        import torch

        ids = list(prompt)
        if text is not None:
            client = self._serve(len(prompt) + max_new_tokens)
            # As its own chat does: a first token that the template writes is not put in front once more.
            special = not (self._bos and text.startswith(self._bos))
            request = {"content": text, "add_special": special, "parse_special": True}
            ids = [int(token) for token in client.post("/tokenize", request)["tokens"]]
        made = self._complete(ids, n_predict=max_new_tokens, n_probs=CANDIDATES)
        tokens = [int(token) for token in made["tokens"]]
        positions = made.get("completion_probabilities", [])
        if len(positions) != len(tokens):  # it gives none for a token that ends the text, nor for a part of a character
            ends = range(len(ids), len(ids) + len(tokens))
            positions = [self._likeliest([*ids, *tokens][:end], CANDIDATES) for end in ends]
        positions = [self._likeliest(ids, self.vocabulary), *positions[1:]]
        scores = torch.full((len(positions), self.vocabulary), float("-inf"))
        for row, position in zip(scores, positions, strict=True):
            likeliest = position["top_logprobs"]
            if len(likeliest) < self.vocabulary:
                row.fill_(likeliest[-1]["logprob"])
            for entry in likeliest:
                row[entry["id"]] = entry["logprob"]
        return Output(ids, tokens, scores, exact=False, precision=self.precision)

    def _likeliest(self, prompt: Sequence[int], count: int) -> dict[str, Any]:
        """The `count` likeliest tokens after a prompt, as the server lists them before it samples. A plain letter is forced
        upon it, since it lists nothing beside a token that it does not print.
        """
        letter = self._serve(len(prompt) + 1).post("/tokenize", {"content": "a", "add_special": False})["tokens"][-1]
        answer = self._complete(prompt, n_predict=1, n_probs=count, logit_bias=[[letter, 1e6]], cache_prompt=True)
        listed: dict[str, Any] = answer["completion_probabilities"][0]
        return listed

    def close(self) -> None:
        """See `Reference`."""
        if self._server is not None:
            self._server.close()
        self._server, self._context = None, 0
