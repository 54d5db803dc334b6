"""Give commands and services inputs that are changed at random: python tests/faults/fuzz.py --inputs 300 --seed 30.

An input passes if it is accepted, or refused with a message that names its file: never an "unexpected error", never a
traceback, never a hang. One that fails keeps its folder in build/fuzz and can be repeated with `--only NUMBER`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "unit"), str(TESTS / "contract"), str(TESTS / "faults")]
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import yaml  # noqa: E402

from runs import CONFIG, REPOSITORY, run  # noqa: E402
from specrig.cli import main  # noqa: E402

SECONDS = 600
"""Longer than any input takes: what takes more hangs."""
STUDY = Path("results/test")
PUBLISHED = Path("reports/published/fuzz")
MODELS = STUDY / "models/embedded"
GGUF = Path("tiny.gguf")
HEADS, TARGET, SPLIT = Path("heads"), Path("target"), Path("split")
"""Untrained heads, their target, and the same target with its weights in several files."""
OWN = "configs/own.yaml"
"""A study of a user's models and prompts; it trains a draft on the user's requests."""
PROMPTS = [Path("mine") / f"prompts.{ending}" for ending in ("jsonl", "csv", "parquet")]
REQUESTS = Path("mine/requests.jsonl")
Case: TypeAlias = tuple[str, list[str], Path | None]
"""What was changed, the command line, and the file that a refusal must name."""

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, 1e308, float("nan"), float("inf"), 10**30, 2**63, "", " ", "x", "\0", "é\u202e😀", "\ufeff",
    "\ud800", "a" * 5000, "[red]%s{}", "1e3", "../..", "configs", [], {}, [[]], [None], {"a": 1}, {"": None}, ["x"] * 50, [1] * 3,
]  # fmt: skip
WORDS = [
    "", " ", "-", "--", "-1", "0", "nan", "1e999", "9" * 400, "é\u202e", "a\udcffb", "a" * 5000, "~nobody/x", "/dev/null", ".",
    "nowhere/x", "configs", "configs/pairs.tsv", "configs/test.yaml:3", "[red]", "%s{}", "results/test", "None", "{}", "k=[", "eagle=",
    "=", "http://[", "owner/name", "x.gguf", "tiny.gguf", "results/test/study.json", "0x10", "1_000", "*", "--help=1", "--no-such",
]  # fmt: skip


# Changes


def changed_bytes(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Name of a change, and the changed content."""
    at, size = draw.randrange(len(content) + 1), draw.choice((1, 4, 16, 200))
    noise = draw.randbytes(size)
    changes: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "cut": lambda: content[:at],
        "without its beginning": lambda: content[at:],
        "bits": lambda: bytes(byte ^ (1 << draw.randrange(8)) if draw.random() < 4 / len(content) else byte for byte in content),
        "overwritten": lambda: content[:at] + noise + content[at + size :],
        "inserted": lambda: content[:at] + noise + content[at:],
        "zeros": lambda: content[:at] + bytes(size) + content[at + size :],
        "a gap": lambda: content[:at] + content[at + size :],
        "twice": lambda: content + content,
        "halves swapped": lambda: content[at:] + content[:at],
        "UTF-16": lambda: b"\xff\xfe" + content.decode("utf-8", "replace").encode("utf-16-le"),
        "BOM": lambda: b"\xef\xbb\xbf" + content,
        "old line ends": lambda: content.replace(b"\n", b"\r"),
        "lines shuffled": lambda: b"\n".join(draw.sample(lines := content.split(b"\n"), len(lines))),
        "brackets": lambda: b"[" * draw.choice((1000, 100_000)),
        "digits": lambda: b"9" * 5000,
    }  # fmt: skip
    name = draw.choice(sorted(changes))
    return name, changes[name]()


def changed_tree(value: Any, draw: random.Random) -> tuple[str, Any]:
    """The value with one place removed, replaced, repeated or added."""
    root = [copy.deepcopy(value)]
    known = list(places(root))
    block, key = draw.choice(known[1:] or known)
    kind = draw.choice(("remove", "replace", "replace", "replace", "wrap", "number", "add"))
    if kind == "remove" and block is not root:
        del block[key]
    elif kind == "wrap":
        block[key] = [block[key]]
    elif kind == "number" and isinstance(block[key], int | float):
        block[key] = draw.choice((-block[key], block[key] + 1, block[key] * 1e9, str(block[key])))
    elif kind == "add" and isinstance(block, dict):
        block[draw.choice(["", "x", "é", "\0", "k"])] = copy.deepcopy(draw.choice(ODD))
    else:
        block[key] = copy.deepcopy(draw.choice(ODD))
    return f"{kind} {key!r}", root[0]


def places(block: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in block.items() if isinstance(block, dict) else enumerate(block):
        yield block, key
        if isinstance(item, dict | list):
            yield from places(item)


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=str).encode("utf-8", "surrogatepass")


def changed_json(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    name, value = changed_tree(json.loads(content), draw)
    return name, as_json(value)


def changed_lines(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """One line of a JSONL file."""
    lines = content.splitlines()
    number = draw.randrange(len(lines))
    name, lines[number] = changed_json(lines[number], draw)
    return f"line {number + 1}: {name}", b"\n".join(lines) + b"\n"


def changed_cells(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """One cell of a table, or of its header."""
    gap = b"\t" if b"\t" in content.split(b"\n")[0] else b","
    rows = [line.split(gap) for line in content.splitlines()]
    row = rows[draw.choice((0, draw.randrange(len(rows))))]
    at = draw.randrange(len(row))
    odd = draw.choice([each for each in [*ODD, *WORDS] if isinstance(each, str | int | float)])
    row[at : at + draw.choice((0, 1, 1, 1, 2))] = [str(odd).encode("utf-8", "surrogatepass")]
    return f"cell {at} {str(odd)[:20]!r}", b"\n".join(gap.join(each) for each in rows) + b"\n"


def changed_safetensors(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """The header of a file of tensors."""
    size = int.from_bytes(content[:8], "little")
    name, header = changed_tree(json.loads(content[8 : 8 + size]), draw)
    return name, len(as_json(header)).to_bytes(8, "little") + as_json(header) + content[8 + size :]


def changed_yaml(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    name, value = changed_tree(yaml.safe_load(content), draw)
    return name, yaml.safe_dump(value, sort_keys=False).encode("utf-8", "surrogatepass")


def changed_zip(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    name, lines = changed_lines(gzip.decompress(content), draw)
    return name, gzip.compress(lines)


BY_SUFFIX = {
    ".json": changed_json, ".jsonl": changed_lines, ".csv": changed_cells, ".tsv": changed_cells, ".yaml": changed_yaml,
    ".safetensors": changed_safetensors, ".gz": changed_zip,
}  # fmt: skip


def change(path: Path, draw: random.Random) -> str:
    """Change a file in its content or in its bytes; or put a folder or a link to nowhere in its place."""
    if not path.is_file():
        return f"{path}: gone already"
    content = path.read_bytes()
    if draw.random() < 0.06:
        path.unlink()
        if draw.random() < 0.5:
            path.mkdir()
            return f"{path}: a folder"
        path.symlink_to("nowhere")
        return f"{path}: a link to nowhere"
    how = BY_SUFFIX.get(path.suffix, changed_bytes) if draw.random() < 0.6 else changed_bytes
    try:
        name, new = how(content, draw)
    except (ValueError, KeyError, IndexError, RecursionError, OSError, EOFError, zlib.error, yaml.YAMLError):
        name, new = changed_bytes(content, draw)  # an earlier change has left nothing to read
    path.write_bytes(new)
    return f"{path}: {name}"


# Kinds of input


def config(draw: random.Random) -> Case:
    path = Path("configs") / f"{draw.choice(['test', 'embedded', 'quick', 'paper', 'smollm2_train'])}.yaml"
    verb = draw.choice(["plan", "plan", "where", "clean"])
    return change(path, draw), [verb, str(path)], path


def table(draw: random.Random) -> Case:
    path = Path("configs") / draw.choice(["pairs.tsv", "tasks.tsv", "reported.csv"])
    command = draw.choice([["plan", "configs/paper.yaml"], ["plan", CONFIG], ["advise", "embedded"]])
    return change(path, draw), command, path


def result(draw: random.Random) -> Case:
    """A file of a finished study."""
    patterns = [
        "records/**/*.jsonl",
        "records/**/*.jsonl",
        "records/**/index.json",
        "records/**/environment.json",
        "study.json",
    ]
    patterns += ["audit/*.csv", "tables/*.csv", "models/*/*/training.jsonl", "prompts/*.jsonl"]
    path = draw.choice(sorted(STUDY.glob(draw.choice(patterns))))
    own = ["--study", str(STUDY / "study.json")]
    verb = draw.choice(["tables", "tables", "audit", "quality", "figures", "report", "track"])
    command = draw.choice([
        [verb, *own], [verb, *own], ["remeasure", CONFIG], ["publish", CONFIG], ["compare", str(STUDY), str(PUBLISHED)],
        ["advise", "embedded", "--study", str(STUDY)], ["measure", *own, "--engine", "native", "--pair", "embedded"],
    ])  # fmt: skip
    return change(path, draw), command, path


def publication(draw: random.Random) -> Case:
    """A file of a publication, with its hash made again."""
    path = draw.choice(
        [each for each in sorted(PUBLISHED.rglob("*")) if each.is_file() and each.suffix not in {".svg", ".html"}]
    )
    said = change(path, draw)
    manifest, name = PUBLISHED / "manifest.json", path.relative_to(PUBLISHED).as_posix()
    if path.is_file() and path != manifest:
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError, RecursionError):  # changed before
            content = json.loads(manifest.read_text())
            content["files"][name] = sha256(path.read_bytes()).hexdigest()
            manifest.write_text(json.dumps(content))
    verify = ["verify", str(PUBLISHED)]
    return said, draw.choice([verify, verify, ["compare", str(PUBLISHED), str(STUDY)]]), path


def checkpoint(draw: random.Random) -> Case:
    """A file of a target, a draft or a head."""
    from specrig.decoding.drafters import registry

    head = draw.choice(sorted(path.name for path in HEADS.iterdir()))
    kind = draw.choice(["target", "draft", "head", "head"])
    folder = {"head": HEADS / head, "target": TARGET, "draft": MODELS / "draft"}[kind]
    path = draw.choice([each for each in sorted(folder.iterdir()) if each.name not in {"SHA256SUMS", "training.jsonl"}])
    command = ["decode", "1 and", "--target", str(TARGET), "--device", "cpu", "--tokens", "4"]
    if kind == "head":
        method = next(name for name, made in registry().items() if head in made.needs)
        command += ["--head", f"{head}={HEADS / head}", "--method", method]
        command += ["--draft", str(MODELS / "draft")] if "draft" in registry()[method].needs else []
    else:
        command += ["--draft", str(MODELS / "draft")]
    return change(path, draw), command, path


def gguf_file(draw: random.Random) -> Case:
    """A GGUF file that a study's pair names."""
    content = GGUF.read_bytes()
    end = draw.choice((64, 1000, len(content)))  # most faults in the header
    name, head = changed_bytes(content[:end], draw)
    GGUF.write_bytes(head + content[end:])
    command = draw.choice([["plan", OWN], ["convert", "--study", OWN, "--source", f"{GGUF.stem}-float32"]])
    return f"{GGUF}: {name} in {end} bytes", command, GGUF


def split_weights(draw: random.Random) -> Case:
    """A file of a model whose weights lie in several, or one of its files taken away."""
    path = draw.choice([*SPLIT.glob("*.safetensors*"), SPLIT / "model.safetensors.index.json"])
    decode = ["decode", "1 and", "--target", str(SPLIT), "--method", "ngram", "--device", "cpu", "--tokens", "4"]
    command = draw.choice([decode, ["plan", OWN], [*MEASURE, "--pair", "split"]])
    if draw.random() < 0.1 and path.is_file():
        path.unlink()
        return f"{path}: removed", command, path
    return change(path, draw), command, path


MEASURE = ["measure", "--study", OWN, "--engine", "native", "--method", "ngram", "--replicate", "0"]


def own_prompts(draw: random.Random) -> Case:
    """A user's prompts, or requests to train on."""
    path = draw.choice([*PROMPTS, REQUESTS])
    command = draw.choice([["plan", OWN], [*MEASURE, "--pair", "split"]])
    if path == REQUESTS:
        command = ["write-text", "--study", OWN, "--pair", "split"]
    return change(path, draw), command, path


def corpora(draw: random.Random) -> Case:
    """What a training reads: the corpus, the target's text and its shards, the target."""
    patterns = ["corpus/*.jsonl", "corpus/*.jsonl"]
    patterns += [
        f"models/embedded/{each}" for each in ("text.safetensors", "text/*/*", "target/*.json", "target/*.safetensors")
    ]
    path = draw.choice(sorted(STUDY.glob(draw.choice(patterns))))
    said, of = change(path, draw), ["--study", CONFIG, "--pair", "embedded"]
    shutil.rmtree("results/.trained")  # or what was trained already would be taken
    train = ["train", *of, "--model", draw.choice(["draft", "target"]), "--threads", "1"]
    # A shard is read where the text itself is made again.
    return said, ["write-text", *of] if "text" in path.parts else draw.choice([train, ["write-text", *of]]), path


COMMANDS = [
    ["plan", CONFIG], ["where", CONFIG, "--json"], ["clean", CONFIG], ["advise", "embedded", "--device", "RTX 4090", "--study", str(STUDY)],
    ["methods", "eagle2"], ["schema", "--folder", "schemas"], ["prompts", "--study", CONFIG, "--task", "code"],
    ["convert", "--study", CONFIG, "--source", "x"], ["train", "--study", CONFIG, "--pair", "embedded", "--model", "draft", "--threads", "1"],
    ["write-text", "--study", CONFIG, "--pair", "embedded"], ["train-jointly", "--study", CONFIG, "--pair", "embedded"],
    ["measure", "--study", CONFIG, "--engine", "native", "--pair", "embedded", "--method", "ngram", "--replicate", "0"],
    ["audit-exact", "--study", CONFIG, "--engine", "native", "--method", "ngram"], ["tables", "--study", CONFIG],
    ["publish", CONFIG, "--as", "name", "--to", "published"], ["verify", str(PUBLISHED)],
    ["compare", str(STUDY), str(PUBLISHED), "--html", "changes.html"], ["pin", CONFIG, "--check"],
    ["decode", "1 and", "--pair", "embedded", "--study", CONFIG, "--method", "ngram", "--k", "4", "--option", "n=3", "--tokens", "4", "--seed", "1"],
    ["decode", "x", "--target", str(MODELS / "target"), "--draft", str(MODELS / "draft"), "--temperature", "1", "--tokens", "4", "--device", "cpu"],
]  # fmt: skip


def arguments(draw: random.Random) -> Case:
    command = list(draw.choice(COMMANDS))
    at, word = draw.randrange(1, len(command)), draw.choice(WORDS)
    kind = draw.choice(("replace", "replace", "replace", "insert", "remove"))
    command[at : at + (kind != "insert")] = [] if kind == "remove" else [word]
    return f"{kind} {at}", command, None


def body(draw: random.Random) -> Case:
    """A request's body; the service stands for the command, see `ask`."""
    start: dict[str, Any] = {
        "completions": {"prompt": [1, 2], "max_tokens": 3, "temperature": 0.5, "seed": 3, "stream": False, "stop": ["x"], "n": 1},
        "chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "top_p": 1.0, "logprobs": False},
    }  # fmt: skip
    path = draw.choice([*start, "draft", "target"])
    if path in start:
        name, value = changed_tree(start[path], draw)
        content = as_json(value)
        if draw.random() < 0.4:
            name, content = changed_bytes(content, draw)
    else:
        from test_bad_requests import MESSAGE

        name, content = changed_bytes(MESSAGE, draw)
    Path("body").write_bytes(content)
    return f"{path}: {name}", ["POST", path], None


KINDS: dict[str, tuple[Callable[[random.Random], Case], int]] = {
    "configs": (config, 45),
    "tables": (table, 40),
    "results": (result, 60),
    "publications": (publication, 35),
    "checkpoints": (checkpoint, 40),
    "GGUF": (gguf_file, 20),
    "split weights": (split_weights, 20),
    "prompts": (own_prompts, 25),
    "corpora": (corpora, 15),
    "arguments": (arguments, 30),
    "bodies": (body, 30),
}
"""Kind -> what makes one, and how many of 360 are of it."""


# Trials


def prepared(work: Path) -> Path:
    """The folder that each input starts from: a finished study, its publication, heads and a GGUF file."""
    start = work / "start"
    if not start.is_dir():
        unfinished = work / "unfinished"
        if not unfinished.is_dir():  # one that was cut goes on
            shutil.copytree(REPOSITORY / "configs", unfinished / "configs")
            (unfinished / "weights").symlink_to(REPOSITORY / "weights")
        found = run(unfinished)
        assert found.returncode == 0, found.stdout
        with contextlib.chdir(unfinished):
            from test_gguf import tiny, write_gguf
            from transformers import AutoConfig, AutoModelForCausalLM

            from specrig.heads import initialise, registry

            if not PUBLISHED.is_dir():
                assert main(["publish", CONFIG, "--as", PUBLISHED.name]) == 0
            of = AutoConfig.from_pretrained(MODELS / "target")
            of.num_hidden_layers = 3  # as many as EAGLE-3 reads
            AutoModelForCausalLM.from_config(of).save_pretrained(TARGET)
            for path in MODELS.glob("target/*token*"):
                shutil.copy(path, TARGET)
            for name in registry():
                initialise(name, HEADS / name, of, of, seed=3)
            write_gguf(GGUF, tiny())
            model = AutoModelForCausalLM.from_pretrained(TARGET)
            shutil.copytree(TARGET, SPLIT, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
            model.save_pretrained(SPLIT, max_shard_size="200KB")
            own_study()
        unfinished.rename(start)
    return start


def own_study() -> None:
    """The config `OWN`, its tables and its files."""
    import pandas as pd

    rows = [{"id": f"a{at}", "prompt": text, "reference": "c"} for at, text in enumerate(["1 and", "the é", "x = 2"])]
    PROMPTS[0].parent.mkdir(exist_ok=True)
    PROMPTS[0].write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_csv(PROMPTS[1], index=False)
    pd.DataFrame(rows).to_parquet(PROMPTS[2])
    REQUESTS.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(40)))
    tasks = [f"{path.suffix[1:]}\t{path}" for path in PROMPTS]
    for name, lines in {
        "tasks": ["task\tsource", *tasks],
        "pairs": ["pair\ttarget\tdraft", f"split\t{SPLIT}\ttrained", f"gguf\t{GGUF}\t"],
    }.items():
        Path(f"configs/own_{name}.tsv").write_text("\n".join([*lines, ""]))
    study = yaml.safe_load(Path(CONFIG).read_text()) | {
        "study": "own", "pairs": ["split", "gguf"], "tasks": [path.suffix[1:] for path in PROMPTS],
        "tables": {name: f"configs/own_{name}.tsv" for name in ("pairs", "tasks")},
        "methods": [{"method": "ngram", "k": 3}, {"method": "draft_model", "k": 2, "pairs": ["split"]}],
    }  # fmt: skip
    study["training"]["prompts"] = str(REQUESTS)
    Path(OWN).write_text(yaml.safe_dump(study, sort_keys=False))


def ask(urls: dict[str, str], path: str) -> tuple[int, str]:
    """The answer of a service to `body`, and whether it then answers a proper request."""
    from test_bad_requests import completed, post
    from test_bad_requests import refused as is_refused

    from specrig.services import protocol

    content = Path("body").read_bytes()
    if path in {"draft", "target"}:
        response = post(urls[path] + protocol.PATH, content)
    else:
        response = completed(urls["coordinator"], content, f"/v1/{path}")
    return int(is_refused(response)), response.text[:500]


def services(folder: Path) -> Iterator[dict[str, str]]:
    """The services of the contract tests, started once."""
    import test_bad_requests

    class Factory:
        def mktemp(self, name: str) -> Path:
            (folder / name).mkdir(parents=True, exist_ok=True)
            return folder / name

    return test_bad_requests.urls.__wrapped__(Factory())  # type: ignore[attr-defined,no-any-return]


def attempted(command: list[str], urls: Callable[[], dict[str, str]]) -> tuple[int, str]:
    """Exit code and output of a command, all in this process."""

    def hangs(*_: object) -> None:
        raise SystemError(f"no end after {SECONDS} s")

    output = io.StringIO()
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        if command[0] == "POST":
            return ask(urls(), command[1])
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(command)
    except BaseException:
        return -1, output.getvalue() + traceback.format_exc()
    finally:
        signal.alarm(0)
    return code, output.getvalue()


def wrong(code: int, output: str, files: Sequence[Path]) -> str:
    """What is wrong with an answer; "" if nothing. Of several changed files one must be named."""
    text = "".join(output.split())
    if code < 0 or "unexpectederror" in text or "Traceback" in output:
        return "unexpected error"
    names = [file.name for file in files]
    for file in files:
        if file.parts[:1] != ("configs",):
            names += [file.stem.partition(".")[0], str(file.parent)]
    if code and names and not any(name in text for name in names):
        return f"{' or '.join(map(str, files))} is not named"
    return "the message is long" if len(output) > 20_000 else ""


def main_() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", type=int, help="repeat this input alone")
    parser.add_argument("--kind", choices=KINDS, nargs="+", help="inputs of these kinds alone")
    parser.add_argument("--changes", type=int, default=1, help="changes at once")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build/fuzz")
    options = parser.parse_args()
    work = options.work.absolute()
    start = prepared(work)
    started: list[Iterator[dict[str, str]]] = []
    found: list[dict[str, str]] = []

    def urls() -> dict[str, str]:
        if not started:
            started.append(services(work / f"services-{os.getpid()}"))
            found.append(next(started[0]))
        return found[0]

    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    wanted = options.kind or KINDS
    kinds = [kind for kind, (_, number) in KINDS.items() if kind in wanted for _ in range(number)]
    random.Random(options.seed).shuffle(kinds)
    for number in [options.only] if options.only is not None else range(options.first, options.first + options.inputs):
        draw = random.Random(f"{options.seed}/{number}")
        kind = kinds[number % len(kinds)]
        folder = work / f"input-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder, symlinks=True)
        begun = time.monotonic()
        with contextlib.chdir(folder):
            cases = [KINDS[kind][0](draw) for _ in range(options.changes)]
            command = cases[-1][1]
            code, output = attempted(command, urls)
        what = "; ".join(each for each, _, _ in cases)
        reason = wrong(code, output, [file for _, _, file in cases if file])
        counts[f"{kind}: {'failed' if reason else 'refused' if code else 'accepted'}"] += 1
        if reason or options.only is not None:
            shown = " ".join(word[:60] for word in command)
            print(f"{number} {kind} {what}\n  {shown}\n  exit code {code}: {reason}\n{output[-1500:]}", flush=True)
        seconds[f"{kind} {command[0]}"] += time.monotonic() - begun
        if not reason:
            shutil.rmtree(folder)
    print(*(f"{name} {count}" for name, count in sorted(counts.items())), sep="\n")
    print(seconds.most_common(12))
    sys.exit(any("failed" in name for name in counts))


if __name__ == "__main__":
    main_()
