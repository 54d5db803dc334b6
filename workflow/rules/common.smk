# All helpers of the workflow: they read the study, name the files that stages make, and compute what makes a stage stale.
import json
import os
import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from specrig.cell import digest
from specrig.measurement.damage import (
    damaged_files,
    damaged_records,
    quarantined_names,
    reset_future_times,
    quarantine,
)
from specrig.measurement.recording import aside
from specrig.measurement.records import replicate_folder, write_atomically
from specrig.planning.demand import Demand, measuring_demand, training_demand
from specrig.planning.estimate import pair_sizes
from specrig.decoding.drafters import registry as methods
from specrig.provenance.digests import (
    audit_digest,
    code_digest,
    job_digest,
    stage_digest,
)
from specrig.engines import registry as engines
from specrig.study.load import load_study
from specrig.models.gguf import FILES as CONVERTED_FILES
from specrig.models.gguf import located
from specrig.runtime.gpus import OWN
from specrig.study.grid import TOGETHER
from specrig.study.lock import BusyError, claim
from specrig.study.problems import StudyError
from specrig.study.overlap import prompts_in_both
from specrig.corpus.example import PROMPT_FILES
from specrig.results.names import FIGURES, TABLES
from specrig.training.stages import FILES, JOINT, STAGES, TEXT

try:
    STUDY = load_study(config, [Path(file) for file in workflow.configfiles])
except StudyError as error:
    raise WorkflowError(str(error)) from None

# `workflow.dryrun` is not known yet while the files are read.
if {"-n", "--dry-run", "--dryrun"} & set(sys.argv):
    from specrig.planning.estimate import needs

    print(needs(STUDY), file=sys.stderr)

ROOT = str(STUDY.root)
STUDY_FILE = f"{ROOT}/study.json"
REPORT = str(STUDY.report)
PAPER = [
    str(STUDY.report.with_suffix(".pdf")),
    str(STUDY.report.parent / "paper" / "main.tex"),
]
TRACKED = f"{ROOT}/tracked.txt"
UNTRACKED = f"{ROOT}/tracking-failed.txt"
# Another store lacks the runs entered so far, so tracking depends on its address. It is digested since it may hold a password.
TRACKING_STORE = digest(os.environ.get("MLFLOW_TRACKING_URI", ""))
RESUME = "Finished cells are kept; the same command goes on from there."

# A job that uses all cores runs alone, so that no other job disturbs its timing.
ALL_CORES = workflow.resource_settings.cores or 1
GPU = int(STUDY.uses_gpu())
# How many GPUs jobs may use at a time: profiles/default limits this resource to 1; on a cluster, which deals them out itself, nothing does.
GPUS = int(workflow.global_resources.get("gpu").value or 0)
# Where jobs share a machine's GPUs, each takes its own (`runtime.gpus`) and the same share of the cores.
SHARED = GPU and GPUS > 1 and workflow.local_exec and not workflow.remote_exec
JOB_CORES = max(1, ALL_CORES // GPUS) if SHARED else ALL_CORES
# Jobs run with the interpreter that runs Snakemake, which has the package; a conda environment brings its own interpreter.
# The path is a prefix and not in the rules, so that moving the virtual environment makes no result stale.
PREFIX = f"export {OWN}=1; " if SHARED else ""
if not workflow.deployment_settings.deployment_method:
    PREFIX += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
if PREFIX:
    shell.prefix(f"set -euo pipefail; {PREFIX}")

# Priority of the first replicate and of all jobs that it waits for; later replicates have lower ones (`measuring_order`).
FIRST = STUDY.replicates

PROMPTS = [f"{ROOT}/prompts/{task}.jsonl" for task in PROMPT_FILES]
SCORED = [task for task in STUDY.tasks if STUDY.rows.tasks[task].scorer]
MEASURED = [
    f"{ROOT}/measured/{engine}/{pair}/{process}{f'-{number}' if number else ''}"
    for number in range(STUDY.replicates)
    for engine, pair, process in STUDY.grid.jobs
]
CURVES = [
    f"{ROOT}/models/{pair}/{model}/training.jsonl" for pair, model in STUDY.grid.trained
]
AUDITS = [f"{ROOT}/audit/records.csv"] + [
    f"{ROOT}/audit/exact-{engine}-{method}.csv"
    for engine, method in sorted(
        {
            (engine, method)
            for engine, _, method in STUDY.grid.by_method
            # The test samples from a pair made for it, which a server that runs elsewhere does not have.
            if engines()[engine].loads_pairs and engines()[engine].missing() is None
        }
    )
]
# What is simulated stands in tables of its own.
TABLE_NAMES = [name for name in TABLES if name != "simulated"]
# Only the tables have the reported figures as input, so that a new row there causes no measuring.
REPORTED = [str(STUDY.tables.reported)] if STUDY.tables.reported else []
TABLE_FILES = [
    f"{ROOT}/tables/{name}.{kind}"
    for name in [*TABLE_NAMES, "simulated", "quality"]
    for kind in ("csv", "md", "tex")
]
FIGURE_NAMES = list(FIGURES)
FIGURE_FILES = [
    f"{ROOT}/figures/{name}.{kind}" for name in FIGURE_NAMES for kind in ("svg", "png")
]


wildcard_constraints:
    engine="|".join(STUDY.engines),
    pair="|".join(STUDY.rows.pairs),
    task="|".join(STUDY.tasks),
    model="|".join(STAGES),
    source="|".join(map(re.escape, STUDY.grid.converted)) or "-",
    method="|".join(sorted({entry.method for entry in STUDY.methods})),
    process="|".join([TOGETHER, *sorted({entry.method for entry in STUDY.methods})]),
    again=r"(-[1-9]\d*)?",


def begin():
    """Before the first job: keep other runs of the study away, set aside what is damaged, and write the study that every job reads.

    Raises WorkflowError if another run is at work, or if the results folder cannot be written.
    """
    global LOCK  # held until this process ends
    try:
        LOCK = claim(STUDY.root)
        for sentence in quarantine(damage()):
            print(sentence, file=sys.stderr)
        if count := reset_future_times(STUDY.root):
            print(
                f"{count} files of {ROOT} were written later than now: the clock was set back? They get the time of now.",
                file=sys.stderr,
            )
        write_study()
    except BusyError as error:
        raise WorkflowError(str(error)) from None
    except OSError as error:
        raise WorkflowError(
            f"{error.filename}: {error.strerror}; choose another folder, e.g. --config results=PATH"
        ) from None


def write_study():
    """Write the resolved study, which every job reads.

    The file is not an input of the jobs, since then a change of any key would rerun them all. With `ancient()` it would be no
    better: Snakemake then looks for no other reasons in jobs downstream of one that runs. So each rule names in its params the
    keys that it depends on.
    """
    write_atomically(Path(STUDY_FILE), STUDY.model_dump_json(indent=1) + "\n")


# What is damaged is looked for once, before the jobs are planned.
damaged_records, damaged_files = cache(damaged_records), cache(damaged_files)


def damage():
    """Every damaged record file and trained model of the study -> what is wrong."""
    found = {}
    for engine, pair, method in STUDY.grid.by_method:
        for number in range(STUDY.replicates):
            found |= damaged_records(records_folder(engine, pair, method, number))
    for pair in dict.fromkeys(pair for pair, _ in STUDY.grid.trained):
        for model in [*STAGES, TEXT]:
            found |= damaged_model(pair, model)
    return found


def damaged_model(pair, model):
    """The folder of a trained model (or the text of a pair's target) -> what is wrong with one of its files; empty if it is whole."""
    folder = Path(ROOT, "models", pair)
    if model == TEXT:
        return damaged_files(folder)
    for path, reason in damaged_files(folder / model).items():
        return {folder / model: f"{path.name}: {reason}"}
    return {}


def model_damage(pair, models):
    """Names under which damaged models of a pair lie aside, as text: "" if there never was one, so that nothing becomes stale."""
    return "".join(
        name
        for model in models
        for name in quarantined_names(
            Path(ROOT, "models", pair), damaged_model(pair, model), model
        )
    )


def records_folder(engine, pair, method, number):
    """The folder with the records of a job's method in one replicate."""
    return replicate_folder(Path(ROOT, "records", engine, pair, method), number)


def forget_states():
    """Delete the hidden states that trainings share: nothing more will be trained from them."""
    for folder in Path(ROOT, "models").glob("*/.states"):
        shutil.rmtree(folder, ignore_errors=True)


def try_tracking_again():
    """If MLflow could not be reached, delete the mark that the runs are entered; returns a message for the user, or ""."""
    if not Path(UNTRACKED).is_file():
        return ""
    Path(TRACKED).unlink(missing_ok=True)
    reason = Path(UNTRACKED).read_text(encoding="utf-8").splitlines()[0]
    return f"\n{reason} The next run tries again.\n"


def converted(wildcards):
    """Digest of what decides a converted folder: name, precision, size in bytes and modification time of the GGUF file."""
    source, dtype = STUDY.grid.converted[wildcards.source]
    about = located(source).stat()
    return digest([source, dtype, about.st_size, int(about.st_mtime)])


def recipe(*parts):
    """The keys of `training:` that a stage depends on (`parts` and the seed), as JSON. A change of other keys leaves it fresh."""
    return STUDY.training.model_dump_json(include={"seed", *parts})


def model_files(pair, models):
    """Files of the given models of a pair: those that the workflow makes, or the config of a local folder; none for a hub id."""
    files = []
    for model in models:
        folder = STUDY.paths.model(pair, model, STUDY.root)
        if model in STUDY.rows.pairs[pair].gguf:
            files += [f"{folder}/{name}" for name in CONVERTED_FILES]
        elif (STUDY.rows.pairs[pair].trained_in(model), model) in STUDY.grid.trained:
            files += [f"{folder}/{name}" for name in FILES]
        elif folder is not None and Path(folder).is_dir():
            files.append(f"{folder}/config.json")
    return files


def job_models(wildcards):
    """Files of the models that a job needs: the target, and the draft and heads of its methods."""
    needs = {need for name in job_methods(wildcards) for need in methods()[name].needs}
    return model_files(wildcards.pair, ["target", *sorted(needs)])


def teachers(wildcards):
    """Files of the models from which this one is trained, and the text that the target wrote for it."""
    needs = STAGES[wildcards.model].needs
    return teaching_files(wildcards.pair, needs) if needs else []


def target_row(wildcards):
    """What names the target that a pair is trained for; its files, where they are here, are inputs besides."""
    row = STUDY.rows.pairs[wildcards.pair]
    return [row.target, row.target_revision]


def asked_files(wildcards):
    """The user's file of training prompts, and all fetched prompts, which are left out of it."""
    if STUDY.training.prompts is None:
        return []
    fetched = [task for task in STUDY.tasks if STUDY.rows.tasks[task].fetched]
    evaluated = [str(STUDY.paths.prompt_file(task, STUDY.root)) for task in fetched]
    return [str(STUDY.training.prompts.expanduser()), *evaluated]


def left_out(wildcards):
    """Digest of the prompts in the user's file that the study evaluates with: an added task may leave out more."""
    return digest(sorted(prompts_in_both(STUDY, STUDY.root)))


def training_threads(wildcards):
    """CPU threads of a training: all for a target, half for a draft or head.

    Two of these small models side by side, each on half of the cores, are ready sooner than one after the other.
    """
    return max(1, JOB_CORES // 2) if STAGES[wildcards.model].needs else JOB_CORES


@cache
def sizes():
    """Name of a pair -> the sizes of its models."""
    return {size.pair: size for size in pair_sizes(STUDY)}


@cache
def measuring_asks(engine, pair, process):
    return measuring_demand(STUDY, (engine, pair, process), sizes()[pair])


@cache
def training_asks(pair, model):
    return training_demand(STUDY, pair, model)


def measuring(wildcards):
    """What a measuring job asks a cluster for."""
    return measuring_asks(wildcards.engine, wildcards.pair, wildcards.process)


def training(model=None):
    """What a training asks a cluster for: of `model`, or of the one that the wildcard names."""
    return lambda wildcards: training_asks(wildcards.pair, model or wildcards.model)


def auditing(wildcards):
    """What the audit asks for, which loads one pair after the other and reads every output once: as much as any measuring job."""
    asked = [measuring_asks(*process) for process in STUDY.grid.jobs]
    return Demand(
        max(each.memory_mb for each in asked), max(each.minutes for each in asked)
    )


def memory(demand):
    """Megabytes of main memory; a quarter more in each further attempt (a cluster's profile says `retries`)."""
    return lambda wildcards, attempt: demand(wildcards).memory_mb * (3 + attempt) // 4


def minutes(demand):
    """Minutes of run time; as many again in each further attempt."""
    return lambda wildcards, attempt: demand(wildcards).minutes * attempt


def joint_teachers(wildcards):
    """Files from which a target and its Medusa heads are trained together: the base pair's models and its target's text."""
    return teaching_files(STUDY.rows.pairs[wildcards.pair].base, JOINT.needs)


def teaching_files(pair, models):
    """Files of the given models of a pair, and the text that its target wrote."""
    return model_files(pair, models) + [f"{ROOT}/models/{pair}/{TEXT}"]


def prompt_inputs(wildcards):
    """Prompt files of the tasks that a job measures."""
    return sorted(
        {
            str(STUDY.paths.prompt_file(cell.task, STUDY.root))
            for cell in job_cells(wildcards)
        }
    )


def task_row(wildcards):
    """Digest of what decides which prompts are fetched for a task: its row and the number of prompts."""
    row = STUDY.rows.tasks[wildcards.task].model_dump(exclude={"notes", "licence"})
    return digest([row, STUDY.grid.prompts_read(wildcards.task)])


def scored():
    """Digest of what the scores depend on besides the records: the rows of tasks with scorers, and two keys of the study."""
    rows = [
        STUDY.rows.tasks[task].model_dump(exclude={"notes", "licence"})
        for task in SCORED
    ]
    return digest([rows, STUDY.prompts, STUDY.run_generated_code])


def job_methods(wildcards):
    """The methods that a job measures."""
    return STUDY.grid.jobs[wildcards.engine, wildcards.pair, wildcards.process]


def job_cells(wildcards):
    """The cells of a measuring job."""
    return [
        cell
        for method in job_methods(wildcards)
        for cell in STUDY.grid.by_method[wildcards.engine, wildcards.pair, method]
    ]


def job_cell_names(wildcards):
    """Method, slug and the options' digest of each cell of a job. A new k changes only this param, so only its cells are measured."""
    return [
        f"{cell.method}/{cell.slug} {digest(cell.options)}"
        for cell in job_cells(wildcards)
    ]


def audited_options(wildcards):
    """Digest of what the exact test of a method depends on: each k, temperature and set of options, and its engine's options."""
    cells = sorted(
        {
            (cell.k, cell.temperature, cell.variant, digest(cell.options))
            for cell in STUDY.grid.cells
            if (cell.engine, cell.method) == (wildcards.engine, wildcards.method)
        }
    )
    return digest([cells, STUDY.engine_options.get(wildcards.engine, {})])


def job_settings(wildcards):
    """Digest of the settings that decide what a job measures: keys of the study, the pair's row, engine options and servers."""
    keys = (
        "seed",
        "prompts",
        "max_new_tokens",
        "warmup",
        "repeats",
        "device",
        "threads",
    )
    pair = STUDY.rows.pairs[wildcards.pair].model_dump(exclude={"notes"})
    options = STUDY.engine_options.get(wildcards.engine, {})
    servers = [
        server
        for server in STUDY.servers
        if (server.engine, server.pair) == (wildcards.engine, wildcards.pair)
    ]
    return digest([{key: getattr(STUDY, key) for key in keys}, pair, options, servers])


def gpus(over):
    """How many GPUs a job uses whose pair is split over so many: none on a processor, and no more than jobs may use."""
    return min(GPU * over, GPUS or over)


def measuring_gpus(wildcards):
    """GPUs of a measuring job: more than one for an engine that splits the pair over them."""
    split = engines()[wildcards.engine].splits
    return gpus(STUDY.rows.pairs[wildcards.pair].tensor_parallel if split else 1)


def auditing_gpus(wildcards):
    """GPUs of the audit of the records: as many as the pair that is split over most."""
    return gpus(STUDY.most_gpus())


def replicate(wildcards):
    """The number of a measuring job's replicate, from 0."""
    return int(wildcards.again[1:] or 0)


def measuring_order(wildcards):
    """The priority of a measuring job, by which all jobs are measured once before any is measured again.

    Replicates are ordered by priority and not by inputs, so that a failed job does not keep the others from their second time, and
    a job that is measured again makes no other stale. Since a measuring job takes all cores, it never starts while a job of higher
    priority runs or could run; only on several GPUs, a last one of higher priority may still run beside it.
    """
    return FIRST - replicate(wildcards)


def failed_cells(wildcards):
    """Cells that failed last time, and files set aside. When this list changes, the next run of Snakemake measures them again."""
    found = []
    for method in job_methods(wildcards):
        folder = records_folder(
            wildcards.engine, wildcards.pair, method, replicate(wildcards)
        )
        index, damaged = folder / "index.json", damaged_records(folder)
        whole = index.is_file() and index not in damaged
        failed = json.loads(index.read_text())["failed"] if whole else []
        names = sorted(failed) + aside(folder) + quarantined_names(folder, damaged)
        found += [f"{method}/{name}" for name in names]
    return found


def job_code(wildcards):
    """Digests of the code that a measuring job runs, one a method."""
    return [job_digest(wildcards.engine, name) for name in job_methods(wildcards)]
