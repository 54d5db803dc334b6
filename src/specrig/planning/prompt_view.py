"""The first prompt of a task as a pair's target will read it, with its number of tokens. No torch here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rich.console import Console

from specrig.models.chat_template import at_hand
from specrig.models.pair import ModelError
from specrig.study.problems import Positions, Problems, nearest
from specrig.study.study import Study
from specrig.tasks import Prompt, PromptError
from specrig.tasks.chat import join_turns
from specrig.tasks.lengths import counter, too_long
from specrig.tasks.variants import variant_of


def show_prompt(study: Study, task: str, console: Console) -> None:
    """Print the first prompt of a task for each pair that it is measured on, and what is left out.

    task: also a variant, e.g. `chat@turn2`. Raises StudyError for another task, PromptError for prompts that are not
    here yet or cannot be used.
    """
    if task not in study.rows.tasks:
        problems = Problems(Positions([]))
        problems.option("--show", f"the study has no task {task!r}", nearest(task, study.tasks))
        problems.stop()
    left_out = Counter[str]()
    prompts = study.prompts_of(task, study.root, left_out)
    for why, count in left_out.items():
        console.print(f"{task}: {count} rows are left out: {why}", style="yellow", markup=False)
    pairs = dict.fromkeys(cell.pair for cell in study.grid.cells if variant_of(cell.task).task == variant_of(task).task)
    for pair in pairs:
        _show(study, task, pair, prompts, console)


def _show(study: Study, task: str, pair: str, prompts: list[Prompt], console: Console) -> None:
    row, files = study.rows.pairs[pair], study.paths.pair_files(pair, study.root)
    if (target := study.paths.target_at_hand(pair, study.root)) is not None:
        files = replace(files, target=target)
    if study.rows.tasks[task].chat:
        template = at_hand(row.target, row.target_revision)
        if template is None:
            console.print(
                f"{pair}: the chat template of {row.target} is not on this machine yet", style="bold", markup=False
            )
            return
        form = study.chat_form(task, template)
        prompts = [form.rendered(prompt) for prompt in prompts]
    elif any(prompt.before for prompt in prompts):
        prompts = join_turns(prompts, {})
    first = prompts[0]
    try:
        tokens = f"{counter(files)([first.text])[0]} tokens"
        reasons = too_long(prompts, files, study.max_new_tokens)
    except (ModelError, PromptError):
        tokens, reasons = "its tokenizer is not on this machine yet", {}
    console.print(f"{pair}, {task}, prompt {first.id!r} of {len(prompts)}: {tokens}", style="bold", markup=False)
    console.print(first.text, markup=False, highlight=False, soft_wrap=True)
    if first.reference:
        console.print(f"reference: {first.reference}", style="dim", markup=False, soft_wrap=True)
    for name, reason in reasons.items():
        console.print(f"prompt {name!r} is left out: {reason}", style="yellow", markup=False, soft_wrap=True)
