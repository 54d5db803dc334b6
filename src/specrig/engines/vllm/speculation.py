"""vLLM's `speculative_config` for each method, and what it reports about each request.

`speculative_config` and `RequestSpecDecodeMetrics` are those of vLLM 0.32 (docs.vllm.ai, "Speculative Decoding").
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from specrig.cell import Cell
from specrig.decoding.types import Round
from specrig.engines.base import EngineError, foreign, too_old
from specrig.engines.head_copies import check_loadable, understood
from specrig.models.pair import PairFiles

ARCTIC = (
    "`make vllm` does that where there is a C++ compiler; elsewhere pip install nanobind==2.9.2 grpcio-tools cmake && "
    "pip install --no-build-isolation --no-deps arctic-inference==0.1.1"
)
"""How to install arctic-inference. Without `--no-build-isolation` its build would fetch an older torch of its own."""

Schedule = list[tuple[int, int, int]]
"""(smallest, largest batch, tokens to draft) of each range of batch sizes."""


def _model(cell: Cell, pair: PairFiles, part: str) -> dict[str, Any]:
    """What drafts. Raises EngineError for a part that the pair lacks, or that vLLM cannot load."""
    revision = {"revision": pair.revisions[part]} if part in pair.revisions else {}
    if part == "draft":
        if pair.draft is None:
            raise EngineError(
                f"pair {pair.name}: {cell.method} needs a draft and the pair names none; fill the column in pairs.tsv"
            )
        draft = understood("vllm", cell.method, Path(pair.draft))
        return {"model": str(draft), "draft_tensor_parallel_size": pair.tensor_parallel, **revision}
    if part not in pair.heads:
        raise EngineError(f"pair {pair.name}: no trained {part} head")
    folder = Path(pair.heads[part])
    check_loadable("vllm", pair.name, part, folder)
    return {"model": str(understood("vllm", cell.method, folder)), **revision}


def speculation_of(
    cell: Cell,
    pair: PairFiles,
    draft_sampling: str,
    *,
    other_vocabulary: bool = False,
    schedule: Schedule | None = None,
    ngram_gpu: bool = False,
    adaptive_verification: bool = False,
) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for the cell's speculation, with a report of each request's steps; empty for a baseline.

    draft_sampling: how methods that sample drafts do so above temperature 0. other_vocabulary: the draft drafts among the
    tokens that the target has too. schedule, ngram_gpu, adaptive_verification: see `Vllm.Options`. Raises EngineError
    where the pair lacks a part, and where the installed vLLM lacks a key.
    """
    known = foreign("vllm")[cell.method]
    if not known.method:
        return {}
    options = {key: cell.options[name] for name, key in known.renamed.items() if name in cell.options}
    model = _model(cell, pair, known.part) if known.part else {}
    config = {"method": known.method, **model, **known.keys, **options, "num_speculative_tokens": cell.k}
    if known.sampled:
        config["draft_sample_method"] = draft_sampling
    if known.method == "ngram" and ngram_gpu:
        config["method"] = "ngram_gpu"
    if known.method == "dspark" and adaptive_verification:
        config["enable_adaptive_verification"] = True
    if schedule is not None:
        config["num_speculative_tokens_per_batch_size"] = schedule
    if other_vocabulary and known.part == "draft":
        config |= {"use_heterogeneous_vocab": True, "draft_sample_method": "greedy"}
    if (alpha := pair.simulated_acceptance) is not None:
        rates = [alpha**depth for depth in range(1, cell.k + 1)]
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    _check_installed(config)
    return {"speculative_config": config, "per_request_spec_decode_metrics": "detailed"}


def _check_installed(config: dict[str, Any]) -> None:
    """Raise EngineError for a key or method that the installed vLLM does not have; where none is installed, it is not
    started either.
    """
    try:
        from vllm.config import speculative
    except ImportError:
        return
    lacking = config.keys() - {entry.name for entry in fields(speculative.SpeculativeConfig)}
    if not lacking and config["method"] == "ngram_gpu" and not hasattr(speculative, "NgramGPUTypes"):
        lacking = {"ngram_gpu"}
    if lacking:
        raise too_old("vLLM", lacking)


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
