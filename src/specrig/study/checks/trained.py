"""Checks of what a study trains: there is a training for it, its target can teach, and models are shared only by pairs
of one target.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specrig.models.pair import ModelError
from specrig.provenance.trained_for import check_trained_for
from specrig.study.problems import Problems, nearest
from specrig.study.rows import MEDUSA2, TRAINED, Pair
from specrig.study.study import Study
from specrig.training.stages import STAGES

HEADS = [name for name in STAGES if name not in ("target", "draft")]


def check_trained(study: Study, problems: Problems) -> None:
    """Add a problem for each model that a row calls `trained` and that the workflow cannot train, or cannot take from
    the row it names.

    Also for a draft or head in a folder that was trained for another target, as far as the target is at hand.
    """
    rows = study.rows.pairs
    for name, row in rows.items():
        if row.base is not None and not (row.base in rows and rows[row.base].trained_in("medusa") == row.base):
            problems.row(
                study.tables.pairs, None, f"row {name!r}, target", f"{row.base!r} is no row whose Medusa heads are trained",
                f"`{MEDUSA2}` takes the name of such a row: its target and its Medusa heads are trained on together",
            )  # fmt: skip
        for part in dict.fromkeys([*study.grid.parts(name), *row.head_folders]):
            if (maker := row.trained_in(part)) is None:
                continue
            column = f"row {name!r}, {'draft' if part == 'draft' else 'heads'}"
            if (mistake := _mistake(row, part, maker, rows)) is not None:
                problems.row(study.tables.pairs, None, column, *mistake)
        _check_folders(study, name, problems)


def _mistake(row: Pair, part: str, maker: str, rows: dict[str, Pair]) -> tuple[str, str] | None:
    """What is wrong with a part that `maker` is to train, and the fix; None: nothing."""
    if part not in STAGES:
        return f"no training makes a head {part!r}", nearest(part, HEADS, what="trained can be")
    if maker != row.pair:
        other = rows.get(maker)
        if other is None or other.trained_in(part) != maker:
            return (
                f"{maker!r} is no row whose {part.replace('_', ' ')} is trained",
                f"name a row that says `{TRAINED}` itself",
            )
        if (other.target, other.target_revision) != (row.target, row.target_revision) or row.target == TRAINED:
            fix = f"say `{TRAINED}`: what drafts for a target learns from that target"
            return f"{maker!r} has another target ({other.target}) than this row ({row.target})", fix
        return None
    if row.quantization is not None and row.trained_in("target") is None:
        fix = f"train on a row of the target without quantization, and say `{TRAINED}:<that row>` here"
        return f"a target that its engine quantizes as {row.quantization} cannot teach", fix
    return None


def _check_folders(study: Study, name: str, problems: Problems) -> None:
    """Drafts and heads that lie in folders say for which target they were trained."""
    files = study.paths.pair_files(name, study.root)
    row = study.rows.pairs[name]
    own = [part for part in files.sources if part != "target" and row.trained_in(part) is None]
    # The file that a target is converted from is there before its folder.
    target = row.gguf.get("target", files.target)
    if row.trained_in("target") is not None or not (target in row.gguf.values() or Path(target).expanduser().is_dir()):
        return
    try:
        check_trained_for(replace(files.only(own), target=target))
    except ModelError as error:
        problems.row(study.tables.pairs, None, f"row {name!r}", str(error), "change the row, or leave the pair out")
