"""Times what a job costs besides its work: six small measuring jobs here, and over Slurm one by one, as an array and in
one group.

    bash tests/cluster/slurm.sh start /tmp/slurm          # as root, where no Slurm is (docs/scale.md)
    python benchmarks/job_overhead.py --cores 2           # some minutes; --ways local slurm for a part
    bash tests/cluster/slurm.sh stop /tmp/slurm

All ways start from the same trained models and measure the same cells, one method a job, with models so small that the
rest shows.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from runs import QUICKLY, furnish, run  # noqa: E402

METHODS = ["ngram", "suffix", "suffix_blend", "token_recycling", "lookahead", "draft_model"]
MEASURED = [f"results/test/measured/native/tiny/{method}" for method in METHODS]
WAYS: dict[str, tuple[str, list[str]]] = {
    "local": ("default", []),
    "slurm": ("slurm", QUICKLY),
    "array": ("slurm", [*QUICKLY, "--slurm-array-jobs", "measure"]),
    "group": ("slurm", [*QUICKLY, "--groups", "measure=cells", "--group-components", f"cells={len(METHODS)}"]),
}
"""Name -> profile and options."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cores", default="2", help="cores of the node")
    parser.add_argument("--work", type=Path, default=Path("build/job_overhead"), help="folder for the runs")
    given = parser.parse_args()
    work = given.work.absolute()
    start = work / "start"
    if not start.is_dir():
        prepare(work / "unfinished")
        (work / "unfinished").rename(start)
    for way in given.ways:
        folder = work / way
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder, copy_function=shutil.copy2, symlinks=True)
        begun = time.monotonic()
        measure(folder, WAYS[way], given.cores, MEASURED)
        print(f"{way:6} {time.monotonic() - begun:6.1f} s for {len(METHODS)} jobs", flush=True)


def prepare(folder: Path) -> None:
    """A study of which nothing is measured."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    furnish(folder)
    methods = [{"method": method, "k": 3} for method in METHODS]
    config = yaml.safe_load((folder / "configs/test.yaml").read_text()) | {"methods": methods, "jobs": "method"}
    (folder / "configs/own.yaml").write_text(yaml.safe_dump(config))


def measure(folder: Path, way: tuple[str, list[str]], cores: str, targets: list[str]) -> None:
    """Make the targets in `folder`. They stand before the options, of which some take every word behind them."""
    profile, options = way
    done = run(folder, "--cores", cores, *targets, *options, config="configs/own.yaml", profile=profile)
    if done.returncode:
        sys.exit(done.stdout)


if __name__ == "__main__":
    main()
