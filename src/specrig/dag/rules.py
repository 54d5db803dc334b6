"""What the workflow's rules need of a study: files, params and resources of each job. No torch here.

A param holds what makes its job stale, mostly as a digest: Snakemake runs a job again when a param has changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from pydantic_core import to_json

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.files import write_atomically
from specrig.measurement.answers import answering_cell
from specrig.measurement.failures import failed_names
from specrig.measurement.plan import gpus_used
from specrig.measurement.traffic.records import FOLDER as TRAFFIC
from specrig.models.gguf import FILES as CONVERTED_FILES
from specrig.models.gguf import located
from specrig.planning.estimate import (
    Demand,
    PairSize,
    auditing_demand,
    conversion_demand,
    expected_seconds,
    measuring_demand,
    pair_sizes,
    run_estimate,
    shape_at_hand,
    traffic_demand,
    training_demand,
)
from specrig.planning.measured import cells_measured
from specrig.study.learning_curve import FILE as LEARNING_CURVE
from specrig.study.overlap import prompts_in_both
from specrig.study.study import FOR_READERS, Study
from specrig.study.traffic import Point
from specrig.tasks.variants import variant_of
from specrig.training.stages import CHECKPOINT, FILES, JOINT, STAGES, TEXT

EXPECTED = "SPECRIG_EXPECTED_S"
"""The variable that the bar (`snakemake_logger_plugin_specrig`) reads."""


class Wildcards(Protocol):
    """The wildcards of a rule, as Snakemake gives them."""

    def __getattr__(self, name: str) -> str: ...


class Rules:
    """The helpers of the workflow's rules for one study. Most are Snakemake's input and param functions."""

    def __init__(self, study: Study, *, cores: int, gpus: int, shared: bool) -> None:
        """cores: of a measuring job; gpus: most at a time, 0: no limit; shared: jobs share this machine's GPUs."""
        self.study, self.root = study, study.root
        self.gpu = int(study.uses_gpu())
        self._gpus, self.shared = gpus, bool(self.gpu) and shared
        self.job_cores = max(1, cores // gpus) if self.shared else cores
        self._measuring_demand = cache(lambda *job: measuring_demand(study, job, self._sizes[job[1]]))
        self._training_demand = cache(lambda pair, model: training_demand(study, pair, model))

    # Before and after the jobs

    def begin(self, *, bar: bool) -> None:
        """Write the study that every job reads, and say how long the run takes: in a sentence, or to the bar. Raises
        OSError if the results folder cannot be written.

        `study.json` is no input of the jobs: a change of any key would rerun them all. With `ancient()` Snakemake would
        look for no other reason in the jobs behind one that runs. So each rule names the keys that it depends on.
        """
        if self.gpus(most := self.study.most_gpus()) < self.gpu * most:
            print(
                f"A pair is split over {most} GPUs (tensor_parallel). Its jobs request {self._gpus}, since Snakemake's "
                f"resource gpu is {self._gpus}; --resources gpu={most} allows more.",
                file=sys.stderr,
            )
        os.environ[EXPECTED] = to_json(expected_seconds(self.study)).decode()
        if not bar and (sentence := run_estimate(self.study, cells_measured(self.study))):
            print(sentence, file=sys.stderr)
        write_atomically(self.root / "study.json", self.study.model_dump_json(indent=1) + "\n")

    def forget_states(self) -> None:
        """Delete the hidden states that trainings share: nothing more is trained from them."""
        for folder in (self.root / "models").glob("*/.states"):
            shutil.rmtree(folder, ignore_errors=True)

    def retry_tracking(self) -> str:
        """If MLflow could not be reached, delete the mark that the runs are entered; returns a message, or ""."""
        failed = self.root / "tracking-failed.txt"
        if not failed.is_file():
            return ""
        (self.root / "tracked.txt").unlink(missing_ok=True)
        return f"\n{failed.read_text(encoding='utf-8').splitlines()[0]} The next run tries again.\n"

    # Models and their training

    def converted(self, wildcards: Wildcards) -> str:
        """Digest of a converted folder's source: name, precision, size in bytes and time of the GGUF file."""
        source, dtype = self.study.grid.converted[wildcards.source]
        about = located(source).stat()
        return digest([source, dtype, about.st_size, int(about.st_mtime)])

    def recipe(self, *parts: str) -> str:
        """The keys of `training:` that a stage depends on (`parts` and the seed), as JSON."""
        return self.study.training.model_dump_json(include={"seed", *parts})

    def model_files(self, pair: str, models: Iterable[str]) -> list[str]:
        """Files of a pair's models: those that the workflow makes, or all of a local folder; none for a hub id."""
        row, files = self.study.rows.pairs[pair], []
        for model in models:
            folder = self.study.paths.model(pair, model, self.root)
            if model in row.gguf:
                files += [f"{folder}/{name}" for name in CONVERTED_FILES]
            elif (row.trained_in(model), model) in self.study.grid.trained:
                files += [f"{folder}/{name}" for name in FILES]
            elif folder is not None and Path(folder).is_dir():
                files += _loaded_files(Path(folder))
        return files

    def training_inputs(self, wildcards: Wildcards) -> list[str]:
        """Files of the models from which this one is trained, and the text that the target wrote for it."""
        initial = self.study.training.initial(wildcards.model)
        files = [str(folder / file) for folder in initial for file in CHECKPOINT]
        return [*self._teaching_files(wildcards.pair, STAGES[wildcards.model].needs), *files]

    def joint_inputs(self, wildcards: Wildcards) -> list[str]:
        """Files from which a target and its Medusa heads are trained together: the base pair's models and text."""
        base = self.study.rows.pairs[wildcards.pair].base
        assert base is not None  # the rule's wildcards are constrained to such pairs
        return self._teaching_files(base, JOINT.needs)

    def _teaching_files(self, pair: str, models: Iterable[str]) -> list[str]:
        return [*self.model_files(pair, models), f"{self.root}/models/{pair}/{TEXT}"]

    def training_recipe(self, wildcards: Wildcards) -> str:
        """The keys on which a model depends."""
        return self.recipe(*STAGES[wildcards.model].keys)

    def target_row(self, wildcards: Wildcards) -> list[str | None]:
        """What names the target that a pair is trained for; its files, where they are here, are inputs besides."""
        row = self.study.rows.pairs[wildcards.pair]
        return [row.target, row.target_revision]

    def text_sources(self, wildcards: Wildcards) -> list[str]:
        """The user's files of training prompts, and all fetched prompts, which are left out of them."""
        sources = self.study.training.prompts
        files = [str(Path(source.source).expanduser()) for source in sources if source.kind == "file"]
        return [*files, *self.prompt_files(task for task in self.study.tasks if self.study.rows.tasks[task].fetched)]

    def excluded_prompts(self, wildcards: Wildcards) -> str:
        """Digest of the prompts in the user's file that the study evaluates with: an added task may exclude more."""
        return digest(sorted(prompts_in_both(self.study, self.root)))

    def training_threads(self, wildcards: Wildcards) -> int:
        """CPU threads of a training: half of them. Two of these small models side by side, each on half of the cores, are
        ready sooner than one after the other.
        """
        return max(1, self.job_cores // 2)

    # Prompts and scores

    def prompt_files(self, tasks: Iterable[str]) -> list[str]:
        """The files with the prompts of some tasks."""
        return [str(self.study.paths.prompt_file(task, self.root)) for task in tasks]

    @property
    def scored(self) -> list[str]:
        """The tasks with scorers."""
        return [task for task in self.study.tasks if self.study.scorers(task)]

    def scoring(self) -> str:
        """Digest of what the scores depend on besides the records: the rows of scored tasks, and two keys."""
        rows = [self.study.rows.tasks[task].model_dump(exclude=FOR_READERS) for task in self.scored]
        return digest([rows, self.study.prompts, self.study.run_generated_code])

    def task_row(self, wildcards: Wildcards) -> str:
        """Digest of what decides which prompts are fetched for a task: its row and the number of prompts."""
        row = self.study.rows.tasks[wildcards.task].model_dump(exclude={*FOR_READERS, "scorer"})
        return digest([row, self.study.grid.prompts_read(wildcards.task)])

    # Measuring

    def job_methods(self, wildcards: Wildcards) -> list[str]:
        """The methods that a job measures."""
        return self.study.grid.jobs[wildcards.engine, wildcards.pair, wildcards.process]

    def method_options(self, wildcards: Wildcards) -> list[str]:
        """The same as options of the command line."""
        return [f"--method {name}" for name in self.job_methods(wildcards)]

    def _job_cells(self, wildcards: Wildcards) -> list[Cell]:
        found = self.study.grid.by_method
        return [cell for name in self.job_methods(wildcards) for cell in found[wildcards.engine, wildcards.pair, name]]

    def job_prompts(self, wildcards: Wildcards) -> list[str]:
        """Prompt files of the tasks that a job measures, the answers between turns, and the text of contexts."""
        return self._task_files(wildcards.pair, {cell.task for cell in self._job_cells(wildcards)})

    def _task_files(self, pair: str, tasks: Iterable[str]) -> list[str]:
        tasks = list(tasks)
        later = [self.study.paths.answers(pair, task, self.root) for task in tasks if variant_of(task).turn > 1]
        text = [self.study.context_text] if self.study.contexts else []
        return sorted({*self.prompt_files(tasks), *map(str, later), *map(str, text)})

    def answers_models(self, wildcards: Wildcards) -> list[str]:
        """Files of the target that answers."""
        return self.model_files(wildcards.pair, ["target"])

    def answers_settings(self, wildcards: Wildcards) -> str:
        """Digest of what decides the answers to a task's turns, besides prompts, target and code."""
        engine = answering_cell(self.study, wildcards.pair, wildcards.task).engine
        return digest(self.study.job_settings(engine, wildcards.pair)) + self.task_row(wildcards)

    def job_models(self, wildcards: Wildcards) -> list[str]:
        """Files of the models that a job needs: the target, and the draft and heads of its methods."""
        needs = {need for name in self.job_methods(wildcards) for need in methods()[name].needs}
        return self.model_files(wildcards.pair, ["target", *sorted(needs)])

    def job_cell_names(self, wildcards: Wildcards) -> list[str]:
        """Method, slug and options' digest of each cell of a job: for a new k, only its cells are measured."""
        return [f"{cell.method}/{cell.slug} {digest(cell.options)}" for cell in self._job_cells(wildcards)]

    def job_settings(self, wildcards: Wildcards) -> str:
        """The settings that decide what a job measures, as JSON: Snakemake shows which of them has changed."""
        keys, _, options, servers = self.study.job_settings(wildcards.engine, wildcards.pair)
        return f"settings: {to_json({**keys, 'engine_options': options, 'servers': servers}).decode()}"

    def pair_row(self, wildcards: Wildcards) -> str:
        """The columns of the pair's row that are filled, as JSON; the files of its models are inputs besides."""
        row = self.study.rows.pairs[wildcards.pair].model_dump(exclude={"notes"}, exclude_defaults=True)
        return f"models: {to_json(row).decode()}"

    def job_tasks(self, wildcards: Wildcards) -> str:
        """Digest of what a measuring job reads of the rows of its tasks."""
        return self._measured_rows(self._job_cells(wildcards))

    def _measured_rows(self, cells: Iterable[Cell]) -> str:
        return "rows of tasks: " + digest({cell.task: self.study.measured_row(cell.task) for cell in cells})

    def failed_cells(self, wildcards: Wildcards) -> list[str]:
        """Names of cells that failed. When this changes, the job measures them again."""
        records, names = self.root / "records" / wildcards.engine / wildcards.pair, []
        for method in self.job_methods(wildcards):
            names += [f"{method}/{name}" for name in failed_names(records / method)]
        return names

    def loads(self, wildcards: Wildcards) -> list[str]:
        """The points of a traffic job, and what decides which requests they send."""
        points, traffic = self._points(wildcards), self.study.traffic
        assert traffic is not None  # the rule's wildcards are constrained to such studies
        return [digest(traffic.of_a_point), *(f"{point.slug} {digest(point.cell.options)}" for point in points)]

    def goodput(self) -> str:
        """Digest of the limits of goodput, which only tables depend on."""
        return digest(self.study.traffic.goodput.model_dump()) if self.study.traffic else ""

    def learning_curves(self) -> str:
        """Digest of the learning curves beside the weights, which only figures depend on."""
        return digest(self.study.rows.model_dump(include={"learning_curves"}))

    def _points(self, wildcards: Wildcards) -> list[Point]:
        return self.study.grid.points[wildcards.engine, wildcards.pair, wildcards.method]

    def traffic_tasks(self, wildcards: Wildcards) -> str:
        """Digest of what a traffic job reads of the rows of its tasks."""
        return self._measured_rows(point.cell for point in self._points(wildcards))

    def traffic_inputs(self, wildcards: Wildcards) -> list[str]:
        """Prompt files and models of a traffic job."""
        needs = ["target", *sorted(methods()[wildcards.method].needs)]
        tasks = {point.cell.task for point in self._points(wildcards)}
        return [*self._task_files(wildcards.pair, tasks), *self.model_files(wildcards.pair, needs)]

    def failed_points(self, wildcards: Wildcards) -> list[str]:
        """Names of points that failed. When this changes, the job measures them again."""
        return failed_names(self.root / TRAFFIC / wildcards.engine / wildcards.pair / wildcards.method)

    def audited_options(self, wildcards: Wildcards) -> str:
        """Digest of what an engine's exact tests depend on: methods, k's, temperatures and options, and its own options."""
        cells = (cell for cell in self.study.grid.cells if cell.engine == wildcards.engine)
        settings = {(cell.method, cell.k, cell.temperature, cell.variant, digest(cell.options)) for cell in cells}
        return digest([sorted(settings), self.study.engine_options.get(wildcards.engine, {})])

    def audited(self) -> list[str]:
        """The engines with exact tests. These sample from a pair made for them, which a running server lacks."""
        measured = {engine for engine, _, _ in self.study.grid.by_method}
        return sorted(name for name in measured if (kind := engines()[name]).loads_pairs and kind.missing() is None)

    # Resources

    @cached_property
    def _sizes(self) -> dict[str, PairSize]:
        """Name of a pair -> the sizes of its models."""
        return {size.pair: size for size in pair_sizes(self.study)}

    @cached_property
    def _auditing_demand(self) -> Demand:
        return auditing_demand(self.study, self._sizes)

    def measuring(self, wildcards: Wildcards) -> Demand:
        """What a measuring job requests from a cluster."""
        return self._measuring_demand(wildcards.engine, wildcards.pair, wildcards.process)

    def under_load(self, wildcards: Wildcards) -> Demand:
        """What a traffic job requests from a cluster."""
        job = (wildcards.engine, wildcards.pair, wildcards.method)
        return traffic_demand(self.study, job, self._sizes[wildcards.pair])

    def training(self, model: str | None = None) -> Callable[[Wildcards], Demand]:
        """What a training requests from a cluster: of `model`, or of the one that the wildcard names."""
        return lambda wildcards: self._training_demand(wildcards.pair, model or wildcards.model)

    def auditing(self, wildcards: Wildcards) -> Demand:
        """What the audit of the records requests from a cluster."""
        return self._auditing_demand

    def answering(self, wildcards: Wildcards) -> Demand:
        """What answering turns requests from a cluster: as much as any measuring job of the pair."""
        demands = [self._measuring_demand(*job) for job in self.study.grid.jobs if job[1] == wildcards.pair]
        return Demand(max(each.memory_mb for each in demands), max(each.minutes for each in demands))

    def converting(self, wildcards: Wildcards) -> Demand:
        """What the conversion of a GGUF file requests from a cluster."""
        return conversion_demand(shape_at_hand(self.study.grid.converted[wildcards.source][0]))

    def gpus(self, over: int) -> int:
        """GPUs of a job whose pair is split over so many: none on a processor, no more than jobs may use."""
        return min(self.gpu * over, self._gpus or over)

    def measuring_gpus(self, wildcards: Wildcards) -> int:
        """GPUs of a measuring job: more than one for an engine that splits the pair over them."""
        return self._gpus_of(wildcards.engine, wildcards.pair)

    def answering_gpus(self, wildcards: Wildcards) -> int:
        """GPUs of the job that answers turns, with the engine that it answers with."""
        return self._gpus_of(answering_cell(self.study, wildcards.pair, wildcards.task).engine, wildcards.pair)

    def _gpus_of(self, engine: str, pair: str) -> int:
        return self.gpus(gpus_used(engines()[engine], self.study.rows.pairs[pair].tensor_parallel))

    @property
    def exact_threads(self) -> int:
        """CPU threads of an engine's exact audits, and how many run side by side: one on a GPU, which is for one."""
        return 1 if self.gpu else self.job_cores

    def auditing_gpus(self, wildcards: Wildcards) -> int:
        """GPUs of the audit of the records: as many as the pair that is split over most."""
        return self.gpus(self.study.most_gpus())


def _loaded_files(folder: Path) -> list[str]:
    """The files of a model folder that somebody else made, without those for its readers and hidden files."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != LEARNING_CURVE)
    return [str(path) for path in files if path.suffix != ".md" and not path.name.startswith(".")]


def memory(demand: Callable[[Wildcards], Demand]) -> Callable[[Wildcards, int], int]:
    """Megabytes of main memory; a quarter more in each further attempt (a cluster's profile says `retries`)."""
    return lambda wildcards, attempt: demand(wildcards).memory_mb * (3 + attempt) // 4


def minutes(demand: Callable[[Wildcards], Demand]) -> Callable[[Wildcards, int], int]:
    """Minutes of run time; as many again in each further attempt."""
    return lambda wildcards, attempt: demand(wildcards).minutes * attempt
