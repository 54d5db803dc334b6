"""Write a trained draft or head as a folder to give away, with a card that says what it is:

    python scripts/pack_weights.py --study CONFIG --pair PAIR --model p_eagle --to FOLDER --licence SPDX [--eight-bits]

The weights are stored in bfloat16, half of what a training writes, or in 8 bits, a quarter, which only SpecRig reads.
The card holds what the training's own files say: text, steps, hours, held-out acceptance; and where a study measured
the model, its acceptance length and speedup. Beside it lies the list of requests that the model learnt from, so that
nobody evaluates with them, and the learning curve of the head that its training began from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file

from specrig import __version__, heads
from specrig.analysis.cells import row_dicts
from specrig.decoding.drafters import registry
from specrig.files import file_sha256
from specrig.heads.base import TrainingError
from specrig.heads.checkpoint import read
from specrig.provenance.environment import TRAINED_FOR, processor
from specrig.provenance.trained_for import WEIGHTS, noted
from specrig.report.grid import measured, number
from specrig.runtime.eight_bits import packed
from specrig.runtime.whole import is_rounded
from specrig.study.learning_curve import read_learning_curve, write_learning_curve
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problems, StudyError
from specrig.study.study import Study
from specrig.tables import read_table
from specrig.tasks.trained_on import trained_on, write_trained_on
from specrig.training.stages import FILES, TEXT
from specrig.training.target_text import requests_of

CARD = "README.md"


def pack_weights(study: Study, pair: str, model: str, to: Path, licence: str, *, eight_bits: bool = False) -> Path:
    """Write the model that a study has trained for a pair to the folder `to`/`model`, and return it.

    licence: an SPDX identifier, the target's. eight_bits: round matrices (`runtime.eight_bits`); a draft then has no
    tokenizer but the target's. Raises TrainingError where the study has not trained it.
    """
    models = study.root / "models" / pair
    source, folder = models / model, to / model
    lacking = [name for name in (*FILES, TRAINED_FOR) if not (source / name).is_file()]
    if lacking:
        raise TrainingError(
            f"{source}: {', '.join(lacking)} is missing; train it first with "
            f"`specrig stage train --study {study.root / 'study.json'} --pair {pair} --model {model}`"
        )
    initial, problems = study.training.initial(model), Problems(Positions([]))
    curve = [point for earlier in initial for point in read_learning_curve(earlier, problems)]
    problems.stop()
    folder.mkdir(parents=True, exist_ok=True)
    found = load_file(source / WEIGHTS)
    save_file(packed(found, eight_bits=eight_bits), folder / WEIGHTS, metadata={"format": "pt"})
    for file in source.glob("*.json"):  # its config, its target, of a draft its tokenizer
        if not (eight_bits and file.name.startswith("tokenizer")):
            shutil.copyfile(file, folder / file.name)
    if eight_bits and model == "draft":
        config = json.loads((source / "config.json").read_bytes())
        config["specrig"] = config.get("specrig", {}) | {"tokenizer": "target"}
        (folder / "config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
    learnt = requests_of(models).union(*map(trained_on, initial))
    write_trained_on(folder, learnt)
    write_learning_curve(folder, curve)
    (folder / CARD).write_text(_card(study, pair, model, folder, licence), encoding="utf-8")
    return folder


def _card(study: Study, pair: str, model: str, folder: Path, licence: str) -> str:
    source, about = study.root / "models" / pair / model, noted(str(folder))
    kind = heads.trained().get(model)
    title = "Draft model" if kind is None else f"{kind.title} head"
    target = study.rows.pairs[pair].target
    weights = folder / WEIGHTS
    parameters = sum(tensor.numel() for tensor in read(folder).values() if tensor.is_floating_point())
    precision = "8 bits" if is_rounded(folder) else "bfloat16"
    lines = [json.loads(line) for line in (source / "training.jsonl").read_bytes().splitlines()]
    seen, hours = max(line.get("tokens", 0) for line in lines), float(lines[-1]["seconds"]) / 3600
    steps, last = int(lines[-1]["step"]), [line for line in lines if "tau_sim" in line][-1:]
    machine = processor()
    facts = {
        "Target": f"`{target}`, SHA-256 {about['identity']}",
        "Size": f"{parameters / 1e6:.1f} million parameters, {weights.stat().st_size / 1e6:.1f} MB in {precision}",
        "SHA-256": file_sha256(weights),
        "Learnt from": _text(study.root / "models" / pair / TEXT),
        "Training": f"{steps:,} steps, {seen:,} tokens seen, {hours:.1f} hours",
        "Machine": f"{machine['model']}, {machine['cores']} cores; SpecRig {__version__}",
        "Licence": licence,
    }
    if begun := about.get("initial_checkpoint"):
        facts["Training"] += f", from a head with the SHA-256 {begun}"
    for line in last:
        depths = ", ".join(f"{share:.2f}" for share in line["acceptance"])
        facts["Held-out text of the same kinds"] = f"tokens 1 to {len(line['acceptance'])} right in {depths} of cases"
    own = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    settings = study.training.draft_training if kind is None else study.training.head(kind.name)
    return (
        f"---\nlicense: {licence.lower()}\ntags: [speculative-decoding]\n---\n# {title} for {Path(target).name}\n\nIt "
        "drafts for the target alone; with another one `specrig` refuses it. Its row in `pairs.tsv`: "
        f"`{_row(model, folder)}`.\n\n| | |\n|---|---|\n{own}\n\n{_measured(study, pair, model)}## "
        f"Settings\n\n```json\n{settings.model_dump_json(indent=1)}\n```\n"
    )


def _row(model: str, folder: Path) -> str:
    return str(folder) if model == "draft" else f"{model}={folder}"


def _text(file: Path) -> str:
    """What it learnt from, in words."""
    found = load_file(file)
    tokens, written = found["train.tokens"], found["train.written"]
    whole = (written * torch.arange(1, written.shape[1] + 1)).amax(1).sum()
    return f"{len(tokens):,} texts of {int(whole):,} tokens, of which the target wrote {int(written.sum()):,}"


def _measured(study: Study, pair: str, model: str) -> str:
    """Acceptance lengths and speedups that the study measured with the model; empty before it has tables."""
    table = study.root / "tables" / "cells.csv"
    if not table.is_file():
        return ""
    cells = read_table(table)
    cells = cells[[model in registry()[method].needs for method in cells["method"]]]
    cells = cells[(cells["pair"] == pair) & (cells["batch_size"] == 1)]
    speeds = [measured(row, "speedup") for row in row_dicts(cells)]
    rows = [
        f"| {row['method']} | {row['k']} | {row['task']} | {row['temperature']:g} | "
        f"{number(row['acceptance_length'])} | {speed.text} {speed.note} |"
        for row, speed in zip(row_dicts(cells), speeds, strict=True)
    ]
    head = (
        "## Measured\n\n| method | k | task | temperature | acceptance length | speedup |\n|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n" if rows else ""


def main(
    study: Annotated[Path, typer.Option(help="results/<study>/study.json, or a config")],
    pair: Annotated[str, typer.Option(help="Row of the table of pairs")],
    model: Annotated[str, typer.Option(help="draft or a head")],
    to: Annotated[Path, typer.Option(help="Folder of the pair's weights, e.g. weights/smollm2_135m")],
    licence: Annotated[str, typer.Option(help="SPDX identifier, the target's licence")],
    eight_bits: Annotated[bool, typer.Option("--eight-bits", help="Round matrices to 8 bits")] = False,
) -> None:
    """Write a trained draft or head as a folder to give away: half the size or a quarter, with a card."""
    try:
        typer.echo(pack_weights(load_study(study), pair, model, to, licence, eight_bits=eight_bits))
    except (TrainingError, StudyError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    typer.run(main)
