"""What padded passes cost and give: each method with and without them, taking turns prompt by prompt in one process.

    python benchmarks/padded_passes.py MODEL configs/prompts/*.jsonl --rest results/smollm2/models/smollm2_135m_more/rest

MODEL is a folder, such as `results/smollm2/converted/SmolLM2-135M-Instruct.Q4_1-bfloat16` after a run of
`configs/smollm2.yaml`. Prints for each method, without and with the option: milliseconds a target pass of decoding
(median over prompts, drafting and loop included), tokens/s, the option's cost in decode time a token (geometric mean
over prompts, 95 % interval), the speedup over plain decoding in the same setting, and how many outputs equal plain
decoding's in the same setting. Greedy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import logging

from specrig.analysis.statistics import mean_interval
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Generation
from specrig.engines.native import Native
from specrig.models.pair import PairFiles

METHODS = {"autoregressive": 0, "ngram": 4, "suffix": 8, "suffix_blend": 8, "token_recycling": 6}
"""Method -> k, as in `configs/smollm2.yaml`; options are the defaults."""
PLAIN = "autoregressive"


def cell(method: str) -> Cell:
    """The cell of a method, with its default options."""
    options = methods()[method].Options().model_dump(mode="json")
    return Cell(engine="native", pair="p", method=method, k=METHODS[method], task="t", temperature=0.0, options=options)


def seconds(found: list[Generation]) -> NDArray[np.float64]:
    """Decode seconds a token, by prompt."""
    return np.array([one.decode_s / (len(one.tokens) - one.prefill_tokens) for one in found])


def estimate(logs: NDArray[np.float64]) -> str:
    """Geometric mean and 95 % interval of ratios given as logarithms."""
    low, high = np.exp(mean_interval(logs))
    return f"{np.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Run the comparison and print a table in Markdown."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("target", help="a model's folder")
    arguments.add_argument("prompts", type=Path, nargs="+", help="JSONL files with a `prompt` in each line")
    arguments.add_argument("--rest", type=Path, help="folder of the datastore, for suffix_blend")
    arguments.add_argument("--methods", nargs="+", choices=METHODS, help="default: ngram, and with --rest suffix_blend")
    arguments.add_argument("--dtype", default="bfloat16")
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--each", type=int, default=3, help="prompts of each file")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = arguments.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = list(dict.fromkeys([PLAIN, *(given.methods or (["ngram", "suffix_blend"] if given.rest else ["ngram"]))]))
    heads = {"rest": given.rest} if given.rest else {}
    engines = [
        Native(
            PairFiles("p", given.target, dtype=given.dtype, heads=heads, engine_options=options), threads=given.threads
        )
        for options in ({}, {"native": {"padded_passes": True}})
    ]
    lines = [line for file in given.prompts for line in file.read_text(encoding="utf-8").splitlines()[: given.each]]
    asked = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    tokenizer = engines[0].tokenizer
    texts = [tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) for turns in asked]
    prompts = [engines[0].encode(text) for text in texts]

    found: dict[tuple[str, int], list[Generation]] = {(name, way): [] for name in names for way in (0, 1)}
    order = list(found)
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first time to warm up
        for name, way in order[number % len(order) :] + order[: number % len(order)]:
            found[name, way] += engines[way].generate(cell(name), [prompt], max_new_tokens=given.tokens, seeds=[0])
    found = {key: made[1:] for key, made in found.items()}

    print(f"{len(prompts)} prompts, {given.tokens} new tokens, {given.dtype}, {given.threads} threads")
    print(
        "| method | padded passes | ms a pass | tokens/s | time a token, with / without | speedup | equal to plain "
        "decoding |"
    )
    print("|---|---|---|---|---|---|---|")
    for (name, way), made in found.items():
        passes = np.median([1000 * one.decode_s / len(one.rounds) for one in made])
        cost = estimate(np.log(seconds(made) / seconds(found[name, 0]))) if way else "–"
        speedup = "–" if name == PLAIN else estimate(np.log(seconds(found[PLAIN, way]) / seconds(made)))
        same = sum(one.tokens == other.tokens for one, other in zip(made, found[PLAIN, way], strict=True))
        rate = np.median(1 / seconds(made))
        print(
            f"| {name} | {'yes' if way else 'no'} | {passes:.1f} | {rate:.1f} | {cost} | {speedup} | {same} of "
            f"{len(prompts)} |"
        )


if __name__ == "__main__":
    main()
