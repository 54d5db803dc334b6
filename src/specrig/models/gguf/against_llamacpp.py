"""A converted tokenizer against llama.cpp on the file itself: ids of some texts, and the ids that end a text.

llama.cpp runs in a process of its own, which it may abort: `python -c "…; main()" FILE`, with the texts on standard
input. It maps the weights and computes nothing with them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrig.models.gguf.header import Header

TEXTS = (
    "Hello, world!",
    " a space in front",
    "two  spaces,   three, and a tab\tinside",
    "a line\nand another\n\n  indented\r\n",
    "def area(r):\n    return 3.14159 * r ** 2  # πr²\n",
    "In 2026, 1234567 people paid $19.99 (or 5%) on 03/11.",
    "It's what they'll say: I'VE, you'd, we're",
    "Die Größe des Mädchens; où êtes-vous, señor?",
    "Привет, как дела?",
    "今日は良い天気ですね。中文也可以",
    "안녕하세요 مرحبا بالعالم नमस्ते",
    "emoji 🙂👩‍👩‍👧 and ‘quotes’ … ﬁne",
    "trailing spaces   ",
    "",
)
SPECIAL = 12
"""So many of the vocabulary's special tokens are tried inside a text, those that end one first."""
TIMEOUT_S = 600.0
END = re.compile(r"print_info: EOG token\s+= (\d+) ", re.MULTILINE)


def compare(header: Header, tokenizer: Any, stop_ids: Sequence[int]) -> str:
    """Compare a converted tokenizer, and return what was done, in a sentence. Raises ModelError for another id."""
    if find_spec("xllamacpp") is None:
        return "tokenizer made by the header alone, not compared with llama.cpp, which is not installed"
    texts = [*TEXTS, *_special_texts(tokenizer, stop_ids)]
    ids, ends = _llamacpp(header, texts)
    for text, theirs in zip(texts, ids, strict=True):
        if (ours := list(tokenizer(text)["input_ids"])) != theirs:
            raise header.refusal(
                f"its tokenizer comes out different: {text!r} is {ours} here and {theirs} in llama.cpp; name a folder in "
                "Hugging Face format or a hub id instead"
            )
    if ends and set(stop_ids) != ends:
        raise header.refusal(
            f"a text would end at the ids {sorted(stop_ids)} here and at {sorted(ends)} in llama.cpp; name a folder in "
            "Hugging Face format or a hub id instead"
        )
    return f"tokenizer compared with llama.cpp on {len(texts)} texts (xllamacpp {version('xllamacpp')})"


def _special_texts(tokenizer: Any, stop_ids: Sequence[int]) -> list[str]:
    """Special tokens in front of, inside and behind text."""
    added = [token for token in tokenizer.added_tokens_decoder if token not in stop_ids]
    tokens = [str(tokenizer.convert_ids_to_tokens(token)) for token in [*stop_ids, *added][:SPECIAL]]
    return ["".join(f"{token} text{token}\n" for token in tokens)] if tokens else []


def _llamacpp(header: Header, texts: Sequence[str]) -> tuple[list[list[int]], set[int]]:
    """The ids of each text in llama.cpp, and those that end one; none where it does not list them."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()", str(header.file)]
    try:
        process = subprocess.run(
            command, input=json.dumps(texts), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise header.refusal(f"llama.cpp did not load it in {TIMEOUT_S:g} s; try again on a machine at rest") from error
    if process.returncode:
        problems = [
            line
            for line in process.stderr.splitlines()
            if re.search(r"error|assert|failed|unknown", line, re.I) and "build_info" not in line
        ]
        reason = re.sub(r"^[\d.]+ \w ", "", (problems or [f"it ended with {process.returncode}"])[0])
        raise header.refusal(f"llama.cpp cannot load it ({reason.strip()}); convert the model again")
    return json.loads(process.stdout.splitlines()[-1]), {int(end) for end in END.findall(process.stderr)}


def main() -> None:
    """Print the ids of the texts on standard input, as JSON."""
    import xllamacpp

    texts = json.load(sys.stdin)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(sys.argv[1]).resolve())
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 32
    settings.n_parallel, settings.n_gpu_layers = 1, 0
    settings.fit_params, settings.ui, settings.warmup = False, False, False
    settings.verbosity = 4  # it lists the ids that end a text
    server = xllamacpp.Server(settings)
    status = 1
    try:
        answers = []
        for text in texts:
            body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
            request = urllib.request.Request(f"{server.listening_address}/tokenize", body)
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request) as response:
                answers.append(json.load(response)["tokens"])
        print(json.dumps(answers), flush=True)
        status = 0
    except Exception:
        traceback.print_exc()
    os._exit(status)  # a server that ends as Python objects do may wait for itself for ever
