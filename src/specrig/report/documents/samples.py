"""Show outputs to readers, each token marked by who wrote it: the draft or the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol

from specrig.measurement.recording import text_ends
from specrig.measurement.records import Record, Run
from specrig.models import gguf, hub
from specrig.report.damage import reading
from specrig.tasks.variants import variant_of

Source = Literal["draft", "target"]


class Decoder(Protocol):
    """The part of a tokenizer that `sample` uses."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of an output, the model that its tokens came from, and their round (from 1; 0 is the token from prefill)."""

    text: str
    source: Source
    round: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One record. spans: None where the tokens' texts or the rounds are not known; then `text` is shown."""

    prompt: str | None
    spans: list[Span] | None
    text: str


def sources(run: Run) -> list[tuple[Source, int]]:
    """For each token of `run.tokens`: (the model it came from, its round).

    The first token is prefill's, from the target. Each round then has its accepted draft tokens, followed by the
    target's own token.
    Example: accepted [2, 0], emitted [3, 1] gives target | draft draft target | target. Raises ValueError if the rounds
    do not account for all tokens.
    """
    result: list[tuple[Source, int]] = [("target", 0)]
    for number, (accepted, emitted) in enumerate(zip(run.rounds.accepted, run.rounds.emitted, strict=True), 1):
        taken = min(accepted, emitted)
        result += [("draft", number) for _ in range(taken)]
        result += [("target", number) for _ in range(emitted - taken)]
    if len(result) != len(run.tokens):
        raise ValueError(f"rounds account for {len(result)} tokens of {len(run.tokens)}")
    return result


def grow(found: list[Span], text: str, source: Source, number: int) -> None:
    """Add a token's text; neighbouring tokens of the same round and source form one span."""
    if found and (found[-1].source, found[-1].round) == (source, number):
        text = found.pop().text + text
    if text:
        found.append(Span(text, source, number))


class Writing:
    """Text that grows token by token, cut into spans. A character waits for the last of its tokens."""

    def __init__(self, tokenizer: Decoder) -> None:
        self.tokens: list[int] = []
        self.spans: list[Span] = []
        self._tokenizer = tokenizer
        self._shown = ""

    def add(self, token: int, source: Source, number: int, *, last: bool = False) -> None:
        """The next token, its source and its round; with the last one, unfinished bytes are shown too."""
        self.tokens.append(token)
        text = self._tokenizer.decode(self.tokens, skip_special_tokens=False)
        if last or (text.startswith(self._shown) and not text.endswith("\ufffd")):
            new, self._shown = text[len(self._shown) :], text
            grow(self.spans, new, source, number)


def spans(run: Run, text: str, ends: Sequence[int]) -> list[Span]:
    """The output `text` cut into spans. ends: see `Record.ends`. Raises ValueError like `sources`."""
    found: list[Span] = []
    for start, end, (source, number) in zip([0, *ends], ends, sources(run), strict=False):
        grow(found, text[start:end], source, number)
    return found


def sample(record: Record, study_dir: Path, config: dict[str, Any]) -> Sample:
    """The sample of a record, with its prompt where it is on disk.

    It has spans where the record knows which characters each token makes, or else where the target's tokenizer is on
    disk.
    """
    prompt = _prompts(study_dir / "prompts" / f"{variant_of(record.cell.task).task}.jsonl").get(record.prompt_id)
    text, ends = record.text, record.ends
    if ends is None and (tokenizer := _tokenizer(record.cell.pair, study_dir, config)):
        decode = partial(tokenizer.decode, skip_special_tokens=False)
        text, ends = decode(record.run.tokens), text_ends(record.run.tokens, decode)
    found = None
    if ends is not None:
        with suppress(ValueError):  # an engine that reports no rounds: the text alone
            found = spans(record.run, text, ends)
    return Sample(prompt, found, record.text)


def _tokenizer(pair: str, study_dir: Path, config: dict[str, Any]) -> Decoder | None:
    row = config.get("rows", {}).get("pairs", {}).get(pair, {})
    local = row.get("target")
    folders = [study_dir / "models" / pair / "target", *([Path(local)] if local else [])]
    if gguf.is_gguf(local):
        folders.append(study_dir / "converted" / gguf.slug(local, row["dtype"]))
    path = next((folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()), None)
    return _load(path) if path else None


@lru_cache(maxsize=4)
def _load(path: Path) -> Decoder:
    tokenizer: Decoder = hub.read_tokenizer(path)
    return tokenizer


def _prompts(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    with reading(path):
        rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        return {str(row["id"]): str(row["prompt"]) for row in rows if "id" in row and "prompt" in row}
