"""Is plain decoding itself right? It is held against a program that shares neither pass nor cache with ours.

Methods are compared with the plain decoding of their own engine, which cannot show what is wrong in both: a mask, a
wrongly converted file. So a target that came as a GGUF file is decoded by llama.cpp from the file itself, any other by
transformers' `generate` (`audit.references`). Prompt ids, stop ids, greedy tokens and the distribution of the first
token must agree, on a short and a long prompt of the study and around every length at which the model changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from specrig.audit.identity import Answer, first_divergence
from specrig.audit.multiple_testing import REFERENCE
from specrig.audit.references import (
    TABLES,
    LlamaCppReference,
    Output,
    Reference,
    TransformersReference,
    header,
    tolerance,
)
from specrig.cell import Cell
from specrig.engines import registry
from specrig.engines.base import EngineError
from specrig.errors import first_line
from specrig.measurement.blocks import baseline_of
from specrig.measurement.records import Record
from specrig.measurement.task_prompts import prepared
from specrig.models import gate, gguf, hub
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from specrig.study.study import Study

LONGEST = 8192
"""Positions up to which prompts are made; a length beyond it is named in a row as not reached."""
MADE_TOKENS = 32
"""Tokens that are decoded after a made prompt."""


class Native(Protocol):
    """The native engine's plain decoding."""

    def plain(self, cell: Cell, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """What it decodes after `prompt`."""

    def first_logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        """Its logits `[V]` of the first token after `prompt`, in the study's precision."""


@dataclass(frozen=True, slots=True)
class BaselineCheck:
    """Of one engine's baseline on one prompt. record: names engine, pair and task. passed: None where it could not run."""

    record: Record
    test: str
    passed: bool | None
    finding: str


class Request(NamedTuple):
    """A prompt to decode. name: of the prompt; text: None for a made prompt, whose ids are ours."""

    record: Record
    name: str
    prompt: list[int]
    text: str | None
    max_new_tokens: int


def check_baselines(
    records: Sequence[Record], study: Study, files: PairFiles, root: Path, native: Native
) -> Iterator[BaselineCheck]:
    """Checks of each engine that decoded the pair greedily; where none did, of native plain decoding."""
    greedy = [record for record in records if record.cell.temperature == 0]
    members = sorted(greedy or [one for one in records if _engine(one) == _engine(records[0])], key=_engine)
    chosen = {engine: _shortest_and_longest(list(own)) for engine, own in groupby(members, key=_engine)}
    file, test = None, REFERENCE
    try:
        if files.random_weights:
            raise EngineError("its weights are random: only the native engine runs it")
        file = gguf.source_file(files.target)
        test = REFERENCE if file is None else LlamaCppReference.test
        loaded = {engine: own for engine, own in chosen.items() if registry()[engine].loads_pairs}
        requests = list(_requests(loaded, study, files, root)) if loaded else []
        made, unreached = _made(loaded, greedy, requests, files, file)
        outputs, wrong_stops = _outputs([*requests, *made], study, files, file) if loaded else ({}, "")
    except (RuntimeError, ValueError, OSError) as error:  # the engine's and the model's reasons, and memory
        yield from (BaselineCheck(own[-1], test, None, f"not compared: {first_line(error)}") for own in chosen.values())
        return
    for engine, own in chosen.items():
        if engine not in loaded:
            yield BaselineCheck(own[-1], test, None, "not compared: the model lies with its servers")
            continue
        if wrong_stops:
            yield BaselineCheck(own[-1], test, False, wrong_stops)
        for request in [*requests, *made]:
            if request.record.cell.engine == engine:
                yield _checked(request, outputs[_key(request)], greedy, native, files, test)
    for length, what in unreached:
        finding = f"not compared: {what} {length:,} positions, and prompts of the audit end at {_room(files):,}"
        yield BaselineCheck(next(iter(loaded.values()))[-1], test, None, finding)


def _engine(record: Record) -> str:
    return record.cell.engine


def _shortest_and_longest(records: list[Record]) -> list[Record]:
    """One or two records: windows and caches show their faults late, a wrong beginning shows most in a short prompt."""
    ordered = sorted(records, key=lambda record: (record.prompt_tokens, record.prompt_id))
    longest = ordered[-1]
    others = [
        record for record in ordered if record.prompt_id != longest.prompt_id or record.cell.task != longest.cell.task
    ]
    return [*others[:1], longest]


def _requests(loaded: dict[str, list[Record]], study: Study, files: PairFiles, root: Path) -> Iterator[Request]:
    tokenizer = hub.tokenizer(files.target, files.target_revision)
    tasks = {record.cell.task for own in loaded.values() for record in own}
    texts = {task: {prompt.id: prompt.text for prompt in prepared(study, task, files, root)} for task in tasks}
    for own in loaded.values():
        for record in own:
            text = texts[record.cell.task][record.prompt_id]
            yield Request(record, record.prompt_id, tokenizer(text)["input_ids"], text, study.max_new_tokens)


def _room(files: PairFiles) -> int:
    return min(LONGEST, gate.context(files) or LONGEST)


def _made(
    loaded: dict[str, list[Record]],
    greedy: Sequence[Record],
    requests: list[Request],
    files: PairFiles,
    file: Path | None,
) -> tuple[list[Request], list[tuple[int, str]]]:
    """(prompts around each length at which the model changes, the lengths that cannot be reached and why they matter).

    One prompt ends shortly before each length, so that decoding crosses it, and one lies beyond the largest, unless a
    prompt of the study does. They repeat the longest prompt. Only native plain decoding is compared on them.
    """
    if not requests or (greedy and "native" not in loaded):
        return [], []
    longest = max(
        (one for one in requests if not greedy or _engine(one.record) == "native"), key=lambda one: len(one.prompt)
    )
    room, made, reached = _room(files), [], 0
    changes = sorted(switches(files, file).items())
    for length, what in changes:
        if length + MADE_TOKENS // 2 > room:
            continue
        reached = length
        # llama.cpp chooses a rotary table by the size of its context, so there no output crosses from one to the other.
        if file is None or what != ROTARY:
            made.append(max(1, length - MADE_TOKENS // 2))
    beyond = reached + MADE_TOKENS // 2
    if reached and len(longest.prompt) < beyond and beyond + MADE_TOKENS <= room:
        made.append(beyond)
    repeated = longest.prompt * (max(made, default=0) // len(longest.prompt) + 1)
    found = [
        Request(
            longest.record, f"{longest.name}, cut or repeated", repeated[:length], None, min(MADE_TOKENS, room - length)
        )
        for length in dict.fromkeys(made)
    ]
    return found, [(length, what) for length, what in changes if length > reached]


WINDOW = "its attention reaches back"
ROTARY = "its rotary positions change after"


def switches(files: PairFiles, file: Path | None) -> dict[int, str]:
    """Lengths at which the target computes in another way -> what changes there, by its config and the file's header."""
    from transformers import AutoConfig

    from specrig.runtime.attention import layer_patterns

    config = AutoConfig.from_pretrained(files.target, revision=files.target_revision).get_text_config(decoder=True)
    found = {pattern.size: WINDOW for pattern in layer_patterns(config) if pattern.size}
    tables = getattr(config, "rope_parameters", None) or {}
    for table in tables.values() if tables and all(isinstance(table, dict) for table in tables.values()) else [tables]:
        if table.get("rope_type", table.get("type")) in ("longrope", "dynamic"):
            length = table.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            found[length or config.max_position_embeddings] = ROTARY
    if file is not None:
        found |= dict.fromkeys(header(file).windows, WINDOW) | dict.fromkeys(header(file).rotary, ROTARY)
    return found


Key = tuple[tuple[int, ...], int]


def _key(request: Request) -> Key:
    return tuple(request.prompt), request.max_new_tokens


def _outputs(
    requests: Sequence[Request], study: Study, files: PairFiles, file: Path | None
) -> tuple[dict[Key, Output], str]:
    """(what the reference makes of each prompt, how its stop ids differ from ours)."""
    positions = [len(request.prompt) + request.max_new_tokens for request in requests]
    eos = weights_of(files).eos
    with closing(_reference(study, files, file, max(positions))) as reference:
        wrong = sorted(token for token in eos | reference.stops if (token in eos) != reference.ends(token))
        outputs = {
            _key(request): reference.output(request.prompt, request.text, request.max_new_tokens)
            for request in requests
        }
    named = ", ".join(
        f"{token} ends an output {'here' if token in eos else f'in {reference.title}'} alone" for token in wrong
    )
    return outputs, f"stop ids differ: {named}" if named else ""


def _reference(study: Study, files: PairFiles, file: Path | None, positions: int) -> Reference:
    """Raises EngineError or ModelError where the reference is not installed or cannot load the target."""
    if file is None:
        return TransformersReference(files, study)
    return LlamaCppReference(
        file, study, positions, [at for at, what in switches(files, file).items() if what == ROTARY]
    )


def _checked(
    request: Request, output: Output, greedy: Sequence[Record], native: Native, files: PairFiles, test: str
) -> BaselineCheck:
    """The check of one engine on one prompt."""
    record = request.record
    ours_is_native = not greedy or _engine(record) == "native"
    try:
        precision = registry()[_engine(record)].precision(files) if greedy else files.dtype
        if request.text is None or not greedy:
            cell = _greedy_cell(record, "native")
            tokens = native.plain(cell, request.prompt, request.max_new_tokens)
        else:
            tokens = record.baseline.tokens
        logits = native.first_logits(request.prompt) if ours_is_native and output.prompt == request.prompt else None
    except (RuntimeError, ValueError) as error:
        return BaselineCheck(record, test, None, f"not compared: {first_line(error)}")
    return check_baseline(request, tokens, logits, output, test, precision)


def _greedy_cell(record: Record, engine: str) -> Cell:
    return baseline_of(record.cell).model_copy(update={"engine": engine, "temperature": 0.0, "batch_size": 1})


def check_baseline(
    request: Request, tokens: list[int], logits: NDArray[np.float32] | None, output: Output, test: str, precision: str
) -> BaselineCheck:
    """Compare what an engine decoded after a prompt with the reference's output.

    logits: the engine's own `[V]` of the first token; None where it does not give them. precision: what it computes in.
    """
    record, name, prompt = request.record, request.name, request.prompt
    if output.prompt != prompt:
        at = next((i for i, (a, b) in enumerate(zip(prompt, output.prompt, strict=False)) if a != b), -1)
        at = min(len(prompt), len(output.prompt)) if at < 0 else at
        ours, theirs = (" ".join(map(str, ids[at : at + 4])) or "none" for ids in (prompt, output.prompt))
        finding = f"{name}: prompt ids differ from token {at} on: {ours} instead of {theirs}"
        return BaselineCheck(record, test, False, finding)
    limit = max(tolerance(precision), tolerance(output.precision), 0.0 if output.exact else TABLES)
    parts, passed = [], True
    if tokens == output.tokens:
        same = f"the same {len(tokens)} tokens after {len(prompt):,} of prompt"
    elif output.exact:
        divergence = first_divergence(
            Answer(name, tokens, output.tokens),
            prompt,
            lambda before: output.scores[len(before) - len(prompt)].tolist(),
            precision,
        )
        assert divergence is not None
        passed, same = divergence.tie, divergence.describe()
    else:
        passed, same = _described(tokens, output, limit, name)
    if logits is not None:
        difference = output.difference(logits)
        if not difference <= limit:
            passed = False
            parts.append(f"first-token logits differ by {difference:.2g} of their spread (up to {limit:g} passes)")
        else:
            parts.append(f"first-token logits within {difference:.1g} of their spread")
    if tokens == output.tokens:
        text = f"{name}: {same}" if passed else f"{name}: {parts.pop()}; tokens agree, after {len(prompt):,} of prompt"
    else:
        text = ("numerical tie; " if passed else "") + same
    return BaselineCheck(record, test, passed, "; ".join([text, *parts]))


def _described(tokens: list[int], output: Output, limit: float, name: str) -> tuple[bool, str]:
    """(whether rounding explains where the tokens part from the reference's, that place in words).

    It does where the reference itself prefers its token by no more than `limit` times the spread of its logits.
    """
    at = next((i for i, (a, b) in enumerate(zip(tokens, output.tokens, strict=False)) if a != b), None)
    if at is None:
        return False, f"{name}: {len(tokens)} tokens instead of {len(output.tokens)}, the same up to there"
    ours, theirs = tokens[at], output.tokens[at]
    gap = float(output.scores[at][theirs] - output.scores[at][ours]) / output.spread
    return gap <= limit, (
        f"{name}: token {at} is {ours} instead of {theirs} (the reference prefers its own by {gap:.2g} of its logits' "
        f"spread, up to {limit:g} is rounding)"
    )
