# What needs Snakemake's own objects: the study, the names of the files that stages make, and the commands' prefix.
# The helpers of the rules are tested functions in `specrig.dag`.
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from specrig.cell import digest
from specrig.dag.code import stage_digest
from specrig.dag.command_line import AGAIN, forces_measuring, with_names_as_written
from specrig.dag.ending import end, exit_code, failed_cells
from specrig.dag.interruption import Interruption
from specrig.dag.rules import Rules, memory, minutes
from specrig.models.gguf import FILES as CONVERTED_FILES
from specrig.planning.estimate import needs
from specrig.report.outline import figures, tables
from specrig.redaction import redacted
from specrig.runtime.gpus import OWN
from specrig.study.grid import TOGETHER
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.training.stages import FILES, JOINT, STAGES, TEXT

INTERRUPTION = Interruption()

try:
    STUDY = load_study(
        with_names_as_written(config, sys.argv),
        [Path(file) for file in workflow.configfiles],
    )
except StudyError as error:
    raise WorkflowError(str(error)) from None

# `workflow.dryrun` is not known yet while the files are read.
if {"-n", "--dry-run", "--dryrun"} & set(sys.argv):
    print(needs(STUDY), file=sys.stderr)

# A job that uses all cores runs alone, so that no other job disturbs its timing.
ALL_CORES = workflow.resource_settings.cores or 1
# How many GPUs jobs may use at a time: profiles/default says 1. On a cluster, which deals them out itself, it is how many one job may use:
# profiles/slurm says 8. 0: no limit.
GPUS = int(workflow.global_resources.get("gpu").value or 0)
dag = Rules(
    STUDY,
    cores=ALL_CORES,
    gpus=GPUS,
    # Where jobs share a machine's GPUs, each takes its own (`runtime.gpus`) and the same share of the cores.
    shared=GPUS > 1 and workflow.local_exec and not workflow.remote_exec,
)

# Jobs run with the interpreter that runs Snakemake, which has the package. `--sdm conda` cannot be used: in Snakemake's copy of
# environment.yml, pip finds neither the lock nor this folder. The rules name that file to say what they need.
# The path is a prefix and not in the rules, so that moving the virtual environment makes no result stale.
PREFIX = f"export {OWN}=1; " if dag.shared else ""
if forces_measuring(sys.argv):
    os.environ[AGAIN] = "1"  # jobs inherit it
if not workflow.deployment_settings.deployment_method:
    PREFIX += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
if PREFIX:
    shell.prefix(f"set -euo pipefail; {PREFIX}")

ROOT = str(STUDY.root)
STUDY_FILE = f"{ROOT}/study.json"
REPORT = str(STUDY.report)
PAPER = [
    str(STUDY.report.with_suffix(".pdf")),
    str(STUDY.report.parent / "paper" / "main.tex"),
]
TRACKED = f"{ROOT}/tracked.txt"
# Another store lacks the runs entered so far, so tracking depends on its address, without the password.
TRACKING_STORE = redacted(os.environ.get("MLFLOW_TRACKING_URI", ""))
MEASURED = [
    f"{ROOT}/measured/{engine}/{pair}/{process}"
    for engine, pair, process in STUDY.grid.jobs
]
UNDER_LOAD = [
    f"{ROOT}/under_load/{engine}/{pair}/{method}"
    for engine, pair, method in STUDY.grid.points
]
CURVES = [
    f"{ROOT}/models/{pair}/{model}/training.jsonl" for pair, model in STUDY.grid.trained
]
AUDITS = [
    f"{ROOT}/audit/records.csv",
    *(f"{ROOT}/audit/exact-{engine}.csv" for engine in dag.audited()),
]
TABLE_NAMES = list(tables())
# The reported figures, and the pairs and tasks that could measure them. Only tables and figures have these files as input, so
# that a new row there causes no measuring. A resolved study needs none of them.
REPORTED = [
    str(path)
    for path in (STUDY.tables.reported, STUDY.tables.pairs, STUDY.tables.tasks)
    if path and path.is_file()
]
TABLE_FILES = [
    f"{ROOT}/tables/{name}.{kind}"
    for name in [*TABLE_NAMES, "quality"]
    for kind in ("csv", "md", "tex")
]
FIGURE_NAMES = list(figures())
FIGURE_FILES = [
    f"{ROOT}/figures/{name}.{kind}" for name in FIGURE_NAMES for kind in ("svg", "png")
]
METHODS = sorted({entry.method for entry in STUDY.methods})


wildcard_constraints:
    engine="|".join(STUDY.engines),
    pair="|".join(STUDY.rows.pairs),
    task="|".join(STUDY.rows.tasks),
    model="|".join(STAGES),
    source="|".join(map(re.escape, STUDY.grid.converted)) or "-",
    method="|".join(METHODS),
    process="|".join([TOGETHER, *METHODS]),


def begin():
    """Before the first job. Raises WorkflowError where `dag.begin` fails."""
    try:
        dag.begin(bar="specrig" in sys.argv)
    except OSError as error:
        raise WorkflowError(
            f"{error.filename}: {error.strerror}; choose another folder, e.g. --config results=PATH"
        ) from None
