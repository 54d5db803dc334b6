"""Files of models: from a folder, or from the hub, with errors that say what to do. Offline mode (HF_HUB_OFFLINE) and
the cache are huggingface_hub's. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from specrig.errors import first_line
from specrig.models import facts
from specrig.models.pair import ModelError, PairFiles


class FileMissingError(ModelError):
    """A file that is missing: in the folder, in the repository or, offline, in the cache. It does not mean that the hub
    cannot be reached.
    """


def _is_folder(model: str) -> bool:
    """Whether a model is a folder here, else a repository. Raises ModelError for what is neither."""
    if Path(model).is_dir():
        return True
    if model.count("/") > 1:
        raise ModelError(
            f"{model}: there is no such folder. A run makes those in results/, of GGUF files and by training; a GGUF file "
            "is named as it is"
        )
    return False


def fetch(model: str, name: str, revision: str | None = None) -> Path:
    """The path of one of a model's files. Raises FileMissingError when it is not there, ModelError when the hub does
    not give it.
    """
    if _is_folder(model):
        path = Path(model) / name
        if not path.is_file():
            raise FileMissingError(
                f"{model}: no {name} there; a model folder needs config.json, model.safetensors and tokenizer.json"
            )
        return path
    from huggingface_hub import hf_hub_download

    return Path(_request(model, name, lambda: hf_hub_download(model, name, revision=revision), revision))


def at_hand(model: str, name: str, revision: str | None = None) -> Path | None:
    """One of a model's files, from its folder or from the hub's cache; None where it is not there. Nothing is requested."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, name, revision=revision)
    except HFValidationError:  # no name of a repository, which is said elsewhere
        return None
    return Path(cached) if isinstance(cached, str) else None


MODEL = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files that a language model is loaded from; a repository may hold the same weights in other formats besides."""


def fetch_folder(model: str, revision: str | None = None, only: Sequence[str] | None = None) -> Path:
    """A folder with all of a model's (or a trained head's) files, or with those that match a pattern in `only`. Raises
    ModelError.
    """
    if _is_folder(model):
        return Path(model)
    from huggingface_hub import snapshot_download

    patterns = None if only is None else list(only)
    return Path(
        _request(model, "it", lambda: snapshot_download(model, revision=revision, allow_patterns=patterns), revision)
    )


def tokenizer(model: str, revision: str | None = None) -> Any:
    """A model's tokenizer, as transformers loads it. Raises ModelError. Imports transformers."""
    _is_folder(model)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
    except Exception as error:  # a format that is none, a library that is missing: each has its own
        reason = first_line(error)
        # Of a SentencePiece file that it cannot read transformers says that it may be tiktoken's.
        if find_spec("sentencepiece") is None and ("tiktoken" in reason or "sentencepiece" in reason.lower()):
            reason = "it is SentencePiece's, which is not installed: `pip install sentencepiece`"
        raise ModelError(f"{model}: its {_refused(model, revision)} cannot be loaded: {reason}") from error


def _refused(model: str, revision: str | None) -> str:
    """Which of a model's files transformers refused when it loaded the tokenizer, for which it reads config.json too."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(model, revision=revision)
    except Exception:
        return "config.json"
    return "tokenizer"


def read_tokenizer(file: Path) -> Any:
    """The tokenizer of a tokenizer.json. Raises ModelError, with the path and the fix, for a file that is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no type of its own
        raise ModelError(f"{file}: not a tokenizer ({first_line(error)}); copy or train the model again") from error


def at_commits(pair: PairFiles) -> PairFiles:
    """The pair with each revision on the hub replaced by the commit that it stands for now.

    Everything loaded afterwards is then of that commit, even if the hub changes meanwhile, and the environment can name
    it. A part whose commit cannot be found keeps its revision; if it is loaded, that will say why.
    """
    if pair.random_weights:
        return pair  # shapes come from the shipped facts
    commits = {}
    for name, source in pair.sources.items():
        if Path(source).is_dir():
            continue
        try:
            # In the cache a file lies in snapshots/<commit>.
            commits[name] = fetch(source, "config.json", pair.revisions.get(name)).parent.name
        except ModelError:
            continue
    return replace(
        pair,
        target_revision=commits.get("target", pair.target_revision),
        draft_revision=commits.get("draft", pair.draft_revision),
        head_revisions=pair.head_revisions | {name: commit for name, commit in commits.items() if name in pair.heads},
    )


def offline() -> bool:
    """Whether the hub's offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def present_commit(repository: str, kind: Literal["model", "dataset"]) -> str:
    """The commit that the hub's default branch is at now. Raises ModelError."""
    from huggingface_hub import HfApi

    return _request(repository, "its commit", lambda: str(HfApi().repo_info(repository, repo_type=kind).sha))


def _request(repository: str, what: str, request: Callable[[], str], revision: str | None = None) -> str:
    """The hub's answer to `request`. Raises ModelError where it refuses, with the fix. what: the thing requested."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return request()
    except GatedRepoError as error:
        known = facts.known(repository)
        asks = known.gated if known and known.gated else "ask for access on its page, then `hf auth login`"
        raise ModelError(f"{repository}: gated, its owner lets in only who agreed to the terms: {asks}") from error
    except RevisionNotFoundError as error:
        reason = (
            f"the hub has no revision {revision!r} of it; correct it in its row, or empty it there and run `specrig "
            "pin`"
        )
        raise ModelError(f"{repository}: {reason}") from error
    except RemoteEntryNotFoundError as error:
        raise FileMissingError(
            f"{repository}: its repository holds no {what}{f' at {revision}' if revision else ''}"
        ) from error
    except Exception as error:  # whatever the client's own HTTP library raises
        # To who has not logged in the hub says 401 of a repository that is private, and of one that is missing.
        if (
            isinstance(error, RepositoryNotFoundError)
            or getattr(getattr(error, "response", None), "status_code", None) == 401
        ):
            reason = "neither a folder here nor on the hub, or private: correct its row, or `hf auth login`"
            raise ModelError(f"{repository}: {reason}") from error
        if offline():
            reason = (
                "offline mode is on (HF_HUB_OFFLINE) and the cache does not hold it: unset it and run once with the "
                "network"
            )
            raise FileMissingError(f"{repository}: {what} cannot be had from the hub: {reason}") from error
        reason = (
            f"{first_line(error.__cause__ or error)}: check the network and HF_ENDPOINT; a folder's path does as well"
        )
        raise ModelError(f"{repository}: {what} cannot be had from the hub: {reason}") from error
