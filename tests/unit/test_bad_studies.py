"""Whatever is wrong with a config or a table, a user gets the project's own error with the place, and never a
traceback.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from runs import REPOSITORY
from specrig import cli
from specrig.planning.plan import plan_of
from specrig.study.config import Config
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.rows import Pair

CONFIGS = {file.name: yaml.safe_load(file.read_text()) for file in sorted((REPOSITORY / "configs").glob("*.yaml"))}
SMALL = [name for name in sorted(CONFIGS) if name not in ("paper.yaml", "vocabularies.yaml")]
"""Those that are planned in a moment."""
TABLES = {name: (REPOSITORY / "configs" / name).read_text() for name in ("pairs.tsv", "tasks.tsv", "reported.csv")}
TRIAL = Path("configs/trial.yaml")
NUMBERS: list[Any] = [
    0, -1, 1.5, float("nan"), float("inf"), -float("inf"), 1 << 62, 1 << 63, -(10**30), 10**400, 1e308, 1e-320,
]  # fmt: skip
TEXTS = [
    "", " ", "x", "\0", "a\0b", "é\u202e😀", "\ufeff", "/", "..", "~", "~nobody", "a" * 5000, "[red]{}%s",
    "trained:", "medusa2:x",
]  # fmt: skip
TEXTS += [
    "owner/name", "http://[", "package:x/y.gguf", "x.gguf", "configs", "auto", "1e3", "{a", "0x_", "2001-99-99",
    "\ud800",
]  # fmt: skip
NESTED: list[Any] = [
    [], {}, [[]], [{}], {"a": 1}, [None], ["x", "x"], [1, 1], [[[[1]]]], {"method": None},
    {"method": "ngram", "k": {}},
]  # fmt: skip
FOREIGN: list[Any] = [None, True, date(2020, 1, 1), b"ab", {"a"}, {1: 2}, {None: 1}, {(1, 2): 3}, {1.5: 1}]
ODD = st.sampled_from([*NUMBERS, *TEXTS, *NESTED, *FOREIGN]).map(copy.deepcopy)  # later changes may reach into one
ONCE_EACH = settings(derandomize=True, max_examples=40)
"""The same examples in every run: a defect fails the change that makes it, not a later one."""


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of this file's tests: each example writes its own config into it."""
    folder = tmp_path_factory.mktemp("bad")
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a config."""
    if path:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*path, key))


@st.composite
def changed_configs(draw: st.DrawFn) -> dict[Any, Any]:
    """One of the repository's configs with one to three places removed, replaced, repeated or added."""
    config: dict[Any, Any] = copy.deepcopy(CONFIGS[draw(st.sampled_from(SMALL))])
    for _ in range(draw(st.integers(1, 3))):
        known = list(paths(config))
        if not known:
            break
        path = draw(st.sampled_from(known))
        block = config
        for step in path[:-1]:
            block = block[step]
        kind = draw(st.sampled_from(["remove", "replace", "replace", "wrap", "repeat", "add", "key"]))
        if kind == "remove":
            del block[path[-1]]
        elif kind == "replace":
            block[path[-1]] = draw(ODD)
        elif kind == "wrap":
            block[path[-1]] = [block[path[-1]], draw(ODD)]
        elif kind == "repeat" and isinstance(block, list):  # the very same object: YAML writes it as an alias
            block.append(block[path[-1]])
        elif kind == "add" and isinstance(block, dict):
            block[
                draw(st.sampled_from(["", "1", "x", "k", "url", "é", "\0"]) | st.sampled_from([1, None, True, (1, 2)]))
            ] = draw(ODD)
        else:
            config[draw(st.sampled_from(sorted(Config.model_fields)))] = draw(ODD)
    return config


def check_loading(said_of: str) -> None:
    """Load the trial: it is a study that can be planned, or an error of bounded length that names the file."""
    try:
        study = load_study(TRIAL)
    except StudyError as error:
        assert said_of in str(error), str(error)
        assert all(problem.reason and (problem.where or problem.key) for problem in error.problems)
        assert len(str(error)) < 20_000
    else:
        plan_of(study)


@ONCE_EACH
@given(changed_configs())
def test_a_changed_config_is_a_study_or_told_so(config: dict[Any, Any]) -> None:
    TRIAL.write_text(yaml.dump(config, sort_keys=False), encoding="utf-8")
    check_loading("configs/")


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "~no-such-user-here/x"])
@pytest.mark.parametrize(
    "key", ["results", "reports", "tables.pairs", "tables.tasks", "tables.reported", "training.prompts"]
)
def test_paths_that_no_file_can_have_are_named(key: str, name: str) -> None:
    config: dict[str, Any] = copy.deepcopy(CONFIGS["test.yaml"])
    *blocks, last = key.split(".")
    block = config
    for each in blocks:
        block = block.setdefault(each, {})
    block[last] = name
    TRIAL.write_text(yaml.dump(config))
    with pytest.raises(StudyError, match=r"no file can have this name|there is no user") as caught:
        load_study(TRIAL)
    assert key in str(caught.value) and "configs/trial.yaml:" in str(caught.value)


def test_a_home_stands_in_every_path_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {
        "results": "~/results",
        "reports": "~/r",
        "tables": {"pairs": "~/p.tsv", "tasks": "~/t", "reported": "~/c"},
    }
    study = Config.model_validate(CONFIGS["test.yaml"] | config)
    paths = [study.results, study.reports, study.tables.pairs, study.tables.tasks, study.tables.reported]
    assert paths == [tmp_path / name for name in ("results", "r", "p.tsv", "t", "c")]
    pair = Pair(pair="a", target="~/target", draft="~/draft", heads="eagle=~/eagle medusa=owner/name@main")
    assert (pair.target, pair.draft) == (f"{tmp_path}/target", f"{tmp_path}/draft")
    assert pair.head_folders == {"eagle": f"{tmp_path}/eagle", "medusa": "owner/name"}
    with pytest.raises(ValidationError, match="no such user"):
        Pair(pair="a", target="b/c", heads="eagle=~no-such-user-here/x")


@pytest.mark.parametrize(
    ("table", "column"), [("pairs.tsv", "target"), ("pairs.tsv", "draft"), ("tasks.tsv", "source")]
)
def test_a_row_with_a_path_that_no_file_can_have_is_named(table: str, column: str) -> None:
    header, row, *_ = (line.split("\t") for line in TABLES[table].splitlines())
    row = [*row, *[""] * (len(header) - len(row))]
    row[header.index(column)] = "./" + "a" * 300
    Path("configs", f"changed-{table}").write_text("\t".join(header) + "\n" + "\t".join(row) + "\n")
    key = table.partition(".")[0]
    TRIAL.write_text(json.dumps({**CONFIGS["test.yaml"], "tables": {key: f"configs/changed-{table}"}}))
    with pytest.raises(
        StudyError, match=rf"changed-{table}:2: {column}: you gave .*\n    → no file can have this name"
    ):
        load_study(TRIAL)


SNIPPETS = [
    ":", "- ", "\n", "\t", "\0", "'", '"', "[", "{", "}", "&a ", "*a", "<<: *a\n", "!!python/object:os.system ",
    "!!set ", "!!int ",
]  # fmt: skip
SNIPPETS += [
    "!!timestamp ",
    "!!binary ",
    "!x ",
    "%YAML 9\n",
    "---\n",
    "...\n",
    "? ",
    "|\n",
    "#",
    "\x85",
    "\u2028",
    "0x_",
    "2001-99-99",
    "=",
]


@ONCE_EACH
@given(
    name=st.sampled_from(SMALL),
    at=st.floats(0, 1),
    put=st.sampled_from([snippet.encode() for snippet in SNIPPETS]) | st.binary(max_size=4),
    cut=st.integers(0, 12),
)
def test_a_config_with_other_bytes_in_it_is_a_study_or_told_so(name: str, at: float, put: bytes, cut: int) -> None:
    content = Path("configs", name).read_bytes()
    start = int(at * len(content))
    TRIAL.write_bytes(content[:start] + put + content[start + cut :])
    check_loading("configs/")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file has no keys"),
        (b"\n# nothing\n", "the file has no keys"),
        (b"- study: x\n", "the file has no keys"),
        (b"just text", "the file has no keys"),
        (b"study: x\n---\nstudy: y\n", "configs/trial.yaml:2: not valid YAML"),
        (b"study: a\npairs: [tiny\ntasks: b\n", "configs/trial.yaml:3: not valid YAML"),
        (b"study: \xff\n", "configs/trial.yaml:1: the file is not UTF-8"),
        ("study: x\n".encode("utf-16"), "configs/trial.yaml:1: the file is UTF-16"),
        (b"study: a\0b\n", "configs/trial.yaml: not valid YAML (unacceptable character #x0000"),
        (b"study: x\n? [1, 2]\n: 3\n", "configs/trial.yaml:2: not valid YAML (found unhashable key"),
        (b"study: x\nyes: 3\n", "a key that is no text to YAML"),
        (b"study: x\nseed: 2001-99-99\n", "configs/trial.yaml: not valid YAML (month must be in 1..12"),
        (b"study: x\nseed: " + b"9" * 5000 + b"\n", "Exceeds the limit"),
        (b"study: x\nseed: 0x" + b"f" * 5000 + b"\n", "configs/trial.yaml:2: seed: a number beyond 64 bits"),
        (b"study: x\nseed: !!python/object/apply:os.getcwd []\n", "configs/trial.yaml:2: not valid YAML (could not "
        "determine"),
        (b"study: x\nk: " + b"[" * 3000, "brackets are nested too deeply"),
        (b"study: x\nstudy: y\n", "configs/trial.yaml:2: study: the key occurs twice"),
    ],
)  # fmt: skip
def test_files_that_are_no_config_are_named(content: bytes, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    TRIAL.write_bytes(content)
    assert cli.main(["plan", str(TRIAL)]) == 2
    output = capsys.readouterr().err
    assert message in output and "configs/trial.yaml" in output and "Traceback" not in output


@settings(ONCE_EACH, max_examples=15)
@given(changed_configs())
def test_the_command_line_ends_with_0_or_2(config: dict[Any, Any]) -> None:
    """2 is a mistake of the user that was told; 1 would be an error that nobody expected."""
    TRIAL.write_text(yaml.dump(config, sort_keys=False), encoding="utf-8")
    assert cli.main(["plan", str(TRIAL)]) in (0, 2)


@st.composite
def changed_tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """One of the three tables with a field, a column's name, a row or some bytes changed."""
    name = draw(st.sampled_from(sorted(TABLES)))
    if draw(st.booleans()):
        content, sign = TABLES[name].encode(), b"," if name.endswith(".csv") else b"\t"
        at, cut = int(draw(st.floats(0, 1)) * len(content)), draw(st.integers(0, 20))
        put = draw(st.binary(max_size=6) | st.sampled_from([sign, b"\n", b"\r", b'"', b"\0", b"#", b"\n" + sign * 40]))
        return name, content[:at] + put + content[at + cut :]
    sign = "," if name.endswith(".csv") else "\t"
    lines = TABLES[name].splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    cells = lines[number].split(sign)
    odd = str(draw(ODD)) if draw(st.booleans()) else draw(st.text(max_size=8))
    cells[draw(st.integers(0, len(cells) - 1))] = odd
    lines[number] = sign.join(cells)
    return name, "\n".join(lines).encode("utf-8", "surrogatepass")


@ONCE_EACH
@given(changed_tables(), st.sampled_from(SMALL))
def test_a_changed_table_is_read_or_told_so(table: tuple[str, bytes], config: str) -> None:
    name, content = table
    key = name.partition(".")[0]
    changed = Path("configs", f"changed-{name}")
    changed.write_bytes(content)
    tables = {**CONFIGS[config].get("tables", {}), key: str(changed)}
    # In this form every row is used, so that the checks of models and prompts see it too.
    TRIAL.write_text(json.dumps({**CONFIGS[config], "tables": tables}))
    check_loading("configs/")
