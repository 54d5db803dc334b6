"""vLLM's `speculative_config` for each method, and what it reports about each request.

`speculative_config` and `RequestSpecDecodeMetrics` are those of vLLM 0.32 (docs.vllm.ai, "Speculative Decoding").
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specrig.cell import Cell
from specrig.decoding.types import Round
from specrig.engines.base import EngineError
from specrig.heads import registry as heads
from specrig.models.pair import PairFiles

Configure = Callable[[Cell, PairFiles], dict[str, Any]]


HEADS = {name: kind for name, kind in heads().items() if "vllm" in kind.foreign}
"""Kinds of heads that vLLM drafts with."""


def _head(cell: Cell, pair: PairFiles) -> dict[str, Any]:
    """Of the method that is called as its head. Raises EngineError for a checkpoint that vLLM cannot load."""
    kind = HEADS[cell.method]
    if cell.method not in pair.heads:
        raise EngineError(f"pair {pair.name}: no trained {cell.method} head")
    config = Path(pair.heads[cell.method], "config.json")
    # Of heads on the hub vLLM says itself what is wrong.
    if config.is_file() and (why := kind.unloadable("vllm", json.loads(config.read_text(encoding="utf-8")))):
        raise EngineError(f"pair {pair.name}: {why}")
    foreign = kind.foreign["vllm"]
    found = {"method": foreign.method, "model": str(pair.heads[cell.method]), **foreign.keys}
    return found | _revision(cell.method, pair)


def _draft_model(_: Cell, pair: PairFiles) -> dict[str, Any]:
    if pair.draft is None:
        raise EngineError(
            f"pair {pair.name}: draft_model needs a draft and the pair names none; fill the column in pairs.tsv"
        )
    known = {"model": pair.draft, "draft_tensor_parallel_size": pair.tensor_parallel}
    return {"method": "draft_model", **known, **_revision("draft", pair)}


def _revision(part: str, pair: PairFiles) -> dict[str, Any]:
    return {"revision": pair.revisions[part]} if part in pair.revisions else {}


def _ngram(cell: Cell, _: PairFiles) -> dict[str, Any]:
    longest, shortest = cell.options.get("n", 3), cell.options.get("min_n", 1)
    return {"method": "ngram", "prompt_lookup_max": longest, "prompt_lookup_min": shortest}


def _suffix(cell: Cell, _: PairFiles) -> dict[str, Any]:
    """Suffix decoding without a cache of earlier requests: a prompt measured twice must not find its own answer."""
    names = ("max_tree_depth", "max_spec_factor", "min_token_prob")
    options = {f"suffix_decoding_{name}": cell.options[name] for name in names if name in cell.options}
    return {"method": "suffix", "suffix_decoding_max_cached_requests": 0, **options}


METHODS: dict[str, Configure | None] = {
    "autoregressive": None,
    "naive_batching": None,
    "draft_model": _draft_model,
    "ngram": _ngram,
    **dict.fromkeys(HEADS, _head),
    "suffix": _suffix,
}
"""Method -> the function that makes its `speculative_config`; None without speculation."""
ARCTIC = (
    "`make vllm` does that where there is a C++ compiler; elsewhere pip install nanobind==2.9.2 grpcio-tools cmake && "
    "pip install --no-build-isolation --no-deps arctic-inference==0.1.1"
)
"""How to install arctic-inference. Without `--no-build-isolation` its build would fetch an older torch of its own."""
SAMPLED = ("draft_model", *(name for name, kind in HEADS.items() if kind.foreign["vllm"].sampled))
"""Methods whose draft tokens are drawn from a distribution."""
CHAINS: dict[str, dict[str, Any]] = {
    **{name: {"acceptance": "exact"} for name in ("draft_model", "ngram")},
    **{name: dict(kind.foreign["vllm"].options) for name, kind in HEADS.items()},
    "suffix": {"tree": False},
}
"""Method -> the values that its options must have for a chain, verified exactly: vLLM has no token trees."""


def speculation_of(cell: Cell, pair: PairFiles, draft_sampling: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for the cell's speculation, with a report of each request's steps; empty for a baseline.

    draft_sampling: how the methods in `SAMPLED` draw drafts above temperature 0. Raises EngineError where the pair lacks
    a part.
    """
    configure = METHODS[cell.method]
    if configure is None:
        return {}
    config = {**configure(cell, pair), "num_speculative_tokens": cell.k}
    if cell.method in SAMPLED:
        config["draft_sample_method"] = draft_sampling
    return {"speculative_config": config, "per_request_spec_decode_metrics": "detailed"}


@dataclass(slots=True)
class Request:
    """One prompt's stream: the number of tokens of each engine step, and vLLM's report at the end."""

    emitted: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    stop: Literal["eos", "length"] = "length"
    times: Any = None
    speculation: Any = None

    def rounds(self) -> list[Round]:
        """One Round for each engine step after the first, which is prefill.

        vLLM reports (drafted, accepted) only for the steps with a draft, in order. They are matched to the steps by the
        number of emitted tokens. A step of one token may have had a rejected draft or none; no figure depends on it.
        """
        found = self.speculation
        reported = list(zip(found.per_step_drafted, found.per_step_accepted, strict=True)) if found else []
        rounds = []
        for number, emitted in enumerate(self.emitted[1:], 2):
            last = number == len(self.emitted)
            fits = bool(reported) and (reported[0][1] == emitted - 1 or (last and reported[0][1] >= emitted))
            drafted, accepted = reported.pop(0) if fits else (0, 0)
            rounds.append(Round(drafted, drafted, min(accepted, emitted), emitted, emitted < accepted + 1))
        return rounds
