"""Hugging Face transformers: `generate`, its assisted generation, its prompt lookup and its MTP layers.

Hooks on the target's forward passes show what was drafted and accepted: a pass gets the last token and the candidates,
and adds the kept ones to the sequence. In assisted generation prefill verifies candidates too. It counts as a round,
but its tokens are there before decoding is timed (`Generation.prefill_tokens`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from specrig.cell import Cell, digest
from specrig.decoding.types import Generation, Round
from specrig.engines.base import EngineError, WeightsEngine, foreign, lacks, lacks_layers
from specrig.models import needs
from specrig.models.hub import tokenizer
from specrig.models.pair import PairFiles
from specrig.runtime.types import Passes, add_passes
from specrig.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


def assisted(method: str) -> bool:
    """Whether `generate` drafts for the method: assisted generation or prompt lookup."""
    known = foreign("transformers").get(method)
    return known is not None and bool(known.method)


def fit_vocabulary(model: Any, V: int) -> None:
    """From now on let a model's forward pass give logits of V tokens, the target's: rows beyond are cut off, and tokens
    that a draft has no row of get minus infinity (as in `CachedModel.forward`). `generate` compares the config's numbers.
    """
    from specrig.runtime.model import of_vocabulary

    text = model.config.get_text_config(decoder=True)
    rows, text.vocab_size = text.vocab_size, V

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        read = kwargs if "input_ids" in kwargs else {"input_ids": args[0]}
        return args[1:] if read is not kwargs else args, kwargs | {"input_ids": read["input_ids"].clamp(max=rows - 1)}

    def after(_module: Any, _inputs: Any, output: Any) -> Any:
        output.logits = of_vocabulary(output.logits, V)
        return output

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after)


class PassRecorder:
    """Records the forward passes of one model by hooks: the tokens each was fed, and the seconds it took.

    counts: whether a pass that begins is one of those to record; by default all are.
    """

    def __init__(self, model: Any, now: Any, counts: Callable[[], bool] = lambda: True) -> None:
        self.now, self.counts, self._counted = now, counts, True
        self.fed: list[list[int]] = []
        self.seconds: list[float] = []
        self._started = 0.0
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def clear(self) -> None:
        """Forget all passes."""
        self.fed, self.seconds = [], []

    def decoding(self) -> Passes:
        """Passes of decoding, all but the first, which is prefill: width -> (calls, seconds)."""
        totals: Passes = {}
        for fed, seconds in zip(self.fed[1:], self.seconds[1:], strict=True):
            add_passes(totals, {len(fed): (1, seconds)})
        return totals

    def _before(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._counted = self.counts()
        if not self._counted:
            return
        tokens: Tensor = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.fed.append(tokens[0].tolist())
        self._started = self.now()

    def _after(self, *_: Any) -> None:
        if self._counted:
            self.seconds.append(self.now() - self._started)


class RoundRecorder:
    """A stopping criterion that records time and length of the sequence after every round. It stops at `limit` tokens."""

    def __init__(self, limit: int, now: Any) -> None:
        self.limit, self.now = limit, now
        self.rounds: list[tuple[float, int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """`generate` calls it after each round."""
        import torch

        length = input_ids.shape[1]
        self.rounds.append((self.now(), length))
        return torch.full((len(input_ids),), length >= self.limit, dtype=torch.bool, device=input_ids.device)


def _is_run(skip: Any) -> bool:
    """Whether `skip` names layers that follow each other; a share and None name none."""
    return isinstance(skip, (list, tuple)) and bool(skip) and sorted(skip) == list(range(min(skip), max(skip) + 1))


class Transformers(WeightsEngine):
    """Target and draft are loaded once; baseline and methods alternate."""

    name = "transformers"
    splits = True
    differences: ClassVar[Mapping[str, str]] = {
        "draft_model": "the first pass verifies drafts together with the prompt; a draft stops at its own end of "
        "sequence",
        "ngram": "transformers takes the earliest match of the longest suffix, the native method the latest",
        "layer_skip": "transformers leaves out the last layers alone and runs the prompt through the others once more; "
        "the first pass verifies drafts together with the prompt",
        "mtp": "each of the target's MTP layers drafts one token, and they are read from disk again for each prompt, within "
        "the time to the first token",
    }

    class Options(Settings):
        """How transformers drafts."""

        confidence_threshold: float = Field(0.0, ge=0, le=1)
        """A draft of a model ends behind a token that the draft gives less than this probability (transformers'
        `assistant_confidence_threshold`, .4 by its own default); 0: every draft has k tokens."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self.target = self._plain("target")
        self._layers = self._running_layers()
        self.target_passes = PassRecorder(self.target, self.now, lambda: self._running_layers() == self._layers)
        self._early_passes = PassRecorder(self.target, self.now, lambda: self._running_layers() < self._layers)
        self._assistants: dict[bool, Any] = {}
        self._recorders: dict[bool, PassRecorder] = {}
        self._assistant_tokenizer: Any = None
        self._assistant_passes: PassRecorder | None = None

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Methods that transformers lacks, and batches of a method that drafts."""
        if lacking := lacks("transformers", cls.name, cell):
            return lacking
        if assisted(cell.method) and cell.batch_size > 1:
            return "assisted generation in transformers takes one prompt at a time: set batch_sizes: 1 for this method"
        if cell.options.get("acceptance", "exact") != "exact":
            return "transformers accepts token by token: leave acceptance at exact"
        if cell.method == "ngram" and cell.options.get("min_n", 1) != 1:
            return "prompt lookup in transformers always tries suffixes down to one token: set min_n: 1"
        if cell.method == "layer_skip" and not _is_run(cell.options.get("skip")):
            return "transformers leaves out the last layers (early exit): give skip their numbers, e.g. [22, 23] of 24"
        return None

    @classmethod
    def refuses_other_vocabulary(cls, cell: Cell) -> str | None:
        """Universal assisted generation: by strings at temperature 0, by intersection above."""
        does = "intersection" if cell.temperature > 0 else "strings"
        if cell.options.get("vocabularies") in ("auto", does):
            return None
        return f"at temperature {cell.temperature:g} transformers drafts by {does}: set vocabularies to it, or to auto"

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Assisted generation rolls a cache back; plain generation runs whatever transformers runs."""
        return (
            needs.unreadable(config)
            or (needs.recurrent(config) if assisted(method) else None)
            or lacks_layers("transformers", cls.name, method, config)
        )

    def now(self) -> float:
        """Seconds on a clock that has waited for the device."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`. A batch samples from one stream, which its seeds start together."""
        if not prompts:
            return []
        import torch

        from specrig.decoding.loop import stop_at

        started = self.now()
        longest = max(map(len, prompts))
        pad = min(self.eos, default=0)
        tokens = torch.tensor(
            [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        mask = torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self.device
        )
        assistant = self._assist(cell) if cell.method == "draft_model" else None
        if cell.method == "layer_skip":
            self._draft_k(self.target, cell)
        draft_recorder = {"draft_model": self._assistant_passes, "layer_skip": self._early_passes}.get(cell.method)
        torch.manual_seed(seeds[0] if len(seeds) == 1 else int(digest(list(seeds)), 16))
        watch = RoundRecorder(longest + max_new_tokens, self.now)
        for passes in filter(None, (self.target_passes, draft_recorder)):
            passes.clear()
        output = self.target.generate(
            tokens,
            attention_mask=mask,
            generation_config=self._config(cell, longest, max_new_tokens, pad),
            stopping_criteria=[watch],
            assistant_model=assistant,
            **(self._tokenizers() if assistant is not None else {}),
        )
        rows = [stop_at(row[longest:].tolist(), max_new_tokens, self.eos) for row in output]
        first, ended = watch.rounds[0][0], watch.rounds[-1][0]
        drafts = draft_recorder.decoding() if draft_recorder else {}
        return [
            Generation(
                tokens=row,
                stop="eos" if row[-1] in self.eos else "length",
                rounds=self._rounds(row, longest, watch) if assisted(cell.method) else self._plain_rounds(row),
                overlap=0.0,
                reached=0,
                ttft_s=first - started,
                prefill_s=first - started,
                decode_s=ended - first,
                round_s=[end - start for (start, _), (end, _) in pairwise(watch.rounds)],
                target_passes=self.target_passes.decoding(),
                draft_passes=drafts,
                prefill_tokens=min(watch.rounds[0][1] - longest, len(row)),
            )
            for row in rows
        ]

    def _config(self, cell: Cell, prompt: int, max_new_tokens: int, pad: int) -> Any:
        """The generation config: no filter but temperature, and room for k tokens beyond the limit, so that the last
        rounds draft all k.
        """
        from transformers import GenerationConfig

        room = (getattr(self.target.config.get_text_config(), "max_position_embeddings", None) or 1 << 20) - prompt
        sampling: dict[str, Any] = (
            {"do_sample": False} if cell.temperature == 0 else {"do_sample": True, "temperature": cell.temperature}
        )
        if cell.temperature > 0:
            sampling |= {"top_k": 0, "top_p": 1.0}
        if cell.method == "ngram":
            sampling |= {"prompt_lookup_num_tokens": cell.k, "max_matching_ngram_size": cell.options.get("n", 3)}
        if cell.method == "layer_skip":
            sampling |= {"assistant_early_exit": self._early_exit(cell)}
        if cell.method == "mtp":
            self._check_layers(cell.k)
            sampling |= {"use_mtp": True}
        return GenerationConfig(
            max_new_tokens=max(min(max_new_tokens + cell.k + 1, room), max_new_tokens),
            eos_token_id=sorted(self.eos) or None,
            # Where nothing ends a sequence nothing is padded either. A padding id among the prompt's tokens would hide
            # them from the draft.
            pad_token_id=pad if self.eos else None,
            **sampling,
        )

    def _assist(self, cell: Cell) -> Any:
        """The draft, set to draft exactly k tokens."""
        pruned = self.weights.difference is not None and cell.temperature > 0  # to the tokens that both have, for good
        if pruned not in self._assistants:
            self._assistants[pruned] = assistant = self._plain("draft")
            self._recorders[pruned] = PassRecorder(assistant, self.now)
        assistant, self._assistant_passes = self._assistants[pruned], self._recorders[pruned]
        self._draft_k(assistant, cell)
        return assistant

    def _draft_k(self, assistant: Any, cell: Cell) -> None:
        """Let a model draft k tokens. By default k starts at 20, follows a schedule and stops at low confidence."""
        settings = assistant.generation_config  # read from the assistant alone
        settings.num_assistant_tokens = cell.k
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = self.options.confidence_threshold

    def _running_layers(self) -> int:
        """How many of its layers the target runs: during a draft by early exit fewer than it has."""
        return int(self.target.config.get_text_config(decoder=True).num_hidden_layers)

    def _early_exit(self, cell: Cell) -> int:
        """After how many layers a draft ends. Raises EngineError where others than the last ones are left out."""
        skip = sorted(cell.options["skip"])
        if skip[0] < 1 or skip[-1] != self._layers - 1:
            raise EngineError(
                f"layer_skip: transformers leaves out the last layers of the target's {self._layers}, not {skip}; end the "
                f"list with {self._layers - 1}, and keep layer 0"
            )
        return int(skip[0])

    def _check_layers(self, k: int) -> None:
        """Raise EngineError where transformers does not read k MTP layers of the target, one for each drafted token."""
        from transformers import GenerationConfig

        if not hasattr(GenerationConfig(), "use_mtp"):
            raise EngineError("mtp: the transformers installed here has no use_mtp: install a newer one")
        text = self.target.config.get_text_config(decoder=True)
        layers = getattr(text, "num_mtp_layers", None)
        first = f"model.layers.{text.num_hidden_layers}.enorm.weight"
        patterns = self.target._keys_to_ignore_on_load_unexpected or []  # by these `MtpModel` finds their tensors
        if not layers or not any(re.search(pattern, first) for pattern in patterns):
            raise EngineError(
                f"mtp: transformers reads no MTP layers of a {text.model_type} of {text.num_hidden_layers} layers: leave "
                "these cells out"
            )
        if layers != k:
            raise EngineError(
                f"mtp: transformers drafts one token with each MTP layer, and this target has {layers}: set k: {layers}"
            )

    def _tokenizers(self) -> dict[str, Any]:
        """What universal assisted generation translates with; empty for a draft of the target's vocabulary."""
        if self.weights.difference is None or self.pair.draft is None:
            return {}
        if self._assistant_tokenizer is None:
            self._assistant_tokenizer = tokenizer(self.pair.draft, self.pair.draft_revision)
        return {"tokenizer": self.tokenizer, "assistant_tokenizer": self._assistant_tokenizer}

    def _plain(self, part: str) -> Any:
        """A model with an empty generation config of its own, since `generate` merges the model's config into ours."""
        from transformers import GenerationConfig

        model = self.weights.model(part, self.device)
        model.generation_config = GenerationConfig()
        own = part == "draft" and self.weights.difference is not None
        if not own and model.config.get_text_config(decoder=True).vocab_size != self.weights.vocab_size:
            fit_vocabulary(model, self.weights.vocab_size)
        return model

    def _rounds(self, row: list[int], prompt: int, watch: RoundRecorder) -> list[Round]:
        """One Round a target pass. A candidate was kept where the pass emitted the same token: a correction always
        differs from it.
        """
        rounds, before = [], prompt
        for number, (fed, (_, length)) in enumerate(zip(self.target_passes.fed, watch.rounds, strict=True)):
            candidates = fed[prompt:] if number == 0 else fed[1:]
            emitted = row[before - prompt : length - prompt]
            kept = next((i for i, (a, b) in enumerate(zip(candidates, emitted, strict=False)) if a != b), None)
            accepted = min(len(candidates), len(emitted)) if kept is None else kept
            # What generation added is cut by our limit, or by its own at an end of sequence that was a candidate.
            cut = len(emitted) < length - before or accepted == len(emitted)
            rounds.append(Round(len(candidates), len(candidates), accepted, len(emitted), cut))
            before = length
        return rounds

    @staticmethod
    def _plain_rounds(row: list[int]) -> list[Round]:
        return [Round(0, 0, 0, 1) for _ in row[1:]]
