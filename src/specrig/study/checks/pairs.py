"""Checks of the pairs: model folders and files exist, and target and draft fit each other."""

from __future__ import annotations

from pathlib import Path

from specrig.models import facts, gguf
from specrig.models.gate import check_decoder, check_vocabulary
from specrig.models.pair import ModelError
from specrig.study.problems import Problems, nearest
from specrig.study.rows import looks_like_path
from specrig.study.study import Study


def check_pairs(study: Study, problems: Problems) -> None:
    """Add a problem for each pair whose folders or files are missing, cannot be read, or do not fit each other."""
    for name, row in study.rows.pairs.items():
        _check_folder_files(study, name, problems)
        for column, file in row.gguf.items():
            try:
                gguf.config(file)
            except ModelError as error:
                where = f"row {name!r}, {column}"
                problems.row(
                    study.tables.pairs, None, where, str(error), "mend the file or the row, or leave the pair out"
                )
        for column, model in (("target", row.target), ("draft", row.draft)):
            if model is None or model in row.gguf.values():
                continue
            if row.weights == "random" and not looks_like_path(model) and facts.known(model) is None:
                problems.row(
                    study.tables.pairs, None, f"row {name!r}, {column}", f"no shape of {model} is shipped",
                    nearest(model, facts.models(), what="shipped") + "; a folder with a config.json does as well",
                )  # fmt: skip
            if row.trained_in(column) is not None or not looks_like_path(model):
                continue
            if not (Path(model).expanduser() / "config.json").is_file():
                exists = Path(model).expanduser().is_dir()
                problems.row(
                    study.tables.pairs,
                    None,
                    f"row {name!r}, {column}",
                    f"{model} holds no config.json" if exists else f"no model folder {model}",
                    "give a folder in Hugging Face format, a hub id (owner/name), or `trained`",
                )


def _check_folder_files(study: Study, name: str, problems: Problems) -> None:
    """Check a pair's local folders for decoder-only models of one vocabulary; hub models are checked when their job
    starts.
    """
    row = study.rows.pairs[name]
    local = {
        column: str(Path(model).expanduser())
        for column, model in (("target", row.target), ("draft", row.draft))
        if model is not None and (Path(model).expanduser() / "config.json").is_file()
    }
    try:
        for folder in local.values():
            check_decoder(folder)
        if len(local) == 2 and row.weights != "random":
            check_vocabulary(local["target"], local["draft"])
    except ModelError as error:
        problems.row(study.tables.pairs, None, f"row {name!r}", str(error), "change the row, or leave the pair out")
