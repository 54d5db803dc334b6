"""Checks of a study's chat templates: they exist, take the tasks' turns and arguments, and hold what users say.

Templates of folders, GGUF files and the hub's cache are tried here; of other models the job that measures says it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from specrig.models.chat_template import PROBE, ChatTemplate, ChatTemplateError, at_hand
from specrig.models.pair import ModelError
from specrig.study.problems import Problems
from specrig.study.rows import Pair
from specrig.study.study import Study
from specrig.tasks import Prompt, PromptError
from specrig.tasks.lengths import fitting
from specrig.tasks.variants import variant_of
from specrig.training.prompt_sources import SELF

LEAVE_OUT = "take an instruction-tuned target, or a task without `chat` (`pairs:` and `tasks:` restrict an entry)"
ANSWER = "Yes."
"""What stands for the answers between the turns of a conversation, which the target has not given yet."""


def check_chat(study: Study, problems: Problems) -> None:
    """Add a problem for each target at hand whose chat template is missing, or refuses what a task or the training puts
    into it. Without a template `training.chat: auto` does without.
    """
    needed = {(cell.pair, variant_of(cell.task).task) for cell in study.grid.cells if study.rows.tasks[cell.task].chat}
    trained = {pair for pair, _ in study.grid.trained}
    if study.training.chat:
        needed |= {(pair, "training.chat") for pair in trained}
    if any(source.kind == SELF for source in study.training.prompts):
        needed |= {(pair, "training.prompts") for pair in trained}
    for pair, name in sorted(needed):
        row = study.rows.pairs[pair]
        of_training = name.startswith("training.")
        key: list[str | int] = [*name.split(".")] if of_training else ["tasks", study.task_rows.index(name)]
        try:
            bare = row.weights == "random"
            template = None if bare or row.base else at_hand(row.target, row.target_revision)
            if name == "training.chat" and study.training.chat == "auto" and (bare or not (template and template.text)):
                continue
            if bare or (template is not None and not template.text):
                reason = f"the target of pair {pair!r} has no chat template, which {name} needs"
                problems.key(key, reason, BARE.get(name, LEAVE_OUT))
            elif template is not None and of_training:
                template.render([{"role": "user", "content": PROBE}], clock=study.clock)
            elif template is not None:
                _check_task(study, name, row, template, problems)
        except ChatTemplateError as error:
            problems.key(key, f"pair {pair!r}: {error.reason}", error.fix)
        except ModelError:
            continue  # reported as a problem of the pair


BARE = {"training.prompts": "such a model writes no requests: name a file of prompts"}
"""What to do, where it differs from `LEAVE_OUT`, about a target without a chat template."""


def _check_task(study: Study, task: str, pair: Pair, template: ChatTemplate, problems: Problems) -> None:
    """Add a problem for a template that does not take a task's prompts, and for arguments that it does not read."""
    row, file, where = study.rows.tasks[task], study.tables.tasks, f"row {task!r}"
    form = study.chat_form(task, template)
    try:
        reads = template.variables()
        if unread := sorted(row.template_args.keys() - reads):
            names = ", ".join(sorted(reads - {"tools", "documents"})) or "none"
            reason = f"the chat template of pair {pair.pair!r} does not read {', '.join(unread)}"
            problems.row(file, None, f"{where}, template_args", reason, f"leave it out; it reads {names}")
        prompts = [form.rendered(prompt) for prompt in _prompts(study, task, row.turns)]
        for prompt in prompts[:1] if row.turns > 1 else ():
            for turn in range(1, row.turns):
                form.rendered(prompt, [ANSWER] * turn)
        target = study.paths.target_at_hand(pair.pair, study.root)
        if row.kind == "file" and target is not None:
            files = replace(study.paths.pair_files(pair.pair, study.root), target=target)
            fitting(prompts, task, files, study.max_new_tokens)
    except ChatTemplateError as error:
        problems.row(file, None, where, f"pair {pair.pair!r}: {error.reason}", error.fix)
    except PromptError as error:
        cause = error.__cause__
        if isinstance(cause, ChatTemplateError):
            problems.row(file, None, where, f"pair {pair.pair!r}: {cause.reason}", cause.fix)
        else:
            problems.row(file, None, where, str(error), "correct the row or the file")
    except ModelError as error:
        problems.row(file, None, where, str(error), "correct the model's files, or leave the pair out")


def _prompts(study: Study, task: str, turns: int) -> Iterable[Prompt]:
    """The prompts of a task that are at hand, else one in their place."""
    try:
        return study.prompts_of(task, study.root)
    except PromptError:  # not fetched or made yet; an unusable file is reported as a problem of its own
        return [Prompt("1", PROBE, turns=(PROBE,) * turns if turns > 1 else ())]
