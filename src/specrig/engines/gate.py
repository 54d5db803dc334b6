"""The gate: pairs that can never work are refused from their config and tokenizer files, before any weight is read.

No torch here. Speculation needs a decoder-only target and draft that share one vocabulary, id by id.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from specrig.engines.base import EngineError, PairFiles

ENCODERS = {
    "albert",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "roberta",
    "xlm-roberta",
}


@cache
def _json(folder: str, name: str, revision: str | None = None) -> dict[str, Any]:
    """A JSON file of a model: from its folder, or from the hub (respecting offline mode and the cache)."""
    if Path(folder).is_dir():
        path = Path(folder) / name
        if not path.is_file():
            raise EngineError(
                f"{folder}: no {name} there; a model folder needs config.json, model.safetensors and tokenizer.json"
            )
    else:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

        try:
            path = Path(hf_hub_download(folder, name, revision=revision))
        except RepositoryNotFoundError as error:
            raise EngineError(
                f"{folder}: neither a folder here nor a model on the hub (gated models need `hf auth login`)"
            ) from error
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EngineError(
                f"{folder}: {name} cannot be fetched from the hub ({reason}); download the model and give its folder"
            ) from error
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path}: not valid JSON ({error})") from error
    return content


def config(model: str, revision: str | None = None) -> dict[str, Any]:
    """A model's config.json."""
    return _json(model, "config.json", revision)


def check_decoder(model: str, revision: str | None = None) -> None:
    """Raise EngineError unless `model` (folder or hub id) is a decoder-only language model."""
    described = config(model, revision)
    kind, architectures = described.get("model_type", "?"), described.get("architectures") or []
    if described.get("is_encoder_decoder"):
        raise EngineError(f"{model}: {kind} is an encoder-decoder; SpecRig needs a decoder-only language model (…ForCausalLM)")
    causal = any("CausalLM" in name or "LMHeadModel" in name for name in architectures)
    if kind in ENCODERS or (architectures and not causal):
        raise EngineError(
            f"{model}: {kind} ({', '.join(architectures) or 'no architecture named'}) is an encoder, it cannot generate text token by "
            "token, so it can neither draft nor verify; choose a decoder-only model (…ForCausalLM)"
        )


def vocabulary(model: str, revision: str | None = None) -> dict[str, int]:
    """Token -> id of a model's tokenizer.json, added tokens included."""
    tokenizer = _json(model, "tokenizer.json", revision)
    tokens = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(tokens, list):  # Unigram: a list of (token, score)
        tokens = {entry[0]: index for index, entry in enumerate(tokens)}
    return {**tokens, **{added["content"]: added["id"] for added in tokenizer.get("added_tokens", [])}}


def check_vocabulary(target: str, draft: str, target_revision: str | None = None, draft_revision: str | None = None) -> None:
    """Raise EngineError unless both tokenizers map the same tokens to the same ids."""
    ours, theirs = vocabulary(target, target_revision), vocabulary(draft, draft_revision)
    if ours == theirs:
        return
    differing = sorted((token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]), key=ours.__getitem__)
    example = ""
    if differing:
        token = differing[0]
        example = f"; {token!r} is {ours[token]} in the target and {theirs[token]} in the draft"
    raise EngineError(
        f"the draft {draft} does not share the vocabulary of the target {target}: {len(theirs)} tokens against {len(ours)}, "
        f"{len(ours.keys() ^ theirs.keys())} in one only, {len(differing)} with another id{example}. "
        "Choose a draft of the same family, or a method without a draft model (ngram)"
    )


def check_pair(pair: PairFiles) -> None:
    """Everything that can be refused about a pair without reading weights."""
    check_decoder(pair.target, pair.target_revision)
    if pair.draft is not None:
        check_decoder(pair.draft, pair.draft_revision)
        check_vocabulary(pair.target, pair.draft, pair.target_revision, pair.draft_revision)
