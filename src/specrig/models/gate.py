"""The gate: it refuses models and pairs that cannot work, by their small files and the headers of their weights, before
any weight is read. `plan`, `decode` and loading all ask here, so what one says the others say.

No torch here. Speculation needs a decoder-only target and draft; most engines need one vocabulary for both, id by id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from specrig.errors import first_line
from specrig.models import facts, gguf, hub, needs, weight_files
from specrig.models.pair import ModelError, PairFiles
from specrig.runtime.rotary import switch_of
from specrig.runtime.whole import named_ends

AGAIN = "copy or train the model again"
MEDIA = re.compile(r"image|audio|video|vision", re.IGNORECASE)
"""In a special token that stands for what is no text."""
SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "n_positions"),
)
"""Keys of a config.json that sizes and limits are computed from."""


def json_object(path: Path, *keys: str) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError, with the path and the fix, for another content or without `keys`."""
    try:
        if weight_files.is_pointer(path):
            weight_files.check_files(path.parent)
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
    """A model's config.json, with what other files of its folder say of a quantization."""
    return weight_files.noted_quantization(Path(model)) | _json(model, "config.json", revision)


def check_model(model: str, revision: str | None = None, *, drafts: bool = False) -> None:
    """Raise ModelError unless `model` (folder or hub id) is a decoder-only language model whose files are there and fit
    each other. Of a model on the hub only the small files are read.

    drafts: its embedding may lack the last tokens of its tokenizer, which it then never drafts.
    """
    check_decoder(model, revision)
    if Path(model).is_dir():
        check_weights(Path(model))
    _check_ids(model, revision, drafts)


def check_weights(folder: Path) -> None:
    """Raise ModelError where the weights in a model folder are not those of its config.json, by their headers."""
    weight_files.check_files(folder)
    found = config(str(folder))
    tensors = weight_files.headers(folder) if needs.quantized(found) is None else {}
    if tensors and (reason := weight_files.contradiction(needs.text_config(found), tensors)) is not None:
        raise ModelError(f"{folder}: {reason}")


def check_decoder(model: str, revision: str | None = None) -> None:
    """Raise ModelError unless `model` (folder or hub id) is a decoder-only language model with possible sizes."""
    folder = Path(model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{model} {weight_files.instead_of_model(folder)}; give a folder in Hugging Face format (config.json, "
            "*.safetensors, tokenizer.json) or a hub id"
        )
    try:
        found = config(model, revision)
    except hub.FileMissingError as missing:
        try:
            hub.fetch(model, weight_files.ADAPTER, revision)
        except hub.FileMissingError:
            raise missing from None
        raise ModelError(
            f"{model} holds an adapter (LoRA), which runs only inside its model: {weight_files.MERGE}"
        ) from missing
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
    if (kind := needs.head(found)) is not None:
        raise ModelError(
            f"{model}: a head ({kind}), which drafts inside a target and is no model by itself: name it in the column "
            "heads (`--head <name>=FOLDER`), beside its target"
        )
    reason = facts.no_decoder(model, found)
    if reason is not None:
        raise ModelError(reason)


def vocab_size(model: str, revision: str | None = None, *, drafts: bool = False) -> int:
    """V, the tokens that a target can emit: the rows of its embedding up to the largest id that its tokenizer, or an end
    of sequence, names. Rows beyond are padding, which no text holds: they are masked for every method, plain decoding
    included. Holes between named ids stay, since some models write them.

    drafts: of a draft that is served alone, its target's V: it has the target's tokenizer, and may have fewer rows.
    """
    rows = needs.text_config(config(model, revision)).get("vocab_size", 0)
    if targets_tokenizer(model):
        return int(rows)
    named = max(_named_ids(model, revision), default=rows - 1)
    return int(named + 1 if drafts else min(rows, named + 1))


def stop_ids(model: str, revision: str | None = None) -> tuple[int, ...]:
    """The ids that end a text, as a model's generation_config.json names them, else its config.json, else its tokenizer.

    Nothing else is read from generation_config.json: how to sample is the study's to say.
    """
    for name in ("generation_config.json", "config.json"):
        try:
            ends = named_ends(_json(model, name, revision))
        except hub.FileMissingError:
            continue
        except ValueError as error:
            raise ModelError(f"{model}/{name}: {error}") from error
        if ends is not None:
            return ends
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            token = _json(model, name, revision).get("eos_token")
        except hub.FileMissingError:
            continue
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and (end := vocabulary(model, revision).get(token)) is not None:
            return (end,)
    return ()


def _named_ids(model: str, revision: str | None) -> Iterable[int]:
    """The ids that a model's files name: of its tokenizer's tokens, and those that end a text."""
    try:
        added = _json(model, "tokenizer_config.json", revision).get("added_tokens_decoder") or {}
    except hub.FileMissingError:
        added = {}
    more = (int(number) for number in added if str(number).isdigit())
    return [*vocabulary(model, revision).values(), *more, *stop_ids(model, revision)]


def _check_ids(model: str, revision: str | None, drafts: bool) -> None:
    """Raise ModelError where an id that the tokenizer or config.json names has no row in the embedding."""
    described = config(model, revision)
    rows = needs.text_config(described).get("vocab_size")
    if type(rows) is not int:
        return
    if type(pad := described.get("pad_token_id")) is int and pad >= rows:
        raise ModelError(f"{model}/config.json: pad_token_id is {pad}, the model has {rows} tokens: set it to null")
    if drafts:
        return
    tokens, ends = vocabulary(model, revision), stop_ids(model, revision)
    # A text-only Gemma 3 has the tokenizer of its sister that sees: a token for images without a row, which no text holds.
    surplus = [
        token for token, number in tokens.items() if number >= rows and (number in ends or not MEDIA.search(token))
    ]
    if surplus:
        largest = max(surplus, key=tokens.__getitem__)
        raise ModelError(
            f"{model}: its tokenizer has {len(tokens)} tokens up to id {tokens[largest]} ({largest!r}), its embedding has "
            f"{rows} rows: take the tokenizer that the model was trained with, or give the model the rows "
            "(`resize_token_embeddings`)"
        )
    for name, number in [*(("eos", end) for end in ends), ("bos", described.get("bos_token_id"))]:
        if type(number) is int and number >= rows:
            raise ModelError(
                f"{model}: its {name}_token_id is {number}, the model has {rows} tokens: correct it in config.json and "
                "generation_config.json"
            )


def tokenizer_layout(model: str, revision: str | None = None) -> dict[str, Any]:
    """A model's tokenizer.json. Raises FileMissingError where an older tokenizer has none."""
    return _json(model, "tokenizer.json", revision)


def vocabulary(model: str, revision: str | None = None) -> dict[str, int]:
    """Token -> id, added tokens included, from a model's tokenizer.json or, of an older model, from another of
    `weight_files.TOKENIZERS`.
    """
    try:
        tokenizer = tokenizer_layout(model, revision)
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
    """The same from the file of an older tokenizer, as transformers reads it. Raises `missing` where there is none."""
    for name in weight_files.TOKENIZERS[1:]:
        try:
            hub.fetch(model, name, revision)
        except hub.FileMissingError:
            continue
        found: dict[str, int] = hub.tokenizer(model, revision).get_vocab()
        return found
    raise hub.FileMissingError(  # transformers would make up an empty tokenizer
        f"{model}: no tokenizer there ({', '.join(weight_files.TOKENIZERS)}); copy it from the model that it was "
        "trained from"
    ) from missing


def targets_tokenizer(draft: str) -> bool:
    """Whether a draft's folder says that its tokenizer is the target's: it drafts for the one that it was trained for."""
    file = Path(draft).expanduser() / "config.json"
    noted = json_object(file).get("specrig") if file.is_file() else None
    return isinstance(noted, dict) and noted.get("tokenizer") == "target"


def other_vocabulary(
    target: str, draft: str, target_revision: str | None = None, draft_revision: str | None = None
) -> str | None:
    """In what a draft's vocabulary is another than its target's; None: both tokenizers map the same tokens to the same
    ids.
    """
    if targets_tokenizer(draft):
        return None
    ours, theirs = vocabulary(target, target_revision), vocabulary(draft, draft_revision)
    if ours == theirs:
        return None
    differing = sorted(
        (token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]), key=ours.__getitem__
    )
    example = ""
    if differing:
        token = differing[0]
        example = f"; {token!r} is {ours[token]} in the target and {theirs[token]} in the draft"
    return (
        f"the draft {draft} does not share the vocabulary of the target {target}: {len(theirs)} tokens against "
        f"{len(ours)}, {len(ours.keys() ^ theirs.keys())} in one only, {len(differing)} with another id{example}"
    )


def check_vocabulary(
    target: str, draft: str, target_revision: str | None = None, draft_revision: str | None = None
) -> None:
    """Raise ModelError unless both tokenizers map the same tokens to the same ids."""
    if (reason := other_vocabulary(target, draft, target_revision, draft_revision)) is not None:
        raise ModelError(f"{reason}. {facts.OTHER_DRAFT}")


def config_of(pair: PairFiles) -> dict[str, dict[str, Any]]:
    """`target` and `draft` -> config.json, from the shipped facts for a pair of random weights. Raises ModelError."""
    found = {}
    for part, model in (("target", pair.target), ("draft", pair.draft)):
        if model is None:
            continue
        known = facts.known(model)
        revision = pair.target_revision if part == "target" else pair.draft_revision
        if gguf.is_gguf(model):
            found[part] = gguf.config(model)
        else:
            found[part] = known.config if pair.random_weights and known else _json(model, "config.json", revision)
    return found


def context(pair: PairFiles) -> int | None:
    """Positions that the target can address; None where its config does not say."""
    config = config_of(pair.only(()))["target"]
    return config.get("max_position_embeddings") or config.get("n_positions")


def rotary_switch(pair: PairFiles) -> int | None:
    """The most tokens of a text for which the target uses its first rotary table (`runtime.rotary`); None: it has one."""
    return switch_of(needs.text_config(config_of(pair.only(()))["target"]))


def check_pair(pair: PairFiles) -> None:
    """Everything that can be refused about a pair without reading weights, whatever drafts."""
    check_model(pair.target, pair.target_revision)
    check_draft(pair)


def check_draft(pair: PairFiles) -> None:
    """Everything that can be refused about a pair's draft, if it has one, without reading weights."""
    if pair.draft is not None:
        check_model(pair.draft, pair.draft_revision, drafts=True)
