"""Files of models: from a folder, or from the hub, with errors that say what to do. Offline mode (HF_HUB_OFFLINE) and the cache
are huggingface_hub's. No torch here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from specrig import facts
from specrig.engines.base import EngineError


def fetch(model: str, name: str, revision: str | None = None) -> Path:
    """The path of one of a model's files. Raises EngineError when it is not there or the hub does not give it."""
    if Path(model).is_dir():
        path = Path(model) / name
        if not path.is_file():
            raise EngineError(f"{model}: no {name} there; a model folder needs config.json, model.safetensors and tokenizer.json")
        return path
    from huggingface_hub import hf_hub_download

    return Path(_asked(model, name, lambda: hf_hub_download(model, name, revision=revision)))


def fetch_folder(model: str) -> Path:
    """A folder with all of a model's (or a trained head's) files."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(_asked(model, "it", lambda: snapshot_download(model)))


def _asked(model: str, what: str, download: Any) -> str:
    """What the hub answers; its refusals in words that name the fix."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    local = f"`hf download {model}` fetches it where there is a network; a folder's path works as well as a hub id"
    try:
        return str(download())
    except GatedRepoError as error:
        known = facts.known(model)
        asks = known.gated if known and known.gated else "ask for access on its page, then `hf auth login`"
        raise EngineError(f"{model}: gated, its owner lets in only who agreed to the terms: {asks}") from error
    except RepositoryNotFoundError as error:
        raise EngineError(f"{model}: neither a folder here nor a model on the hub (gated models need `hf auth login`)") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            reason = "offline mode is on (HF_HUB_OFFLINE) and the cache does not hold it"
        raise EngineError(f"{model}: {what} cannot be fetched from the hub ({reason}); {local}") from error
