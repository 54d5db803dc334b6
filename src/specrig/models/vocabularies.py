"""What two tokenizers have in common: the tokens of a draft and of a target that stand for the same bytes. No torch here.

A token is compared by its bytes, spaces in front kept: byte-level BPE writes them as letters (`Ġ` is a space),
SentencePiece writes `▁` for a space and `<0xNN>` for a byte that has no token of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from specrig.models import gate, hub, needs
from specrig.models.pair import ModelError

UNKNOWN_ALPHABETS = {"BPEDecoder", "CTC", "WordPiece"}
"""Decoders of tokenizers that leave out the spaces between words: a token does not say whether one stands before it."""


@cache
def _byte_of_letter() -> dict[str, int]:
    """The bytes that byte-level BPE writes as letters: printable ones as they are, the others from U+0100 on (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Vocabulary:
    """A tokenizer's tokens as bytes, and the tokens that spell given bytes."""

    def __init__(self, model: str, revision: str | None = None) -> None:
        """model: a folder or a hub id. Raises ModelError for a tokenizer whose tokens do not stand for bytes."""
        self.model, self.revision = model, revision
        tokens, layout = gate.vocabulary(model, revision), self._layout()
        kinds = set(_types(layout.get("decoder"))) | set(_types(layout.get("pre_tokenizer")))
        if unknown := sorted(kinds & UNKNOWN_ALPHABETS):
            raise ModelError(f"{model}: a tokenizer of the kind {unknown[0]} does not say where its tokens have spaces")
        self.byte_level = "ByteLevel" in kinds
        self.marks_spaces = not self.byte_level and bool(kinds & {"ByteFallback", "Metaspace", "Replace"})
        added = {entry["content"]: bool(entry.get("special")) for entry in layout.get("added_tokens") or ()}
        self.special = {content: tokens[content] for content, special in added.items() if special}
        """Tokens that stand for no text: content -> id."""
        self.size = max(tokens.values()) + 1
        self.bytes: dict[int, bytes] = {}
        self.ids: dict[bytes, int] = {}
        """Bytes -> the token that spells them: of several the one that is no single byte's stand-in, then the lowest."""
        spelled = ((number, token) for token, number in tokens.items() if token not in self.special)
        for number, token in sorted(spelled, key=lambda item: (self._stand_in(item[1]), item[0])):
            text = token.encode() if token in added else self._bytes(token)
            self.bytes[number] = text
            self.ids.setdefault(text, number)
        self._longest = max(map(len, self.ids), default=0)

    def _layout(self) -> dict[str, Any]:
        """The tokenizer's file; of an older tokenizer as transformers reads it."""
        try:
            return gate.tokenizer_layout(self.model, self.revision)
        except hub.FileMissingError:
            import json

            layout: dict[str, Any] = json.loads(self.tokenizer.to_str())
            return layout

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer itself (`tokenizers.Tokenizer`)."""
        try:
            return hub.read_tokenizer(hub.fetch(self.model, "tokenizer.json", self.revision))
        except hub.FileMissingError:
            return hub.tokenizer(self.model, self.revision).backend_tokenizer

    def spell(self, text: bytes, *, skip: bool = False) -> list[int]:
        """The tokens of a text, as the tokenizer would write it in the middle of one: nothing is added in front or lost.

        Bytes that no token stands for end the text, or are left out with `skip`.
        """
        try:
            words = text.decode()
        except UnicodeDecodeError:  # begins or ends within a character
            return self._by_longest(text, skip)
        for tokens in (self.tokenizer.encode(words, add_special_tokens=False).ids, self._bare(words)):
            # Some tokenizers put a space in front, or tidy the text; then the next way is tried.
            if b"".join(self.bytes.get(token, b"") for token in tokens) == text:
                return list(tokens)
        return self._by_longest(text, skip)

    def _bare(self, words: str) -> list[int]:
        """The tokens that the tokenizer's model alone gives, without what stands around it."""
        if self.byte_level:
            letters = {byte: letter for letter, byte in _byte_of_letter().items()}
            words = "".join(letters[byte] for byte in words.encode())
        elif self.marks_spaces:
            words = words.replace(" ", "▁")
        try:
            return [token.id for token in self.tokenizer.model.tokenize(words)]
        except Exception:  # a character that the model does not have, where it has no token for unknown ones
            return []

    def _by_longest(self, text: bytes, skip: bool) -> list[int]:
        """The longest token that fits, again and again."""
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            length = next((length for length in lengths if text[at : at + length] in self.ids), 0)
            if length:
                ids.append(self.ids[text[at : at + length]])
            elif not skip:
                break
            at += max(length, 1)
        return ids

    def _stand_in(self, token: str) -> bool:
        return self.marks_spaces and len(token) == 6 and token.startswith("<0x") and token.endswith(">")

    def _bytes(self, token: str) -> bytes:
        if self.byte_level:
            letters = _byte_of_letter()
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
        elif self._stand_in(token):
            return bytes([int(token[3:5], 16)])
        elif self.marks_spaces:
            return token.replace("▁", " ").encode()
        return token.encode()


def _types(part: Any) -> Iterator[str]:
    """The types of a tokenizer's part and of the parts in it."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for inner in part.values():
            yield from _types(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _types(inner)


@dataclass(frozen=True, slots=True)
class TokenMap:
    """Between the ids of a target and those of its draft, which numbers its tokens anew (`order`).

    order: the draft's id of each of its tokens in the new numbers. common: the target's ids of the first
    `len(common)` of them, which stand for the same; behind them come the draft's other tokens. By strings `common` is
    empty: the draft keeps its ids, and what it drafts is spelled in the target's tokens.
    """

    target: Vocabulary
    draft: Vocabulary
    order: Sequence[int]
    common: Sequence[int]
    special: dict[int, int]
    """The draft's id of each special token of the target that it has too."""
    _images: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    """The draft's id -> its new number."""

    def read(self, tokens: Iterable[int]) -> list[int]:
        """The target's tokens as the draft reads them: each common one as itself, of the others the text. In new
        numbers; a token is one of the draft's at least.
        """
        ids: list[int] = []
        for token in tokens:
            if (image := self._images.get(token)) is None:
                image = self._images[token] = self._image(token)
            ids += image
        return ids

    def _image(self, token: int) -> tuple[int, ...]:
        text = self.target.bytes.get(token, b"")
        if token in self.special:
            ids = [self.special[token]]
        elif text in self.draft.ids:
            ids = [self.draft.ids[text]]
        else:  # of a special token its name
            name = next((name for name, number in self.target.special.items() if number == token), "")
            ids = self.draft.spell(text or name.encode(), skip=True)
        return tuple(self._numbers[number] for number in ids or [0])

    def spelled(self, drafted: Iterable[int]) -> list[int]:
        """What the draft drafted, by strings: its text in the target's tokens, up to the last whole character and to a
        special token that the target does not have.
        """
        ids, text = [], b""
        back = {theirs: ours for ours, theirs in self.special.items()}
        for token in drafted:
            if token in self.draft.bytes:
                text += self.draft.bytes[token]
                continue
            ids += self.target.spell(text)
            text = b""
            if token not in back:
                break
            ids.append(back[token])
        return ids + self.target.spell(text[: len(text) - _begun(text)])

    def shares(self) -> tuple[int, float]:
        """How many tokens both have, and the share of the target's that these are."""
        both = len(self.target.ids.keys() & self.draft.ids.keys()) + len(self.special)
        return both, both / (len(self.target.ids) + len(self.target.special))

    def said(self, tokens: Sequence[int]) -> float:
        """The share of these tokens of the target that the draft has too."""
        both = sum(token in self.special or self.target.bytes.get(token) in self.draft.ids for token in tokens)
        return both / len(tokens) if tokens else 0.0


def _begun(text: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that does not end there."""
    for back, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back else 0
        if byte < 0x80:
            break
    return 0


def token_map(
    target: str,
    draft: str,
    target_revision: str | None = None,
    draft_revision: str | None = None,
    *,
    strings: bool = False,
) -> TokenMap:
    """How a draft of another vocabulary reads and writes its target's text. strings: by its text alone.

    A special token is common where both have it by the same name, or where it ends a text in both. The token that the
    target puts in front of a text is what the draft puts there.
    """
    ours, theirs = _vocabulary(target, target_revision), _vocabulary(draft, draft_revision)
    limit, rows = gate.vocab_size(target, target_revision), _rows(draft, draft_revision)
    special = {ours.special[name]: theirs.special[name] for name in ours.special.keys() & theirs.special.keys()}
    for one, other in zip(_roles(target, target_revision), _roles(draft, draft_revision), strict=True):
        if one is not None and other is not None and one not in special and other not in special.values():
            special[one] = other
    special = {one: other for one, other in special.items() if one < limit and other < rows}
    pairs = dict(special)
    for text, one in ours.ids.items():
        other = theirs.ids.get(text)
        if other is not None and one < limit and other < rows and one not in pairs:
            pairs[one] = other
    size = max(theirs.size, rows)
    if strings:
        order, common = list(range(size)), []
    else:
        common = sorted(pairs)
        first = [pairs[token] for token in common]
        taken = set(first)
        order = [*first, *(token for token in range(size) if token not in taken)]
        if not common:
            raise ModelError(
                f"the draft {draft} has no token in common with the target {target}: take `vocabularies: strings`"
            )
    return TokenMap(ours, theirs, order, common, special, _numbers={token: place for place, token in enumerate(order)})


@cache
def _vocabulary(model: str, revision: str | None) -> Vocabulary:
    return Vocabulary(model, revision)


def _rows(model: str, revision: str | None) -> int:
    return int(needs.text_config(gate.config(model, revision))["vocab_size"])


def _roles(model: str, revision: str | None) -> tuple[int | None, int | None]:
    """The ids of the token that ends a text and of the one that stands in front."""
    ends, begins = gate.stop_ids(model, revision), gate.config(model, revision).get("bos_token_id")
    return (ends[0] if ends else None), (begins if isinstance(begins, int) else None)
