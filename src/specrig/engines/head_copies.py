"""Copies of drafts and heads for engines that do not know all of a checkpoint: parts of ours, and matrices of 8 bits."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from specrig.engines.base import EngineError, foreign
from specrig.heads import registry as heads
from specrig.models.gate import json_object
from specrig.runtime.whole import is_rounded


def check_loadable(engine: str, pair: str, part: str, folder: Path) -> None:
    """Raise EngineError for a head that an engine cannot use, by the config.json of its folder. Of heads on the hub the
    engine says itself what is wrong.
    """
    if part not in heads() or not (folder / "config.json").is_file():
        return
    if why := heads()[part].unloadable(engine, json_object(folder / "config.json")):
        raise EngineError(f"pair {pair}: {why}")


def understood(engine: str, method: str, folder: Path) -> Path:
    """A draft's or head's folder as the engine loads it for a method: itself, or a copy that lasts as long as this
    process. Names on the hub stay as they are.
    """
    if not (folder / "config.json").is_file():
        return folder
    unknown = foreign(engine)[method].unknown
    known = json_object(folder / "config.json").keys().isdisjoint(unknown)
    return folder if known and not is_rounded(folder) else Path(_without(folder, unknown).name)


@cache
def _without(folder: Path, unknown: tuple[str, ...]) -> TemporaryDirectory[str]:
    from safetensors.torch import save_file

    from specrig.heads.checkpoint import read

    made = TemporaryDirectory(prefix="specrig-head-")
    config = {key: value for key, value in json_object(folder / "config.json").items() if key not in unknown}
    Path(made.name, "config.json").write_text(json.dumps(config, indent=1))
    kept = {name: tensor for name, tensor in read(folder).items() if name not in unknown}
    save_file(kept, Path(made.name, "model.safetensors"), metadata={"format": "pt"})
    return made
