"""How time and memory of planning, dry run, tables, figures, report and paper grow with the number of cells.

    python benchmarks/scale.py --cells 100 1000 10000 100000 --stages plan
    python benchmarks/scale.py --cells 100 1000 10000 --figure docs/scale.svg

Makes a study of so many cells (tables of pairs and tasks of its own, five methods at four k; pairs and tasks both grow)
and, for all that comes after measuring, synthetic records of the real schema, four prompts a cell; the reported figures
are the repository's. Each stage runs in a process of its own; its seconds and its peak memory go to `<work>/scale.csv`,
where the last run of a stage counts. Nothing is measured on a model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from specrig.report.figures.style import rc
from specrig.study.load import load_study

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/unit"))

from synthetic import write_grid, write_job  # noqa: E402

SIZES = {100: (1, 5), 1_000: (5, 10), 10_000: (20, 25), 100_000: (100, 50)}
"""Cells -> (pairs, tasks): 20 cells for a pair and a task."""
SPECRIG = [sys.executable, "-m", "specrig"]
SNAKEMAKE = [
    sys.executable,
    "-m",
    "snakemake",
    "--snakefile",
    str(REPOSITORY / "Snakefile"),
    "--dry-run",
    "--quiet",
    "all",
]
READ = (
    "import sys; from pathlib import Path; from specrig.report.study_data import read_study; "
    "read_study(Path(sys.argv[1])).every"
)
STAGES: Mapping[str, list[str]] = {
    "plan": [*SPECRIG, "plan", "study.yaml"],
    "dry run": [*SNAKEMAKE, "--workflow-profile", str(REPOSITORY / "profiles/default"), "--configfile", "study.yaml"],
    "reading the records": [sys.executable, "-c", READ, "results/scale"],
    "tables": [*SPECRIG, "tables", "--study", "results/scale/study.json"],
    "figures": [*SPECRIG, "figures", "--study", "results/scale/study.json"],
    "report": [*SPECRIG, "report", "--study", "results/scale/study.json"],
    "paper": [*SPECRIG, "paper", "--study", "results/scale/study.json"],
}
"""Stage -> its command, which runs in the study's folder."""
LAUNCH = """
import resource, subprocess, sys, time
begun = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
"""Runs a command from a small process, since Linux counts the memory of the process that starts one as the new one's."""
BEFORE = ("plan", "dry run")
"""Stages that run before anything is measured."""


def write_records(folder: Path) -> None:
    """Write the resolved study and synthetic records of all its cells into `folder`, which holds a study without any."""
    os.chdir(folder)
    study = load_study(Path("study.yaml"))
    study.root.mkdir(parents=True)
    for cells in study.grid.by_method.values():
        write_job(study.root, cells)
    (study.root / "study.json").write_text(study.model_dump_json(indent=1) + "\n")


def measured(stage: str, folder: Path) -> tuple[float, float]:
    """Run a stage in `folder`; returns its seconds and its peak memory in MB. Exits if it fails."""
    with (folder / "said.txt").open("w") as said:
        launched = subprocess.run(
            [sys.executable, "-c", LAUNCH, *STAGES[stage]], cwd=folder, stdout=subprocess.PIPE, stderr=said
        )
    if launched.returncode:
        sys.exit(f"{stage}: {(folder / 'said.txt').read_text()[-3000:]}")
    seconds, kilobytes = map(float, launched.stdout.split())
    return seconds, kilobytes / 1024


def draw(table: pd.DataFrame, file: Path) -> None:
    """Draw seconds and memory against cells, a line a stage, and dotted what a linear growth from 1,000 cells would be."""
    with plt.rc_context(rc(10)):
        figure, panes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        for pane, column, title in zip(panes, ("seconds", "memory_mb"), ("seconds", "peak memory (MB)"), strict=True):
            sns.lineplot(
                table,
                x="cells",
                y=column,
                hue="stage",
                style="stage",
                markers=True,
                dashes=False,
                ax=pane,
                legend=pane is panes[1],
            )
            pane.set(xscale="log", yscale="log", xlabel="cells", ylabel=title)
        panes[0].axline((1_000, 6), (10_000, 60), color="0.5", linestyle=":", zorder=0)
        panes[0].annotate("linear", (150, 1.1), color="0.5", fontsize=8)
        sns.move_legend(panes[1], "center left", bbox_to_anchor=(1, 0.5), title=None)
        figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Measure the stages asked for and print the table of all that was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", choices=SIZES, default=[100, 1_000, 10_000])
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="STAGE", help=", ".join(STAGES)
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/scale"), help="folder of the studies, which are kept, and of the table"
    )
    parser.add_argument("--figure", type=Path, help="draw all that was measured into this file")
    given = parser.parse_args()
    work = given.work.absolute()
    file, figure = work / "scale.csv", given.figure and given.figure.absolute()
    table = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["stage", "cells", "seconds", "memory_mb"])
    for cells in given.cells:
        for stage in given.stages:
            folder = work / f"{cells}-{'planned' if stage in BEFORE else 'measured'}"
            if not folder.is_dir():
                pairs, tasks = SIZES[cells]
                write_grid(
                    folder, pairs=pairs, tasks=tasks, jobs="method", reported=REPOSITORY / "configs/reported.csv"
                )
                if stage not in BEFORE:
                    write_records(folder)
            seconds, memory = measured(stage, folder)
            table = table[(table["stage"] != stage) | (table["cells"] != cells)]
            table.loc[len(table.index) and table.index.max() + 1] = [stage, cells, round(seconds, 2), round(memory)]
            table.to_csv(file, index=False)
            print(f"{stage}, {cells} cells: {seconds:.2f} s, {memory:.0f} MB", flush=True)
    table = table.sort_values(
        ["cells", "stage"], key=lambda column: column if column.name == "cells" else column.map(list(STAGES).index)
    )
    if figure:
        draw(table, figure)
    for name in ("seconds", "memory_mb"):
        print(f"\n{name}\n{table.pivot_table(name, 'stage', 'cells').reindex(list(STAGES)).to_string(na_rep='')}")


if __name__ == "__main__":
    main()
