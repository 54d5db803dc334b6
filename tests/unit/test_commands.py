"""The commands that the table of reported figures prints: each of them plans, as printed, one after the other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
from snakemake.cli import parse_config
from snakemake.utils import update_config

from specrig.decoding.drafters import registry as methods
from specrig.report.claim_tables import reproduction
from specrig.report.study_data import StudyData
from specrig.study.claims import ALIASES
from specrig.study.load import load_study
from specrig.study.problems import StudyError, read_config
from specrig.study.study import Study


def printed() -> pd.DataFrame:
    """The table of a study that has measured nothing yet: every claim that only a measurement can judge asks for one."""
    study = json.loads(load_study(Path("configs/smollm2.yaml")).model_dump_json())
    return reproduction(StudyData(Path("results/tiny"), study, []))


def planned(command: str) -> Study:
    """What a printed command plans: its shell part is run, then the study is read as Snakemake would hand it over."""
    preparation, verb, arguments = re.fullmatch(r"(?:(.*) && )?(make|snakemake) ?(.*)", command).groups()  # type: ignore[union-attr]
    if preparation:
        subprocess.run(["sh", "-c", preparation], check=True)
    words = shlex.split(arguments)
    if verb == "make":
        assert all(word.startswith("CONFIG=") for word in words), f"make knows no such argument: {command}"
        files, entries = [word.removeprefix("CONFIG=") for word in words] or ["configs/quick.yaml"], []
    else:
        assert words[0] == "--configfile" and words[2] == "--config", f"an unknown shape of command: {command}"
        files, entries = words[1:2], words[3:]
    config: dict[str, Any] = read_config(Path(files[0]))
    update_config(config, parse_config(entries))
    return load_study(config, [Path(files[0])])


def test_every_printed_command_plans(workplace: Path) -> None:
    output = printed()
    undecided = output[
        (output["verdict"] == "not measured") & output["method"].isin([*methods(), *ALIASES, "draft_model (68M)"])
    ]
    assert (undecided["command"] != "").mean() > 0.9
    rows = output[output["command"] != ""]
    failed = {}
    for row in rows.drop_duplicates("command").itertuples():
        try:
            study = planned(row.command)
        except (StudyError, AssertionError, subprocess.CalledProcessError) as error:
            failed[row.id] = f"{row.command}\n{error}"
            continue
        if row.command.startswith("make"):
            assert row.method in ("medusa1", "medusa2", "lookahead", "naive_batching")
        else:
            assert study.study == row.id and study.grid.cells
    assert not failed, "\n\n".join(failed.values())
