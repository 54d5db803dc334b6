"""Is plain decoding itself right? One prompt of each pair, decoded greedily by transformers' `generate`.

Methods are compared with the plain decoding of their own engine, which cannot show what is wrong in both, such as a
mask. So the baseline is compared with a forward pass and a cache that are not ours.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.audit.identity import Answer, first_divergence
from specrig.cell import Cell
from specrig.engines import registry
from specrig.engines.base import EngineError
from specrig.errors import first_line
from specrig.measurement.blocks import baseline_of
from specrig.measurement.records import Record
from specrig.measurement.task_prompts import prepared
from specrig.models.pair import PairFiles
from specrig.runtime.gpus import resolve_device

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.study.study import Study

PlainDecode = Callable[[Cell, Sequence[int]], list[int]]
"""Greedy plain decoding of a prompt in the native engine."""


@dataclass(frozen=True, slots=True)
class BaselineCheck:
    """Of one engine's baseline on one prompt. record: names engine, pair and task. passed: None where it could not run."""

    record: Record
    passed: bool | None
    finding: str


@dataclass(frozen=True, slots=True)
class ReferenceOutput:
    """What transformers generates after `prompt`, and its model's logits `[n, V]` of each token without a cache."""

    prompt: list[int]
    tokens: list[int]
    logits: Tensor


def check_baselines(
    records: Sequence[Record], study: Study, files: PairFiles, root: Path, plain: PlainDecode
) -> Iterator[BaselineCheck]:
    """One check for each engine that decoded the pair greedily; where none did, of native plain decoding."""
    greedy = [record for record in records if record.cell.temperature == 0]
    for _, members in groupby(sorted(greedy or records[:1], key=_engine), key=_engine):
        # The longest prompt: windows and caches show their faults late.
        record = max(members, key=lambda member: (member.prompt_tokens, member.prompt_id))
        try:
            precision = registry()[record.cell.engine].precision(files)
            own = generate(record, study, files, root)
            found = record.baseline.tokens if greedy else plain(_greedy_cell(record, "native"), own.prompt)
        except (RuntimeError, ValueError) as error:  # the engine's and the model's reasons, and memory
            yield BaselineCheck(record, None, f"not compared: {first_line(error)}")
        else:
            yield check_baseline(record, found, own, precision)


def _engine(record: Record) -> str:
    return record.cell.engine


def _greedy_cell(record: Record, engine: str) -> Cell:
    return baseline_of(record.cell).model_copy(update={"engine": engine, "temperature": 0.0, "batch_size": 1})


def generate(record: Record, study: Study, files: PairFiles, root: Path) -> ReferenceOutput:
    """Decode the record's prompt with transformers. Raises EngineError or ModelError where it cannot load the target."""
    import torch

    from specrig.engines.transformers import Transformers

    if not registry()[record.cell.engine].loads_pairs:
        raise EngineError("the model lies with its servers")
    engine = Transformers(files, device=resolve_device(study.device, study.most_gpus()), threads=study.threads)
    texts = {prompt.id: prompt.text for prompt in prepared(study, record.cell.task, files, root)}
    prompt = engine.encode(texts[record.prompt_id])
    cell = _greedy_cell(record, engine.name)
    (made,) = engine.generate(cell, [prompt], max_new_tokens=study.max_new_tokens, seeds=[0])
    with torch.inference_mode():
        tokens = torch.tensor([[*prompt, *made.tokens]], device=engine.device)
        logits = engine.target(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :].float().cpu()
    del engine
    gc.collect()  # its hooks refer to it, and the next check loads the target again
    return ReferenceOutput(prompt, made.tokens, logits)


def check_baseline(record: Record, found: list[int], own: ReferenceOutput, dtype: str) -> BaselineCheck:
    """Compare the tokens `found` with what transformers generated."""

    def logits(tokens: Sequence[int]) -> list[float]:
        scores: list[float] = own.logits[len(tokens) - len(own.prompt)].tolist()
        return scores

    divergence = first_divergence(Answer(record.prompt_id, found, own.tokens), own.prompt, logits, dtype)
    if divergence is None:
        return BaselineCheck(
            record, True, f"{record.prompt_id}: the same {len(found)} tokens after {len(own.prompt)} of prompt"
        )
    return BaselineCheck(record, divergence.tie, ("numerical tie; " if divergence.tie else "") + divergence.describe())
