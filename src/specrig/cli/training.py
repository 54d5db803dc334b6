"""The verbs of the command line that make models. Each imports its stage when it is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specrig.cli.arguments import PairName, StudyFile, load

if TYPE_CHECKING:
    from specrig.study.study import Study


def corpus(study: StudyFile) -> None:
    """Gather the training text and the held-out prompts from installed packages."""
    from specrig.corpus.gather import build

    loaded = load(study)
    build(loaded.training.corpus, loaded.training.seed, loaded.root)


def convert(study: StudyFile, source: Annotated[str, typer.Option(help="Name of a converted folder")]) -> None:
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
    model: Annotated[str, typer.Option(help="Which of its models: target, draft or a head")],
    threads: Annotated[int | None, typer.Option(help="CPU threads, where the study does not say; else all")] = None,
) -> None:
    """Train the target of a pair, distil its draft from it, or train a head."""
    loaded = load(study)
    if (pair, model) not in loaded.grid.trained:
        known = ", ".join(" ".join(each) for each in loaded.grid.trained) or "none"
        raise typer.BadParameter(f"study {loaded.study} does not train the {model} of {pair!r} (it trains: {known})")
    from specrig.training import stages

    _set_threads(loaded, threads)
    folder, progress = loaded.root / "models" / pair, sys.stderr.isatty()
    corpus, device = loaded.root / "corpus", loaded.resolved_device()
    stages.train(model, loaded.training, corpus, folder, folder / "target", progress, device)


def write_text(study: StudyFile, pair: PairName) -> None:
    """Let the trained target of a pair write the text from which its draft and heads learn."""
    from specrig.training.target_text import write_text as write

    loaded = load(study)
    _set_threads(loaded)
    models = loaded.root / "models" / pair
    write(loaded.training, loaded.root / "corpus", models, models / "target", loaded.resolved_device())


def train_jointly(study: StudyFile, pair: PairName) -> None:
    """Train a pair's target together with its Medusa heads (Medusa-2), starting from those of the pair that its row names."""
    from specrig.training.medusa import train_jointly as train

    loaded = load(study)
    base = loaded.rows.pairs[pair].base if pair in loaded.rows.pairs else None
    if base is None:
        raise typer.BadParameter(f"study {loaded.study} has no pair {pair!r} whose target is `medusa2:<pair>`")
    _set_threads(loaded)
    models = loaded.root / "models"
    progress, device = sys.stderr.isatty(), loaded.resolved_device()
    train(loaded.training, loaded.root / "corpus", models / base, models / pair, models / base / "target", progress, device)


def _set_threads(study: Study, threads: int | None = None) -> None:
    wanted = study.threads or threads
    if wanted is not None:
        import torch

        torch.set_num_threads(wanted)
