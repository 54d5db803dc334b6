"""Pairs, heads and data sets from the hub, through the command line, against a hub of the tests' own (`hub_server`)."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import TOKEN, HubServer

from runs import imported, server
from specrig.measurement.records import Record, read_records
from specrig.models.gate import _json, check_pair, vocabulary
from specrig.study.load import load_study
from specrig.study.rows import Pair

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
BEGINNING, REST = "Once upon a time, there was a little girl", "named Lily. She loved to play outside in the park."
PAIR = "pair\ttarget\tdraft\ttarget_revision\tdraft_revision\theads\tnotes\n"
TASK = "task\tsource\tid_field\tprompt_field\n"

pytestmark = pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubServer, dict[str, str]]]:
    """A hub, and the environment of its user. huggingface_hub reads it when it is imported: copies of one process have."""
    hub = HubServer()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    clean |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path_factory.mktemp("hub") / "cache"),
        "COLUMNS": "400",
        "DISABLE_SAFETENSORS_CONVERSION": "1",
    }
    with server(clean) as named:
        yield hub, imported(clean | named)
    hub.shutdown()
    hub.server_close()


@pytest.fixture
def hub(served: tuple[HubServer, dict[str, str]]) -> HubServer:
    """That hub with nothing in it, and no cache of it."""
    served[0].forget()
    shutil.rmtree(served[1]["HF_HOME"], ignore_errors=True)
    return served[0]


@pytest.fixture
def specrig(served: tuple[HubServer, dict[str, str]], hub: HubServer, workplace: Path) -> Command:
    """Runs `specrig` as a user of that hub."""
    (workplace / "prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": BEGINNING}) + "\n")
    (workplace / "configs/tasks.tsv").write_text(f"{TASK}stories\tprompts.jsonl\tid\tprompt\n")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specrig", *arguments]
        return subprocess.run(
            command, env=served[1] | environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


def study(*methods: str, **changes: Any) -> str:
    """Write a config; returns its path."""
    settings = {
        "study": "hub", "pairs": ["stories"], "tasks": ["stories"], "prompts": 1,
        "methods": [{"method": method, "k": 3} for method in methods or ("draft_model",)],
        "max_new_tokens": 12, "warmup": 0, "threads": 1, "device": "cpu", "tables": {"reported": None},
    }  # fmt: skip
    Path("configs/hub.yaml").write_text(yaml.safe_dump({**settings, **changes}))
    return "configs/hub.yaml"


JOB = ["stage", "measure", "--study", "configs/hub.yaml", "--engine", "native", "--pair", "stories"]


def measured(method: str) -> tuple[list[Record], dict[str, Any]]:
    """The method's records and what its environment says of the models."""
    folder = Path("results/hub/records/native/stories") / method
    assert json.loads((folder / "index.json").read_text())["failed"] == {}
    (file,) = folder.glob("*.jsonl")
    return list(read_records(file)), json.loads((folder / "environment.json").read_text())["models"]


def downloads(hub: HubServer, repo: str) -> set[str]:
    """Revisions that files of a repository were downloaded by."""
    return {
        line.split("/resolve/")[1].split("/")[0] for line in hub.requests if line.startswith(f"GET /{repo}/resolve/")
    }


def test_a_pair_and_its_head_from_the_hub_are_measured_at_their_commits(
    served: tuple[HubServer, dict[str, str]], hub: HubServer, specrig: Command, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    from specrig.heads.eagle import module as eagle

    eagle.initialise(tmp_path / "head", AutoConfig.from_pretrained(STORIES), 0)
    head = hub.add("tiny/head", tmp_path / "head")
    hub.add("tiny/head", {"config.json": b"{}"})  # main moves on to something broken
    pinned = hub.add("tiny/target", STORIES)
    later = {**hub.repositories["models", "tiny/target"].commits[pinned], "README.md": b"new"}
    moved = hub.add("tiny/target", later, gated=True)
    draft = hub.add("tiny/draft", STORIES)
    row = f"stories\ttiny/target\ttiny/draft\t{{}}\t\teagle=tiny/head@{head}\n"
    Path("configs/pairs.tsv").write_text(PAIR + row.format(pinned))
    output = specrig("plan", study("draft_model", "eagle")).stdout
    assert "2 cells in 1 job" in output and "Not pinned tiny/draft: " in output and "tiny/target" not in output
    assert not hub.requests, "planning asks no hub"

    result = specrig(*JOB, HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stderr
    (record,), models = measured("draft_model")
    assert record.run.tokens == record.baseline.tokens and record.run.rounds.accepted[0] == 3, (
        "target and draft are one model"
    )
    assert "Lily" in record.text
    assert {name: (model["source"], model["revision"]) for name, model in models.items()} == {
        "target": ("tiny/target", pinned),
        "draft": ("tiny/draft", draft),
        "eagle": ("tiny/head", head),
    }
    (drafted,), _ = measured("eagle")
    assert drafted.run.tokens == drafted.baseline.tokens
    assert downloads(hub, "tiny/target") == {pinned} and downloads(hub, "tiny/head") == {head}

    # What the cache has is found without the hub.
    code = "import sys; from specrig.models.hub import fetch_folder; print(fetch_folder(*sys.argv[1:]))"
    offline = served[1] | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, "tiny/target", pinned]
    assert f"snapshots/{pinned}" in subprocess.run(command, env=offline, capture_output=True, text=True).stdout

    # Another pin is another model: its cells are measured again. Nothing is asked twice.
    before = len(hub.requests)
    Path("configs/pairs.tsv").write_text(PAIR + row.format(moved))
    study("draft_model")
    assert specrig(*JOB, HF_TOKEN=TOKEN).returncode == 0
    (again,), models = measured("draft_model")
    assert again.digest != record.digest and models["target"]["revision"] == moved
    downloaded = [line for line in hub.requests[before:] if line.startswith("GET ") and "/resolve/" in line]
    assert all(line.startswith(f"GET /tiny/target/resolve/{moved}/") for line in downloaded), downloaded


def test_engines_that_serve_get_the_revisions(tmp_path: Path) -> None:
    from specrig.cell import Cell
    from specrig.engines.sglang import Sglang
    from specrig.engines.vllm.speculation import speculation_of
    from specrig.models.pair import PairFiles

    row = Pair.model_validate({"pair": "p", "target": "o/t", "heads": f"eagle=o/e@v1 medusa={tmp_path}/a@b"})
    assert row.head_folders == {"eagle": "o/e", "medusa": f"{tmp_path}/a@b"} and row.head_revisions == {"eagle": "v1"}
    heads = {name: Path(source) for name, source in row.head_folders.items()}
    pair = PairFiles("p", "o/t", "o/d", draft_revision="v2", heads=heads, head_revisions=row.head_revisions)
    assert pair.revisions == {"draft": "v2", "eagle": "v1"} and pair.only(["medusa"]).revisions == {}
    output = {}
    for method in ("draft_model", "eagle", "medusa"):
        cell = Cell(engine="vllm", pair="p", method=method, k=3, task="t", temperature=0.0)
        output[method] = speculation_of(cell, pair, "greedy")["speculative_config"].get("revision")
    assert output == {"draft_model": "v2", "eagle": "v1", "medusa": None}
    cell = Cell(engine="sglang", pair="p", method="eagle", k=3, task="t", temperature=0.0)
    words = Sglang(replace(pair, target=str(STORIES), draft=None), device="cpu", threads=1).arguments(cell)
    assert words[words.index("--speculative-draft-model-revision") + 1] == "v1"


@pytest.mark.parametrize(
    ("row", "environment", "expected"),
    [
        ("tiny/gated\t\t", {}, "tiny/gated: gated, its owner lets in only who agreed to the terms"),
        ("tiny/gated\t\t", {"HF_TOKEN": "hf_stranger"}, "tiny/gated: gated, its owner lets in only who agreed"),
        ("meta-llama/Llama-3.1-8B-Instruct\t\t", {}, "who agreed to the terms: accept Meta's licence"),
        ("tiny/none\t\t", {}, "tiny/none: neither a folder here nor on the hub, or private"),
        ("tiny/none\t\t", {"HF_TOKEN": "hf_stranger"}, "tiny/none: neither a folder here nor on the hub, or private"),
        ("tiny/target\t\tv2", {}, "tiny/target: the hub has no revision 'v2' of it; correct it in its row"),
        ("tiny/target\t\t", {"HF_HUB_OFFLINE": "1"}, "(HF_HUB_OFFLINE) and the cache does not hold it"),
    ],
)
def test_refusals_name_the_fix(
    hub: HubServer, specrig: Command, row: str, environment: dict[str, str], expected: str
) -> None:
    hub.add("tiny/target", STORIES)
    for name in ("tiny/gated", "meta-llama/Llama-3.1-8B-Instruct"):
        hub.add(name, STORIES, gated=True)
    Path("configs/pairs.tsv").write_text(f"{PAIR}stories\t{row}\n")
    study("ngram")
    result = specrig(*JOB, **environment)
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) < 6
    assert not any("safetensors" in line for line in hub.requests), "refused before any weight is read"


def test_a_draft_without_a_config_fails_its_cells_alone(hub: HubServer, specrig: Command) -> None:
    hub.add("tiny/target", STORIES)
    hub.add("tiny/headless", {"README.md": b"nothing"})
    Path("configs/pairs.tsv").write_text(f"{PAIR}stories\ttiny/target\ttiny/headless\t\n")
    study("draft_model", "ngram")
    result = specrig(*JOB)
    assert measured("ngram")
    assert "failed: FileMissingError: tiny/headless: its repository holds no config.json" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("down", "reason"), [(True, "503 Service Unavailable"), (False, "Connection refused")])
def test_a_hub_that_cannot_be_reached(hub: HubServer, tmp_path: Path, down: bool, reason: str) -> None:
    """huggingface_hub tries again for half a minute; that wait is left out here."""
    hub.down = down
    code = (
        "import sys, time; time.sleep = lambda _: None\n"
        "from specrig.models.pair import ModelError; from specrig.models.hub import fetch, fetch_folder\n"
        "for ask in (lambda: fetch('tiny/target', 'config.json'), lambda: fetch_folder('tiny/target', 'abc')):\n"
        "    try: ask()\n"
        "    except ModelError as error: print(error)\n"
    )
    endpoint = hub.url if down else "http://127.0.0.1:9"
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    first, second = result.stdout.splitlines()
    assert first.startswith("tiny/target: config.json cannot be had from the hub: ")
    assert second.startswith("tiny/target: ")
    assert all(reason in line and "check the network and HF_ENDPOINT" in line for line in (first, second))


def test_older_tokenizers_pass_the_gate(tmp_path: Path) -> None:
    """DialoGPT and its time: vocab.json and merges.txt, no tokenizer.json."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from specrig.models.pair import ModelError, PairFiles

    folder = tmp_path / "old"
    shape = GPT2Config(vocab_size=4, n_embd=8, n_layer=1, n_head=1, n_positions=8, bos_token_id=None, eos_token_id=None)
    GPT2LMHeadModel(shape).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    _json.cache_clear()
    with pytest.raises(ModelError, match=r"no tokenizer there"):
        vocabulary(str(folder))
    words = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    assert vocabulary(str(folder)) == words
    check_pair(PairFiles("p", str(folder), str(folder)))
    (folder / "vocab.json").write_text("{")
    with pytest.raises(ModelError, match=r"old: its tokenizer cannot be loaded: "):
        vocabulary(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": "two"}))
    with pytest.raises(ModelError, match=r"old: its config\.json cannot be loaded: "):
        vocabulary(str(folder))


def test_a_path_where_nothing_lies_is_no_repository() -> None:
    from specrig.models import hub
    from specrig.models.pair import ModelError

    for ask in (hub.tokenizer, hub.fetch_folder, lambda model: hub.fetch(model, "config.json")):
        with pytest.raises(
            ModelError, match=r"results/x/converted: there is no such folder.*a GGUF file is named as it is"
        ):
            ask("results/x/converted")


TABLE = (
    "pair\ttarget\tdraft\ttarget_revision\tdraft_revision\theads\tnotes\r\n"
    '# a remark\t"as it stands\r\n'
    'stories\ttiny/target\ttiny/draft\t\t\teagle=tiny/head  medusa=tiny/other\tsays "yes"  \r\n'
    "\r\n"
    "short\ttiny/target\r\n"
    "unused\ttiny/none\ttiny/none\r\n"
)


def test_pins_are_written_and_nothing_else(hub: HubServer, specrig: Command) -> None:
    commits = {
        name: hub.add(f"tiny/{name}", {"config.json": name.encode()}) for name in ("target", "draft", "head", "other")
    }
    data = hub.add("tiny/data", {"test.jsonl": b"{}"}, kind="datasets")
    pairs, tasks = Path("configs/pairs.tsv"), Path("configs/tasks.tsv")
    pairs.write_bytes(TABLE.encode())
    tasks.write_text(f"{TASK}stories\ttiny/data\tid\tprompt\nlocal\tprompts.jsonl\n")
    entries = ["ngram", {"method": "eagle", "pairs": ["stories"]}]
    config = study(pairs=["stories", "short"], methods=entries, tasks=["stories", "local"])
    untouched = tasks.read_bytes()

    output = specrig("pin", config, "--check")
    assert output.returncode == 1 and f"stories: heads: tiny/head is at {commits['head']}" in output.stdout, (
        output.stderr
    )
    assert pairs.read_bytes() == TABLE.encode() and tasks.read_bytes() == untouched

    result = specrig("pin", config)
    assert result.returncode == 0, result.stderr
    # No method of the study needs the draft or the Medusa heads.
    expected = TABLE.replace(
        "tiny/draft\t\t\teagle=tiny/head ", f"tiny/draft\t{commits['target']}\t\teagle=tiny/head@{commits['head']} "
    )
    expected = expected.replace("short\ttiny/target\r", f"short\ttiny/target\t\t{commits['target']}\t\t\t\r")
    assert pairs.read_bytes().decode() == expected
    assert (
        tasks.read_text()
        == f"task\tsource\tid_field\tprompt_field\trevision\nstories\ttiny/data\tid\tprompt\t{data}\nlocal\tprompts.jsonl\n"
    )

    hub.add("tiny/target", {"config.json": b"later"})
    again = specrig("pin", config)
    assert again.returncode == 0 and "is pinned" in again.stdout and pairs.read_bytes().decode() == expected
    assert specrig("pin", config, "--check").returncode == 0
    assert "Not pinned" not in specrig("plan", config).stdout


def test_pins_keep_a_byte_order_mark_and_ask_for_what_entries_need(hub: HubServer, specrig: Command) -> None:
    commit = hub.add("tiny/target", {"config.json": b"{}"})
    Path("configs/[mine]").mkdir()
    pairs = Path("configs/[mine]/pairs.tsv")
    pairs.write_bytes(b"\xef\xbb\xbfpair\ttarget\tdraft\nstories\ttiny/target\ttiny/draft\n")
    entries = [{"method": "adaptive_k", "drafter": "ngram"}]
    result = specrig("pin", study(tables={"reported": None, "pairs": str(pairs)}, methods=entries))
    assert result.returncode == 0 and "[mine]/pairs.tsv" in result.stdout, result.stderr
    expected = f"pair\ttarget\tdraft\ttarget_revision\nstories\ttiny/target\ttiny/draft\t{commit}\n"
    assert pairs.read_bytes() == b"\xef\xbb\xbf" + expected.encode()


def test_what_the_hub_refuses_stops_no_other_pin(hub: HubServer, specrig: Command) -> None:
    commit = hub.add("tiny/target", {"config.json": b"{}"})
    pairs = Path("configs/pairs.csv")
    pairs.write_text('pair,target,draft,target_revision,notes\nstories,tiny/target,tiny/none,,"a, b"\n')
    config = study(tables={"reported": None, "pairs": str(pairs)})
    result = specrig("pin", config)
    assert result.returncode == 2 and "tiny/none: neither a folder here nor on the hub" in result.stderr
    assert (
        pairs.read_text() == f'pair,target,draft,target_revision,notes\nstories,tiny/target,tiny/none,{commit},"a, b"\n'
    )
    refused = specrig("pin", config, HF_HUB_OFFLINE="1")
    assert refused.returncode == 2 and "offline mode is on" in refused.stderr
    refused = specrig("pin", config, HF_ENDPOINT="http://127.0.0.1:9")
    assert refused.returncode == 2 and "Connection refused: check the network" in refused.stderr


CARD = "---\nconfigs: [{config_name: de-en, data_files: [{split: test, path: de-en/test-*}]}]\n---\n"


def translations(english: str) -> dict[str, bytes]:
    """A data set as WMT's: one field with both languages, in Parquet."""
    import pandas as pd

    parquet = io.BytesIO()
    pairs = [{"de": f"{BEGINNING} ({number}).", "en": f"{english} {number}"} for number in range(3)]
    pd.DataFrame({"translation": pairs}).to_parquet(parquet)
    return {"README.md": CARD.encode(), "de-en/test-00000-of-00001.parquet": parquet.getvalue()}


def articles() -> dict[str, bytes]:
    """A data set as XSum's, in JSON lines."""
    found = [
        {"id": f"a{number}", "document": f"{number}: {BEGINNING} {REST} " * 3, "summary": REST} for number in range(3)
    ]
    return {"test.jsonl": "".join(json.dumps(article) + "\n" for article in found).encode()}


def data_rows(**fields: str) -> str:
    """tasks.tsv with a row of each kind; `fields`: of the translations."""
    wmt = {"task": "wmt", "source": "tiny/wmt", "config": "de-en", "revision": "", "id_field": "#"}
    wmt |= {"reference_field": "translation.en", "scorer": "bleu chrf"}
    wmt |= {"prompt_template": r"Translate.\nGerman: {translation.de}\nEnglish:"} | fields
    news = {"task": "news", "source": "tiny/news", "config": "", "revision": "", "id_field": "id"}
    news |= {"reference_field": "summary", "scorer": "rouge_l", "prompt_template": "{document:.80}"}
    return "".join("\t".join(line) + "\n" for line in (wmt, wmt.values(), news.values()))


def test_a_data_set_from_the_hub_reaches_the_scores(hub: HubServer, specrig: Command) -> None:
    pytest.importorskip("datasets", reason="`pip install 'specrig[data]'`")
    first = hub.add("tiny/wmt", translations(REST), kind="datasets")
    second = hub.add("tiny/wmt", translations("Something else"), kind="datasets")
    hub.add("tiny/news", articles(), kind="datasets")
    Path("configs/pairs.tsv").write_text(f"{PAIR}stories\t{STORIES}\t{STORIES}\n")
    Path("configs/tasks.tsv").write_text(data_rows(revision=first))
    config = study(tasks=["wmt", "news"], prompts=2, max_new_tokens=20)
    for task in ("wmt", "news"):
        result = specrig("stage", "prompts", "--study", config, "--task", task)
        assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in Path("results/hub/data/wmt.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["1", "2"] and lines[0]["reference"] == f"{REST} 0"
    assert lines[0]["prompt"] == f"Translate.\nGerman: {BEGINNING} (0).\nEnglish:"
    assert downloads(hub, "datasets/tiny/wmt") <= {first, "main"}
    result = specrig(*JOB)
    assert result.returncode == 0, result.stderr
    Path("results/hub/study.json").write_text(load_study(Path(config)).model_dump_json())
    result = specrig("stage", "quality", "--study", "results/hub/study.json")
    assert result.returncode == 0, result.stderr
    with Path("results/hub/tables/quality.csv").open(newline="") as file:
        found = {(row["task"], row["scorer"]): row for row in csv.DictReader(file)}
    assert set(found) == {("wmt", "bleu"), ("wmt", "chrf"), ("news", "rouge_l")}
    for row in found.values():
        assert not row["note"] and row["prompts"] == "2" and float(row["score"]) == float(row["baseline_score"]), row
    assert float(found["news", "rouge_l"]["score"]) > 0 and float(found["wmt", "chrf"]["score"]) > 0

    # Unreachable, datasets would hand out what the cache has; the pin is another.
    Path("configs/tasks.tsv").write_text(data_rows(revision=second))
    result = specrig("stage", "prompts", "--study", config, "--task", "wmt", HF_HUB_OFFLINE="1")
    assert result.returncode == 2 and f"the cache holds commit {first}, the row pins {second}" in result.stderr
    result = specrig("stage", "prompts", "--study", config, "--task", "wmt")
    assert result.returncode == 0, result.stderr
    assert "Something else 0" in Path("results/hub/data/wmt.jsonl").read_text()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"config": "fr-en"}, "BuilderConfig 'fr-en' not found"),
        ({"revision": "v2"}, "Revision 'v2' doesn't exist"),
        ({"prompt_template": "{translation.fr}"}, "no field 'translation.fr'; the row has 'translation'"),
        ({"source": "tiny/gated"}, "is a gated dataset on the Hub"),
    ],
)
def test_refusals_of_data_sets_name_the_fix(
    hub: HubServer, specrig: Command, fields: dict[str, str], expected: str
) -> None:
    pytest.importorskip("datasets", reason="`pip install 'specrig[data]'`")
    hub.add("tiny/wmt", translations(REST), kind="datasets")
    hub.add("tiny/gated", translations(REST), kind="datasets", gated=True)
    Path("configs/pairs.tsv").write_text(f"{PAIR}stories\t{STORIES}\t{STORIES}\n")
    Path("configs/tasks.tsv").write_text(data_rows(**fields))
    result = specrig("stage", "prompts", "--study", study(tasks=["wmt"]), "--task", "wmt")
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert "✗ PromptError" in result.stderr and "Traceback" not in result.stderr
