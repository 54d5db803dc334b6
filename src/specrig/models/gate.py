"""The gate: it refuses pairs that cannot work, by their config and tokenizer files alone, before any weight is read.

No torch here. Speculation needs a decoder-only target and draft that share one vocabulary, id by id.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from specrig.errors import first_line
from specrig.models import facts, hub
from specrig.models.pair import ModelError, PairFiles

AGAIN = "copy or train the model again"
SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "n_positions"),
)
"""Keys of a config.json that sizes and limits are computed from."""


def json_object(path: Path, *keys: str) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError, with the path and the fix, for another content or without `keys`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({first_line(error)}); {AGAIN}") from error
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise ModelError(f"{path}: not an object{' with ' if keys else ''}{', '.join(keys)}; {AGAIN}")
    return content


@cache
def _json(folder: str, name: str, revision: str | None = None) -> dict[str, Any]:
    """A JSON file of a model: from its folder, or from the hub (respecting offline mode and the cache)."""
    return json_object(hub.fetch(folder, name, revision))


def config(model: str, revision: str | None = None) -> dict[str, Any]:
    """A model's config.json."""
    return _json(model, "config.json", revision)


def check_decoder(model: str, revision: str | None = None) -> None:
    """Raise ModelError unless `model` (folder or hub id) is a decoder-only language model with possible sizes."""
    found = config(model, revision)
    kinds = found.get("architectures") or []
    if (
        not isinstance(found.get("model_type", ""), str)
        or not isinstance(kinds, list)
        or not all(isinstance(kind, str) for kind in kinds)
    ):
        raise ModelError(f"{model}/config.json: model_type and architectures are no names; {AGAIN}")
    for name in SIZES:
        size = found.get(name)
        # Some architectures list a size for each layer.
        if size is not None and not isinstance(size, list) and (type(size) is not int or not 0 < size < 1 << 40):
            raise ModelError(f"{model}/config.json: {name}: {str(size)[:80]} is no size; {AGAIN}")
    reason = facts.no_decoder(model, found)
    if reason is not None:
        raise ModelError(reason)


def vocabulary(model: str, revision: str | None = None) -> dict[str, int]:
    """Token -> id, added tokens included, from a model's tokenizer.json or, of an older model, from the files in
    `OLDER`.
    """
    try:
        tokenizer = _json(model, "tokenizer.json", revision)
    except hub.FileMissingError as missing:
        return _older_vocabulary(model, revision, missing)
    try:
        tokens = tokenizer.get("model", {}).get("vocab", {})
        if isinstance(tokens, list):  # Unigram: a list of (token, score)
            tokens = {entry[0]: index for index, entry in enumerate(tokens)}
        found = {**tokens, **{added["content"]: added["id"] for added in tokenizer.get("added_tokens") or ()}}
        if not all(isinstance(number, int) for number in found.values()):
            raise TypeError("the id of a token is no whole number")
    except (AttributeError, LookupError, TypeError) as error:
        raise ModelError(f"{model}/tokenizer.json: not a tokenizer ({first_line(error)}); {AGAIN}") from error
    return found


def _older_vocabulary(model: str, revision: str | None, missing: hub.FileMissingError) -> dict[str, int]:
    """The same from a file of `OLDER`, as transformers reads it. Raises `missing` where there is none."""
    for name in OLDER:
        try:
            hub.fetch(model, name, revision)
        except hub.FileMissingError:
            continue
        found: dict[str, int] = hub.tokenizer(model, revision).get_vocab()
        return found
    raise missing  # without any, transformers would make up an empty tokenizer


OLDER = ("vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")
"""Files in which tokenizers older than tokenizer.json keep their tokens: byte-level BPE, SentencePiece (two names),
WordPiece.
"""


def targets_tokenizer(draft: str) -> bool:
    """Whether a draft's folder says that its tokenizer is the target's: it drafts for the one that it was trained for."""
    file = Path(draft).expanduser() / "config.json"
    noted = json_object(file).get("specrig") if file.is_file() else None
    return isinstance(noted, dict) and noted.get("tokenizer") == "target"


def check_vocabulary(
    target: str, draft: str, target_revision: str | None = None, draft_revision: str | None = None
) -> None:
    """Raise ModelError unless both tokenizers map the same tokens to the same ids."""
    if targets_tokenizer(draft):
        return
    ours, theirs = vocabulary(target, target_revision), vocabulary(draft, draft_revision)
    if ours == theirs:
        return
    differing = sorted(
        (token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]), key=ours.__getitem__
    )
    example = ""
    if differing:
        token = differing[0]
        example = f"; {token!r} is {ours[token]} in the target and {theirs[token]} in the draft"
    raise ModelError(
        f"the draft {draft} does not share the vocabulary of the target {target}: {len(theirs)} tokens against "
        f"{len(ours)}, {len(ours.keys() ^ theirs.keys())} in one only, {len(differing)} with another id{example}. "
        "Choose a draft of the same family, or a method without a draft model (ngram)"
    )


def config_of(pair: PairFiles) -> dict[str, dict[str, Any]]:
    """`target` and `draft` -> config.json, from the shipped facts for a pair of random weights. Raises ModelError."""
    found = {}
    for part, model in (("target", pair.target), ("draft", pair.draft)):
        if model is None:
            continue
        known = facts.known(model)
        revision = pair.target_revision if part == "target" else pair.draft_revision
        found[part] = known.config if pair.random_weights and known else _json(model, "config.json", revision)
    return found


def context(pair: PairFiles) -> int | None:
    """Positions that the target can address; None where its config does not say."""
    config = config_of(pair.only(()))["target"]
    return config.get("max_position_embeddings") or config.get("n_positions")


def check_pair(pair: PairFiles) -> None:
    """Everything that can be refused about a pair without reading weights."""
    check_decoder(pair.target, pair.target_revision)
    if pair.draft is not None:
        check_decoder(pair.draft, pair.draft_revision)
        check_vocabulary(pair.target, pair.draft, pair.target_revision, pair.draft_revision)
