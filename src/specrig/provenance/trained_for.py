"""For which target a draft or a head was trained: noted beside its weights, checked before it drafts for any target. No
torch here.

A head reads the hidden states of one target. Beside another it still runs, and is then only seldom accepted: the
verifier hides the mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from specrig.files import file_sha256
from specrig.models import gguf, hub
from specrig.models.gate import json_object
from specrig.models.pair import ModelError, PairFiles
from specrig.provenance.environment import TRAINED_FOR, model_digest

WEIGHTS = "model.safetensors"


def target_identity(target: str, revision: str | None = None) -> str:
    """What stays the same of a target wherever it lies and in whatever precision it is loaded.

    target: a folder, a hub id or a GGUF file. Of a GGUF file and of the folder made from it, it is the SHA-256 of the
    file; of another folder that of its files; of a hub id the commit. Raises ModelError for a target that is not there.
    """
    if gguf.is_gguf(target):
        file = gguf.located(target)
        return _sha256(file, file.stat().st_mtime_ns)
    if not Path(target).expanduser().is_dir():
        return hub.fetch(target, "config.json", revision).parent.name  # in the cache a file lies in snapshots/<commit>
    folder = Path(target).expanduser()
    if (folder / "source.json").is_file():
        return str(json_object(folder / "source.json", "sha256")["sha256"])
    return model_digest(str(folder))["sha256"]


@cache
def _sha256(file: Path, _time: int) -> str:
    return file_sha256(file)


def note(folder: Path, target: str, revision: str | None = None, initial: Iterable[Path] = ()) -> None:
    """Write beside the trained model in `folder` which target it was trained for, and the SHA-256 of the weights that
    its training began from: those in the folder `initial`, if there is one.
    """
    about = {
        "target": Path(target).name if Path(target).is_dir() else target,
        "identity": target_identity(target, revision),
    }
    for begun in initial:
        about["initial_checkpoint"] = file_sha256(begun / WEIGHTS)
    (folder / TRAINED_FOR).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def noted(source: str) -> dict[str, Any]:
    """What `note` has written in the folder of a draft or head; empty for a model without it, as on the hub."""
    path = Path(source).expanduser() / TRAINED_FOR
    return json_object(path, "identity", "target") if path.is_file() else {}


def check_trained_for(pair: PairFiles) -> None:
    """Raise ModelError if a draft or head of the pair was trained for another target."""
    for part, source in pair.sources.items():
        if (
            part != "target"
            and (about := noted(source))
            and about["identity"] != (own := target_identity(pair.target, pair.target_revision))
        ):
            raise ModelError(
                f"pair {pair.name}: the {part.replace('_', ' ')} in {source} was trained for another target "
                f"({about['target']}, {about['identity'][:12]}…) than {pair.target} ({own[:12]}…): "
                "train one for this target (`trained` in its row), or name that target"
            )
