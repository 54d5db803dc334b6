"""`Study` is what every stage works on: the config's keys, the grid of cells and the paths of files. No torch at
import.

`study.load` makes one from a config or from a resolved `results/<study>/study.json`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr

from specrig.models.chat_template import ChatTemplate
from specrig.study.config import Config
from specrig.study.grid import Grid
from specrig.study.paths import Paths
from specrig.tasks import Prompt, PromptError, read_prompts
from specrig.tasks.chat import ChatForm
from specrig.tasks.trained_on import REQUESTS, fingerprint, trained_on
from specrig.tasks.variants import variant_of
from specrig.tasks.wording import normalized

JOB_KEYS = ("seed", "clock", "prompts", "max_new_tokens", "warmup", "repeats", "device", "threads")
"""Keys of a study that decide what a measuring job measures."""
FOR_READERS = {"notes", "licence"}
"""Columns of tables that decide no result."""
NOT_MEASURED = {*FOR_READERS, "scorer", "reference_field", "reference_template"}
"""Columns of `tasks.tsv` that no measuring job reads."""


class Study(Config):
    """A resolved study: the keys of its config together with the table rows that they name."""

    @cached_property
    def grid(self) -> Grid:
        """The study's cells, jobs and refused cells, and the models to train."""
        return Grid(self)

    @cached_property
    def paths(self) -> Paths:
        """Where the study's models and prompts lie."""
        return Paths(self, self.grid)

    _folder: Path | None = PrivateAttr(None)

    @property
    def root(self) -> Path:
        """The folder of everything that the study makes except its report; of a study.json that was moved, where it lies."""
        return self._folder or self.results / self.study

    def lying_in(self, folder: Path) -> Self:
        """The study whose results lie in another folder than its keys say, since its folder was moved."""
        if folder.absolute() != self.root.absolute():
            self._folder = folder
        return self

    @property
    def report(self) -> Path:
        """The file of the study's report."""
        return self.reports / self.study / "report.html"

    @cached_property
    def task_rows(self) -> list[str]:
        """The names of the study's tasks in `tasks.tsv`: of several variants of a task, its name once."""
        return list(dict.fromkeys(variant_of(task).task for task in self.tasks))

    def prompts_of(self, task: str, root: Path, left_out: Counter[str] | None = None) -> list[Prompt]:
        """The first prompts of a task, as many as its cell with the largest batch runs; `root` is the results folder.
        left_out: counts the rows that are empty or repeat a prompt.

        Without those that a draft or head of the study's pairs learnt from, as its folder says. Raises PromptError for
        a file that has no prompts, has a wrong format or is not fetched yet, and where all prompts are left out.
        """
        found = self._read(task, root, left_out)
        unseen = [each for each in found if self._trained_on.isdisjoint(map(fingerprint, each.asks()))]
        if found and not unseen:
            raise PromptError(
                f"task {task}: a draft or head of the study's pairs learnt from all of its {len(found)} prompts (see "
                f"{REQUESTS} in the folders that the pairs table names); name other prompts, or other weights"
            )
        return unseen[: self.grid.prompts_read(task)]

    def evaluated(self, root: Path) -> frozenset[str]:
        """The normalized text of every prompt of the study's tasks that is at hand, also of those not measured yet."""
        found: set[str] = set()
        for task in self.task_rows:
            with suppress(PromptError):  # not there yet, or unusable, which the job that measures will say
                prompts = self._read(task, root)
                found.update(normalized(text) for each in prompts for text in each.asks())
        return frozenset(found)

    @cached_property
    def _trained_on(self) -> frozenset[str]:
        """Fingerprints of the requests that the pairs' drafts and heads brought with them."""
        rows = self.rows.pairs.values()  # also those that only an entry of `methods:` names
        folders = {source for row in rows for source in (row.draft, *row.head_folders.values()) if source}
        return frozenset().union(*(trained_on(Path(folder).expanduser()) for folder in folders))

    def chat_form(self, task: str, template: ChatTemplate) -> ChatForm:
        """How the prompts of a task become text in a model's chat template."""
        row = self.rows.tasks[task]
        return ChatForm(task, template, row.system, row.template_args, self.clock)

    def scorers(self, task: str) -> list[str]:
        """The names of a task's scorers. Its reference is for the first turn, so later turns have none."""
        return [] if variant_of(task).turn > 1 else self.rows.tasks[task].scorer.split()

    def _read(self, task: str, root: Path, left_out: Counter[str] | None = None) -> list[Prompt]:
        """Every prompt of a task."""
        row, file = self.rows.tasks[task], self.paths.prompt_file(task, root)
        if row.fetched and not file.is_file():
            raise PromptError(
                f"{file} is not there yet: `specrig stage prompts --study {root / 'study.json'} --task {task}` fetches it"
            )
        own = (
            {"turns": row.turns}
            if row.kind != "file"
            else {"sha256": row.sha256, "encoding": row.encoding, **row.mapping}
        )
        return read_prompts(file, left_out=left_out, **own)

    def job_settings(self, engine: str, pair: str) -> list[Any]:
        """What decides a job's measurements besides cells, code, models and prompts: keys of the study, the pair's row,
        the engine's options and its servers for the pair.
        """
        keys = {key: getattr(self, key) for key in JOB_KEYS}
        row = self.rows.pairs[pair].model_dump(exclude={"notes"})
        servers = [server for server in self.servers if (server.engine, server.pair) == (engine, pair)]
        return [keys, row, self.engine_options.get(engine, {}), servers]

    def measured_row(self, task: str) -> dict[str, Any]:
        """What measuring reads of a task's row. A job applies some of it itself, e.g. `chat` and `prompt_template`."""
        return self.rows.tasks[task].model_dump(exclude=NOT_MEASURED)

    def most_gpus(self) -> int:
        """The largest number of GPUs that a pair with cells to measure is split over (`tensor_parallel`)."""
        return max((self.rows.pairs[cell.pair].tensor_parallel for cell in self.grid.cells), default=1)
