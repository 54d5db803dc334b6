"""Show outputs to readers, with the tokens that the draft proposed and the target accepted told apart from the target's own."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from specrig.measurement.records import Record, Run
from specrig.models import gguf

Source = Literal["draft", "target"]


class Decoder(Protocol):
    """The part of a tokenizer that `spans` uses."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of an output, the model that its tokens came from, and their round (from 1; 0 is the token from prefill)."""

    text: str
    source: Source
    round: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One record to show. `spans` is None where the tokenizer or the rounds are not known; then only `text` can be shown."""

    record: Record
    prompt: str | None
    spans: list[Span] | None
    text: str


def sources(run: Run) -> list[tuple[Source, int]]:
    """For each token of `run.tokens`: (the model it came from, its round).

    The first token is prefill's, from the target. Each round then has its accepted draft tokens, followed by the target's own
    token.
    Example: accepted [2, 0], emitted [3, 1] gives target | draft draft target | target. Raises ValueError if the rounds do not
    account for all tokens.
    """
    result: list[tuple[Source, int]] = [("target", 0)]
    for number, (accepted, emitted) in enumerate(zip(run.rounds.accepted, run.rounds.emitted, strict=True), 1):
        taken = min(accepted, emitted)
        result += [("draft", number) for _ in range(taken)]
        result += [("target", number) for _ in range(emitted - taken)]
    if len(result) != len(run.tokens):
        raise ValueError(f"rounds account for {len(result)} tokens of {len(run.tokens)}")
    return result


class Writing:
    """Text that grows token by token, cut into spans; neighbouring tokens of the same round and source form one span.

    A character whose bytes are spread over several tokens (byte-level BPE) belongs to the token that completes it. Text is
    decoded from growing prefixes, and a prefix that ends in U+FFFD waits for its next token. The texts of the spans join to the
    decoded output, without loss or repetition.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self.tokens: list[int] = []
        self.spans: list[Span] = []
        self._tokenizer = tokenizer
        self._shown = ""

    def add(self, token: int, source: Source, number: int, *, last: bool = False) -> None:
        """The next token, its source and its round; with the last one, unfinished bytes are shown too."""
        self.tokens.append(token)
        text = self._tokenizer.decode(self.tokens, skip_special_tokens=False)
        if not last and (text.endswith("\ufffd") or not text.startswith(self._shown)):
            return
        new, self._shown = text[len(self._shown) :], text
        if self.spans and (self.spans[-1].source, self.spans[-1].round) == (source, number):
            new = self.spans.pop().text + new
        if new:
            self.spans.append(Span(new, source, number))


def spans(run: Run, tokenizer: Decoder) -> list[Span]:
    """The output of a run as spans (see `Writing`)."""
    writing = Writing(tokenizer)
    for token, (source, number) in zip(run.tokens, (found := sources(run)), strict=True):
        writing.add(token, source, number, last=len(writing.tokens) + 1 == len(found))
    return writing.spans


def sample(record: Record, study_dir: Path, config: dict[str, Any]) -> Sample:
    """The sample of a record, with its prompt where it is on disk, and spans where the target's tokenizer is on disk."""
    prompt = _prompts(study_dir / "prompts" / f"{record.cell.task}.jsonl").get(record.prompt_id)
    tokenizer = _tokenizer(record.cell.pair, study_dir, config)
    found = None
    if tokenizer is not None:
        with suppress(ValueError):  # an engine that reports no rounds: the text alone
            found = spans(record.run, tokenizer)
    return Sample(record, prompt, found, record.text)


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
    from tokenizers import Tokenizer

    tokenizer: Decoder = Tokenizer.from_file(str(path))
    return tokenizer


def _prompts(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {str(row["id"]): str(row["prompt"]) for row in rows if "id" in row and "prompt" in row}
