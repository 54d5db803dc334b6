"""Files of models: from a folder, or from the hub, with errors that say what to do. Offline mode (HF_HUB_OFFLINE) and the cache
are huggingface_hub's. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specrig import facts
from specrig.engines.base import EngineError, PairFiles


class FileMissingError(EngineError):
    """A file that is not there: in the folder, in the repository, or offline in the cache. The hub itself answers, as far as it is asked."""


def fetch(model: str, name: str, revision: str | None = None) -> Path:
    """The path of one of a model's files. Raises FileMissingError when it is not there, EngineError when the hub does not give it."""
    if Path(model).is_dir():
        path = Path(model) / name
        if not path.is_file():
            raise FileMissingError(
                f"{model}: no {name} there; a model folder needs config.json, model.safetensors and tokenizer.json"
            )
        return path
    from huggingface_hub import hf_hub_download

    return Path(_asked(model, name, lambda: hf_hub_download(model, name, revision=revision), revision))


def fetch_folder(model: str, revision: str | None = None) -> Path:
    """A folder with all of a model's (or a trained head's) files. Raises EngineError."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(_asked(model, "it", lambda: snapshot_download(model, revision=revision), revision))


def at_commits(pair: PairFiles) -> PairFiles:
    """The pair with the commit of each part on the hub for its revision: all that is loaded afterwards is of that commit, however the
    hub moves meanwhile, and the environment can name it.

    A part whose commit cannot be learnt keeps its revision: loading it says why, if it is loaded at all.
    """
    if pair.simulated_acceptance is not None:
        return pair  # shapes come from the shipped facts
    commits = {}
    for name, source in pair.sources.items():
        if Path(source).is_dir():
            continue
        try:
            # In the cache a file lies in snapshots/<commit>.
            commits[name] = fetch(source, "config.json", pair.revisions.get(name)).parent.name
        except EngineError:
            continue
    return replace(
        pair,
        target_revision=commits.get("target", pair.target_revision),
        draft_revision=commits.get("draft", pair.draft_revision),
        head_revisions=pair.head_revisions | {name: commit for name, commit in commits.items() if name in pair.heads},
    )


def present_commit(repository: str, kind: Literal["model", "dataset"]) -> str:
    """The commit that the hub's default branch is at now. Raises EngineError."""
    from huggingface_hub import HfApi

    return _asked(repository, "its commit", lambda: str(HfApi().repo_info(repository, repo_type=kind).sha))


def _asked(repository: str, what: str, ask: Callable[[], str], revision: str | None = None) -> str:
    """What the hub answers; its refusals in words that name the fix."""
    from huggingface_hub.errors import GatedRepoError, RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return ask()
    except GatedRepoError as error:
        known = facts.known(repository)
        asks = known.gated if known and known.gated else "ask for access on its page, then `hf auth login`"
        raise EngineError(f"{repository}: gated, its owner lets in only who agreed to the terms: {asks}") from error
    except RevisionNotFoundError as error:
        reason = f"the hub has no revision {revision!r} of it; correct it in its row, or empty it there and run `specrig pin`"
        raise EngineError(f"{repository}: {reason}") from error
    except RemoteEntryNotFoundError as error:
        raise FileMissingError(f"{repository}: its repository holds no {what}{f' at {revision}' if revision else ''}") from error
    except Exception as error:  # whatever the client's own HTTP library raises
        # To who has not logged in the hub says 401 of a repository that is private, and of one that is missing.
        if isinstance(error, RepositoryNotFoundError) or getattr(getattr(error, "response", None), "status_code", None) == 401:
            reason = "neither a folder here nor on the hub, or private: correct its row, or `hf auth login`"
            raise EngineError(f"{repository}: {reason}") from error
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            reason = "offline mode is on (HF_HUB_OFFLINE) and the cache does not hold it: unset it and run once with the network"
            raise FileMissingError(f"{repository}: {what} cannot be had from the hub: {reason}") from error
        said = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        reason = f"{said[0]}: check the network and HF_ENDPOINT; a folder's path does as well"
        raise EngineError(f"{repository}: {what} cannot be had from the hub: {reason}") from error
