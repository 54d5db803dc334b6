"""Measures how near decoding comes to the speed that the device's memory allows, and what takes the rest of the time.

    python benchmarks/floor.py --target meta-llama/Llama-3.1-8B-Instruct --draft meta-llama/Llama-3.2-1B-Instruct --alpha 0.72 --k 5

The models have the given shapes and random weights: the cost of passes is real, acceptance is declared. One process
alternates between plain decoding and draft-model speculation, on a GPU each with recorded passes and with kernels
launched one by one. At the end it runs transformers' own `generate` on a model of the same shape. It prints tokens/s;
the bare pass beside the floor (the bytes that a pass must read / the measured copy bandwidth); the measured speedup
beside the cost model's; and on a GPU the waits and launches per round and the share of time in which the device had
work, from a profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, logging

from specrig.analysis.cost_model import expected_tokens, pass_bytes, size_of_shape
from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.decoding.types import Generation
from specrig.engines.native import Native
from specrig.models import facts
from specrig.models.pair import PairFiles
from specrig.provenance.bandwidth import copy_gb_s

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch")


def decode(
    engine: Native, method: str, k: int, given: argparse.Namespace, tokens: int | None = None
) -> list[Generation]:
    """Decode one batch of made-up prompts with a method; `tokens` new ones each, by default as many as `given` says."""
    options = registry()[method].Options().model_dump()
    cell = Cell(
        engine="native", pair="shape", method=method, k=k, task="-", temperature=given.temperature, options=options
    )
    prompts = [[1 + (7 * place + row) % 200 for place in range(given.prompt)] for row in range(given.batch)]
    return engine.generate(cell, prompts, max_new_tokens=tokens or given.tokens, seeds=range(given.batch))


@contextmanager
def replay(engine: Native, on: bool) -> Iterator[None]:
    """In this context, replay recorded passes of target and draft (`on`) or launch their kernels one by one."""
    models = [engine.target, engine.model("draft")]
    kept = [model.replay for model in models]
    for model in models:
        model.replay = model.replay if on else None
    try:
        yield
    finally:
        for model, was in zip(models, kept, strict=True):
            model.replay = was


def seconds_a_token(found: list[Generation]) -> float:
    """Seconds of decoding per token of one row of the batch, without the first token."""
    return found[0].decode_s / (len(found[0].tokens) - 1)


def transformers_seconds(given: argparse.Namespace) -> float:
    """Seconds per token of transformers' `generate` on random weights of the target's shape; median of warmed-up
    repeats.
    """
    config = AutoConfig.for_model(**facts.models()[given.target].config)
    with torch.device(given.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, given.dtype)).eval()
    ids = torch.randint(1, 200, (given.batch, given.prompt), device=given.device)
    times = []
    for repeat in range(given.repeats + 1):
        marks = []
        for tokens in (1, given.tokens):  # the difference leaves the prompt's pass out
            started = perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
            if given.device == "cuda":
                torch.cuda.synchronize()
            marks.append(perf_counter() - started)
        times += [(marks[1] - marks[0]) / (given.tokens - 1)] if repeat else []
    return statistics.median(times)


def profile(engine: Native, method: str, k: int, given: argparse.Namespace) -> dict[str, float]:
    """Profile a short generation; returns waits and launches per round, and the share of time in which kernels ran."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profiler:
        found = decode(engine, method, k, given, tokens=32)
    rounds = len(found[0].rounds)
    events = profiler.events()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    names = [event.name for event in events]
    return {
        "waits_a_round": round(sum(names.count(name) for name in WAITS) / rounds, 2),
        "launches_a_round": round(sum(names.count(name) for name in LAUNCHES) / rounds, 1),
        "device_busy": round(busy / (reached - spans[0][0]), 3) if spans else 0.0,
    }


def main() -> None:
    """Run the benchmark and print one JSON line for each variant."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--target", default="meta-llama/Llama-3.1-8B-Instruct", help="a model that facts/models.json knows"
    )
    arguments.add_argument("--draft", default="meta-llama/Llama-3.2-1B-Instruct")
    arguments.add_argument("--alpha", type=float, default=0.72)
    arguments.add_argument("--k", type=int, default=5)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--dtype", default="bfloat16")
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--prompt", type=int, default=128)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=1)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--without-transformers", action="store_true")
    given = arguments.parse_args()
    logging.set_verbosity_error()
    pair = PairFiles(
        "shape", given.target, given.draft, dtype=given.dtype, random_weights=True, simulated_acceptance=given.alpha
    )
    copy = copy_gb_s(given.device)
    size = size_of_shape(facts.models()[given.target].shape)
    floor = pass_bytes(size, given.dtype, 1, given.prompt + given.tokens / 2, given.batch) / (copy * 1e9)
    print(
        json.dumps({"device": given.device, "copy_gb_s": round(copy, 1), "floor_ms": round(floor * 1e3, 3)}), flush=True
    )
    with Native(pair, device=given.device) as engine:
        engine.model("draft")
        runs = [
            (method, on)
            for on in ((True, False) if given.device == "cuda" else (False,))
            for method in ("autoregressive", "draft_model")
        ]
        found: dict[tuple[str, bool], list[list[Generation]]] = {run: [] for run in runs}
        for repeat in range(given.repeats + 1):  # the first one warms up
            for method, on in runs:
                with replay(engine, on):
                    result = decode(engine, method, given.k, given)
                found[method, on] += [result] if repeat else []
        for method, on in runs:
            mine = found[method, on]
            token_s = statistics.median(map(seconds_a_token, mine))
            line: dict[str, Any] = {"method": method, "replayed": on, "tokens_s": round(given.batch / token_s, 1)}
            plain = found["autoregressive", on]
            bare = sum(run[0].target_passes[1][1] for run in plain) / sum(run[0].target_passes[1][0] for run in plain)
            if method == "autoregressive":
                line |= {
                    "pass_ms": round(bare * 1e3, 3),
                    "step_ms": round(token_s * 1e3, 3),
                    "share_of_floor": round(floor / token_s, 3),
                }
            else:
                rounds = sum(len(run[0].rounds) for run in mine)
                target = sum(seconds for run in mine for _, seconds in run[0].target_passes.values()) / rounds / bare
                draft = sum(seconds for run in mine for _, seconds in run[0].draft_passes.values()) / rounds / bare
                base = statistics.median(map(seconds_a_token, plain))
                emitted = statistics.mean(entry.emitted for run in mine for entry in run[0].rounds if not entry.cut)
                line |= {
                    "v": round(target, 3),
                    "c": round(draft / given.k, 4),
                    "tokens_a_round": round(emitted, 3),
                    "expected": round(expected_tokens(given.alpha, given.k), 3),
                    "speedup": round(base / token_s, 3),
                    "predicted": round(emitted / (draft + target), 3),
                }
            if given.device == "cuda":
                with replay(engine, on):
                    line |= profile(engine, method, given.k, given)
            print(json.dumps(line), flush=True)
        best = statistics.median(map(seconds_a_token, found[runs[0]]))
    if not given.without_transformers:
        theirs = transformers_seconds(given)
        print(
            json.dumps(
                {
                    "transformers_tokens_s": round(given.batch / theirs, 1),
                    "native_over_transformers": round(theirs / best, 2),
                }
            )
        )


if __name__ == "__main__":
    main()
