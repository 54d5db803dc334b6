# The front door: configuration, validation (in common.smk), one file of rules a stage, and what is made in the end.
from pathlib import Path

from snakemake.utils import min_version

from specrig.checkout import here_or_shipped

min_version("9.19")

# `--configfile other.yaml` replaces the default study; `--config prompts=4` changes keys of either.
if not workflow.overwrite_configfiles:

    configfile: here_or_shipped(Path("configs/quick.yaml"))


include: "workflow/rules/common.smk"
include: "workflow/rules/convert.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/traffic.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        TABLE_FILES,
        FIGURE_FILES,
        TRACKED,
        REPORT,
        PAPER,
    message:
        "The study is complete"


onstart:
    begin()


onsuccess:
    dag.forget_states()
    failed = failed_cells(STUDY.root)
    print(
        "",
        end(STUDY.root, STUDY.report, failed),
        dag.retry_tracking(),
        sep="\n",
        file=sys.stderr,
    )
    if code := exit_code(failed):
        sys.exit(code)


onerror:
    retry = dag.retry_tracking()
    if not INTERRUPTION.happened:
        print(
            f"\nNot finished. Logs: {ROOT}/logs",
            "Finished cells are kept; the same command goes on from there.",
            retry,
            sep="\n",
            file=sys.stderr,
        )
