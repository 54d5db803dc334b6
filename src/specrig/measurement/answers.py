"""Writes the answers that stand between the turns of a conversation: the target's own, by plain greedy decoding.

They are written once, before anything is measured. So the baseline and every method, in every engine and at every
temperature, get the same prompt in each turn, and runs stay pairs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.files import write_atomically
from specrig.measurement.blocks import baseline_of, seed_of
from specrig.measurement.plan import gpus_used
from specrig.measurement.task_prompts import as_encoded
from specrig.models.hub import at_commits
from specrig.runtime.gpus import resolve_device
from specrig.tasks.lengths import fitting
from specrig.tasks.variants import variant_of

if TYPE_CHECKING:
    from specrig.study.study import Study


def answering_cell(study: Study, pair: str, task: str) -> Cell:
    """The cell that writes a pair's answers: the baseline of the first engine that measures `task`, at temperature 0."""
    own = (cell for cell in study.grid.cells if cell.pair == pair and variant_of(cell.task).task == task)
    return baseline_of(next(own)).model_copy(update={"temperature": 0.0, "batch_size": 1, "task": task})


def write_answers(study: Study, pair: str, task: str, root: Path) -> None:
    """Write the answers to all turns of a task but the last, of at most `max_new_tokens` tokens, into
    `study.paths.answers(pair, task, root)`: one line a prompt with `id`, `turns` and `answers`, fewer of a
    conversation that grows too long.

    Raises PromptError for prompts that cannot be used, or where all grow too long, EngineError and ModelError where the target
    cannot be loaded.
    """
    cell, files = answering_cell(study, pair, task), study.paths.pair_files(pair, root).only(())
    prompts, turns = study.prompts_of(task, root), study.rows.tasks[task].turns
    answers: dict[str, list[str]] = {prompt.id: [] for prompt in prompts}
    asked = prompts
    kind = engines()[cell.engine]
    device = resolve_device(study.device, gpus_used(kind, files.tensor_parallel))
    with kind(at_commits(files), device=device, threads=study.threads) as engine:
        for _ in range(turns - 1):
            asked = fitting(as_encoded(study, task, files, asked, answers), task, files, study.max_new_tokens)
            for prompt in asked:
                seeds = [seed_of(study.seed, task, prompt.id)]
                tokens = [engine.encode(prompt.text)]
                (found,) = engine.generate(cell, tokens, max_new_tokens=study.max_new_tokens, seeds=seeds)
                answers[prompt.id].append(engine.decode(found.tokens).strip())
    lines = ({"id": each.id, "turns": each.turns, "answers": answers[each.id]} for each in prompts)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(study.paths.answers(pair, task, root), text)
