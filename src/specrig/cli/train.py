"""The verbs that prepare prompts, text and models. Each imports its stage when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrig.cli.arguments import PairName, StudyFile, load
from specrig.runtime.gpus import resolve_device

if TYPE_CHECKING:
    from specrig.study.study import Study


def prompts(
    study: StudyFile, task: Annotated[str, typer.Option(help="Row of tasks.tsv with an address or a hub id")]
) -> None:
    """Fetch the prompts of a task from its address or the hub."""
    from specrig.measurement.task_prompts import fetch_prompts

    loaded = load(study)
    fetched = [name for name, row in loaded.rows.tasks.items() if row.fetched and name == row.task]
    if task not in fetched:
        known = ", ".join(fetched) or "none"
        raise typer.BadParameter(f"study {loaded.study} does not fetch task {task!r} (it fetches: {known})")
    fetch_prompts(loaded, task, loaded.root)


def convert(study: StudyFile, source: Annotated[str, typer.Option(help="Name of the converted folder")]) -> None:
    """Convert a GGUF file that a pair names into a model folder."""
    loaded = load(study)
    if source not in loaded.grid.converted:
        known = ", ".join(loaded.grid.converted) or "none"
        raise typer.BadParameter(f"study {loaded.study} converts no {source!r} (it converts: {known})")
    from specrig.models.gguf import convert as run

    file, dtype = loaded.grid.converted[source]
    run(file, loaded.paths.converted(file, dtype, loaded.root), dtype)


def train(
    study: StudyFile,
    pair: PairName,
    model: Annotated[str, typer.Option(help="draft or a head")],
    threads: Annotated[int | None, typer.Option(help="CPU threads, unless the study sets them. Default: all")] = None,
) -> None:
    """Distil the draft of a pair from its target, or train a head."""
    loaded = load(study)
    if (pair, model) not in loaded.grid.trained:
        known = ", ".join(" ".join(each) for each in loaded.grid.trained) or "none"
        raise typer.BadParameter(f"study {loaded.study} does not train the {model} of {pair!r} (it trains: {known})")
    from specrig.heads import of_draft
    from specrig.provenance.trained_for import note
    from specrig.training import stages

    folder, progress = loaded.root / "models" / pair, sys.stderr.isatty()
    device, target = resolve_device(loaded.device), _folder(loaded, pair, "target")
    draft = _folder(loaded, pair, "draft") if of_draft(model) else None
    _set_threads(loaded, threads)
    stages.train(model, loaded.training, folder, target, progress, device, draft)
    note(folder / model, *_target(loaded, pair), initial=loaded.training.initial(model))


def write_text(study: StudyFile, pair: PairName) -> None:
    """Let the target of a pair write the text that trains its draft and heads, and store its hidden states."""
    from specrig.tasks.chat import require_chat_template
    from specrig.training.stages import STAGES
    from specrig.training.states import prepare
    from specrig.training.target_text import write_text as write

    loaded = load(study)
    pairs = dict.fromkeys(owner for owner, _ in loaded.grid.trained)
    if pair not in pairs:
        known = ", ".join(pairs) or "nothing"
        raise typer.BadParameter(f"study {loaded.study} trains nothing for {pair!r} (it trains for: {known})")
    files = loaded.paths.pair_files(pair, loaded.root)
    for task in sorted(
        {cell.task for cell in loaded.grid.cells if cell.pair == pair and loaded.rows.tasks[cell.task].chat}
    ):
        require_chat_template(task, files)  # before hours of training, not after them
    _set_threads(loaded)
    models, target, device = (
        loaded.root / "models" / pair,
        _folder(loaded, pair, "target"),
        resolve_device(loaded.device),
    )
    write(loaded.training, models, target, device, loaded.evaluated(loaded.root))
    trained = [model for owner, model in loaded.grid.trained if owner == pair and model in STAGES]
    learners = [model for model in trained if STAGES[model].needs == ("target",)]
    # Here with all cores, and once: trainings run side by side on a part of them.
    prepare(loaded.training, models, target, learners, device)


def train_jointly(study: StudyFile, pair: PairName) -> None:
    """Train a pair's target jointly with its Medusa heads (Medusa-2), starting from another pair's."""
    from specrig.provenance.trained_for import note
    from specrig.training.fit import train_jointly as train

    loaded = load(study)
    base = loaded.rows.pairs[pair].base if pair in loaded.rows.pairs else None
    if base is None:
        raise typer.BadParameter(f"study {loaded.study} has no pair {pair!r} whose target is `medusa2:<pair>`")
    _set_threads(loaded)
    models = loaded.root / "models"
    progress, device = sys.stderr.isatty(), resolve_device(loaded.device)
    target = _folder(loaded, base, "target")
    train(loaded.training, models / base, models / pair, target, progress, device)
    note(models / pair / "medusa", *_target(loaded, pair))


def _target(study: Study, pair: str) -> tuple[str, str | None]:
    """A pair's target: its folder or hub id, and its revision there."""
    files = study.paths.pair_files(pair, study.root)
    return files.target, files.target_revision


def _folder(study: Study, pair: str, part: str) -> Path:
    """The folder of a pair's target or draft, which may be untrained yet; of one on the hub its files are fetched
    first. Raises ModelError for one that is no decoder.
    """
    from specrig.models import gate, hub

    files = study.paths.pair_files(pair, study.root)
    source, revision = files.sources[part], files.revisions.get(part)
    if study.rows.pairs[pair].trained_in(part) is not None:
        return Path(source)
    gate.check_decoder(source, revision)
    return hub.fetch_folder(source, revision, only=hub.MODEL)


def _set_threads(study: Study, threads: int | None = None) -> None:
    number = study.threads or threads
    if number is not None:
        import torch

        torch.set_num_threads(number)
