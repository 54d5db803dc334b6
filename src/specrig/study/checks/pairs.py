"""Checks of the pairs: model folders exist, target and draft fit each other, and a trained model has what it is trained from."""

from __future__ import annotations

from pathlib import Path

from specrig.models import facts, gguf
from specrig.models.gate import check_decoder, check_vocabulary
from specrig.models.pair import ModelError
from specrig.study.problems import Problems, nearest
from specrig.study.rows import MEDUSA2, TRAINED, looks_like_path
from specrig.study.study import Study


def check_pairs(study: Study, problems: Problems) -> None:
    """Add a problem for each pair whose folders are missing or do not fit, or whose draft is trained while its target is not."""
    for name, row in study.rows.pairs.items():
        _check_folder_files(study, name, problems)
        if row.base is not None and (row.base not in study.rows.pairs or study.rows.pairs[row.base].target != TRAINED):
            problems.row(
                study.tables.pairs, None, f"row {name!r}, target", f"{row.base!r} is no row whose target is `{TRAINED}`",
                f"`{MEDUSA2}` takes the name of such a row: its target and its Medusa heads are trained on together",
            )  # fmt: skip
        for column, file in row.gguf.items():
            try:
                gguf.config(file)
            except ModelError as error:
                problems.row(
                    study.tables.pairs,
                    None,
                    f"row {name!r}, {column}",
                    str(error),
                    "mend the file or the row, or leave the pair out",
                )
        for column, model in (("target", row.target), ("draft", row.draft)):
            if model in row.gguf.values():
                continue
            if row.weights == "random" and model is not None and not looks_like_path(model) and facts.known(model) is None:
                problems.row(
                    study.tables.pairs, None, f"row {name!r}, {column}", f"no shape of {model} is shipped",
                    nearest(model, facts.models(), what="shipped") + "; a folder with a config.json does as well",
                )  # fmt: skip
            if model is None or model == TRAINED or (column == "target" and row.trains) or not looks_like_path(model):
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
        if row.draft == TRAINED and not row.trains:
            problems.row(
                study.tables.pairs, None, f"row {name!r}, draft", "only a pair whose target is `trained` can train its draft",
                "make both `trained`, or name a draft model",
            )  # fmt: skip


def _check_folder_files(study: Study, name: str, problems: Problems) -> None:
    """Check a pair's local folders for decoder-only models of one vocabulary; hub models are checked when their job starts."""
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
