"""Compares native decoding with transformers' own on the same pair, prompts and k, in one process that alternates by prompt.

    python benchmarks/against_transformers.py results/quick --pair embedded --k 4

Prints tokens/s of both and their ratio (geometric mean over prompts, 95 % interval) for plain greedy decoding, draft-model and
n-gram speculation. Transformers would change k from round to round; here its k is held constant and its confidence stop is off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, logging

from specrig.analysis.statistics import mean_interval
from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.models.pair import PairFiles


def prompts_of(study: Path, per_task: int, engine: Native) -> list[list[int]]:
    """Token ids of the first `per_task` prompts of every task of the study in folder `study`."""
    lines = [line for file in sorted((study / "prompts").glob("*.jsonl")) for line in file.read_text().splitlines()[:per_task]]
    return [engine.encode(json.loads(line)["prompt"]) for line in lines]


def native(engine: Native, method: str, k: int, tokens: int) -> Callable[[list[int]], tuple[list[int], float]]:
    """Return a function from a prompt to (new tokens, seconds) that decodes greedily with one of SpecRig's methods."""
    options = registry()[method].Options().model_dump()
    cell = Cell(engine="native", pair="-", method=method, k=k, task="-", temperature=0, options=options)

    def run(prompt: list[int]) -> tuple[list[int], float]:
        start = perf_counter()
        (found,) = engine.generate(cell, [prompt], max_new_tokens=tokens, seeds=[0])
        return found.tokens, perf_counter() - start

    return run


def transformers(
    target: Any, eos: frozenset[int], tokens: int, **speculation: Any
) -> Callable[[list[int]], tuple[list[int], float]]:
    """Return a function from a prompt to (new tokens, seconds) that decodes greedily with transformers' `generate`."""

    def run(prompt: list[int]) -> tuple[list[int], float]:
        ids = torch.tensor([prompt])
        start = perf_counter()
        output = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=sorted(eos),
            **speculation,
        )
        return output[0, len(prompt) :].tolist(), perf_counter() - start

    return run


def main() -> None:
    """Run the comparison and print one line for each method."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("study", type=Path, help="a study's results folder, with models/ and prompts/")
    arguments.add_argument("--pair", default="embedded")
    arguments.add_argument("--k", type=int, default=4)
    arguments.add_argument("--tokens", type=int, default=96)
    arguments.add_argument("--prompts", type=int, default=4, help="a task")
    given = arguments.parse_args()
    logging.set_verbosity_error()
    models = given.study / "models" / given.pair
    engine = Native(PairFiles(given.pair, str(models / "target"), str(models / "draft")))
    target = AutoModelForCausalLM.from_pretrained(models / "target").eval()
    draft = AutoModelForCausalLM.from_pretrained(models / "draft").eval()
    draft.generation_config.num_assistant_tokens = given.k
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    contests = {
        "autoregressive": (native(engine, "autoregressive", 0, given.tokens), transformers(target, engine.eos, given.tokens)),
        "draft_model": (
            native(engine, "draft_model", given.k, given.tokens),
            transformers(target, engine.eos, given.tokens, assistant_model=draft),
        ),
        "ngram": (
            native(engine, "ngram", given.k, given.tokens),
            transformers(target, engine.eos, given.tokens, prompt_lookup_num_tokens=given.k, max_matching_ngram_size=3),
        ),
    }
    prompts = prompts_of(given.study, given.prompts, engine)
    print(
        f"{len(prompts)} prompts, {given.tokens} new tokens, k = {given.k}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'method':16}{'native tok/s':>14}{'transformers':>14}{'ratio':>8}   95 % interval   outputs equal")
    for name, (ours, theirs) in contests.items():
        ours(prompts[0]), theirs(prompts[0])
        ratios, rates, equal = [], ([], []), 0  # type: ignore[var-annotated]
        for number, prompt in enumerate(prompts):
            pair = (ours, theirs) if number % 2 == 0 else (theirs, ours)
            timed = {run: run(prompt) for run in pair}
            speeds = [len(timed[run][0]) / timed[run][1] for run in (ours, theirs)]
            equal += timed[ours][0] == timed[theirs][0]
            ratios.append(np.log(speeds[0] / speeds[1]))
            for rate, speed in zip(rates, speeds, strict=True):
                rate.append(speed)
        low, high = np.exp(mean_interval(ratios))
        print(
            f"{name:16}{np.median(rates[0]):14.0f}{np.median(rates[1]):14.0f}{np.exp(np.mean(ratios)):8.2f}"
            f"   [{low:.2f}, {high:.2f}]   {equal}/{len(prompts)}"
        )


if __name__ == "__main__":
    main()
