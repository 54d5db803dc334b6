"""Prepares a task's prompts for a pair: fetches them, applies the chat template and checks that they fit the context.

All of this happens before a model is loaded. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.measurement.records import write_atomically
from specrig.models.pair import PairFiles
from specrig.tasks.chat import apply_chat_template
from specrig.tasks.lengths import check_lengths
from specrig.tasks.prompts import Prompt, map_prompts
from specrig.tasks.sources import fetch_rows, hub_rows

if TYPE_CHECKING:
    from specrig.study.study import Study


def fetch_prompts(study: Study, task: str, root: Path) -> None:
    """Fetch the prompts of a task from its address or the hub into the file `study.paths.prompt_file(task, root)`.

    Raises PromptError if they cannot be fetched or used.
    """
    row = study.rows.tasks[task]
    on_hub = row.kind == "hub"
    rows = hub_rows(row.source, row.config, row.split, row.revision) if on_hub else fetch_rows(row.source, row.sha256)
    found = map_prompts(rows, row.source, limit=study.grid.prompts_read(task), **row.mapping)
    lines = ({"id": prompt.id, "prompt": prompt.text, "reference": prompt.reference} for prompt in found)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(study.paths.prompt_file(task, root), text)


def prepared(study: Study, task: str, pair: PairFiles, root: Path) -> list[Prompt]:
    """A task's prompts as the pair's engine encodes them. Raises PromptError for unusable or too long ones."""
    prompts = study.prompts_of(task, root)
    if study.rows.tasks[task].chat:
        prompts = apply_chat_template(prompts, task, pair)
    check_lengths(prompts, task, pair, study.max_new_tokens)
    return prompts
