"""Does the audit see its planted flaws on other toy pairs too? The pair's seed was chosen; here the seeds are fresh ones.

    nice python benchmarks/audit_power.py --keep build/power.csv    # ten seeds, one thread; goes on where it stopped
    python benchmarks/audit_power.py --keep build/power.csv --seeds  # only the table of what is kept

Each flaw of tests/unit/flaws.py is planted with one method (`chosen`), and looked for as there: with 256 samples, then
with more, up to 20,480, until the p-value is below 1e-5. It counts as seen at the default study's level. A flaw that the
check of a model at loading refuses counts as seen too. docs/audit.md sums it up.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch

sys.path.append(str(Path(__file__).parents[1] / "tests/unit"))
from flaws import FLAWS, chosen, tried

from specrig.audit.toy_pair import MAKERS, build

LEVEL = 2.9e-4
"""The level at which the smallest p-value of the default study is judged."""
COLUMNS = ["seed", "flaw", "method", "samples", "p_value"]


def measured(seeds: list[int], keep: Path) -> None:
    """Try every flaw once on the toy pair of each seed, and add a row for each to the file `keep`."""
    keep.parent.mkdir(parents=True, exist_ok=True)
    if not keep.is_file():
        keep.write_text(",".join(COLUMNS) + "\n")
    known = pd.read_csv(keep)
    done = set(zip(known["seed"], known["flaw"], strict=True))
    for seed in seeds:
        with TemporaryDirectory() as folder:
            build(Path(folder), [*MAKERS, "draft_medusa"], seed)
            for flaw, method in chosen()[: len(FLAWS)]:
                if (seed, flaw.name) not in done:
                    test = tried(flaw, method, Path(folder))
                    row = [seed, flaw.name, method, test.samples if test else 0, test.p_value if test else 0.0]
                    pd.DataFrame([row], columns=COLUMNS).to_csv(keep, mode="a", header=False, index=False)
                    print(*row, sep=" | ", flush=True)


def table(rows: pd.DataFrame) -> str:
    """One line a flaw in Markdown: on how many seeds it is seen, and between which p-values."""
    lines = ["| flaw | method | seen, of seeds | p-values | samples it took |", "|---|---|---|---|---|"]
    for (flaw, method), found in rows.groupby(["flaw", "method"], sort=False):
        seen, refused = (found["p_value"] <= LEVEL).sum(), (found["samples"] == 0).all()
        values = "refused" if refused else f"{written(found['p_value'].min())} to {written(found['p_value'].max())}"
        lines.append(f"| {flaw} | {method} | {seen} of {len(found)} | {values} | {found['samples'].median():,.0f} |")
    return "\n".join(lines)


def written(p_value: float) -> str:
    """A p-value as the table writes it."""
    return "< 1e-300" if p_value < 1e-300 else f"{p_value:.0e}"


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(101, 111)))
    parser.add_argument("--keep", type=Path, required=True, help="CSV file of the p-values")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured(arguments.seeds, arguments.keep)
    print(table(pd.read_csv(arguments.keep)))


if __name__ == "__main__":
    main()
