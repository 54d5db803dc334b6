"""Times the passes of a model in torch and in compiled code, alternating in one process, and prints them beside the
bandwidth floor.

    python benchmarks/kernels.py tests/data/tiny/target --draft tests/data/tiny/draft --dtype float32 bfloat16

For each precision and number of tokens: the median milliseconds of a pass in torch and in compiled code, and how many
times as fast the compiled pass is (geometric mean over repeats, 95 % interval). The floor is the bytes of the weights
over the measured bandwidth of reading. With a draft: c, its one-token pass over the target's.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np
import torch
from transformers import AutoModelForCausalLM, logging

from specrig.analysis.statistics import mean_interval
from specrig.runtime import decode_pass
from specrig.runtime.linear import kernel_choice
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.transformers_model import cached_model

WAYS = {"torch": "never", "compiled": "always"}


def load(folder: str, dtype: torch.dtype, way: str) -> LlamaModel:
    """The model whose passes run in this way."""
    kernel_choice.pin(compiled=WAYS[way])  # type: ignore[arg-type]
    model = cached_model(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype))
    if not isinstance(model, LlamaModel):
        raise SystemExit(f"{folder}: not Llama-shaped, it has no kernels to choose from")
    return model


def read_gb_s() -> float:
    """Bandwidth of reading a large tensor, the best of five."""
    big = torch.ones(1 << 25, dtype=torch.int64)
    rates = []
    for _ in range(5):
        started = perf_counter()
        big.sum()
        rates.append(big.nbytes / (perf_counter() - started) / 1e9)
    return max(rates)


def passes(models: dict[str, LlamaModel], n: int, context: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of passes of n tokens behind `context` tokens; the models alternate."""
    found: dict[str, list[float]] = {name: [] for name in models}
    tokens = torch.arange(n).unsqueeze(0)
    for model in models.values():
        model.start(1, context + 128)
        model.catch_up([[place % 100 for place in range(context)]], [False])
        model.forward(tokens)
    for _ in range(repeats):
        for name, model in models.items():
            started = perf_counter()
            model.forward(tokens)
            found[name].append(perf_counter() - started)
    return found


def ratio(slow: list[float], fast: list[float]) -> str:
    """Geometric mean of the ratios of paired times, with its interval."""
    logs = np.log(np.array(slow) / np.array(fast))
    low, high = np.exp(mean_interval(list(logs)))
    return f"{np.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Run the benchmark and print one line for each precision and width."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("target", help="folder of a Llama-shaped model")
    arguments.add_argument("--draft", help="folder of its draft model")
    arguments.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    arguments.add_argument("--widths", type=int, nargs="+", default=[1, 2, 5, 9, 16])
    arguments.add_argument("--context", type=int, default=200)
    arguments.add_argument("--repeats", type=int, default=15)
    given = arguments.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ways = [way for way in WAYS if way != "compiled" or decode_pass.library() is not None]
    rate = read_gb_s()
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, reads {rate:.1f} GB/s; compiled code: "
        f"{'compiled' in ways}"
    )
    for name in given.dtype:
        dtype = getattr(torch, name)
        models = {way: load(given.target, dtype, way) for way in ways}
        drafts = {way: load(given.draft, dtype, way) for way in ways} if given.draft else {}
        floor = models["torch"].weight_bytes() / rate / 1e6
        for n in given.widths:
            times = passes(models, n, given.context, given.repeats)
            shown = "  ".join(f"{way} {statistics.median(times[way]) * 1e3:8.3f}" for way in ways)
            gain = f"  torch / compiled {ratio(times['torch'], times['compiled'])}" if "compiled" in ways else ""
            print(f"{name:9} {n:3} tokens, ms: floor {floor:7.3f}  {shown}{gain}", flush=True)
        if drafts:
            both = passes(
                {**{f"target {way}": models[way] for way in ways}, **drafts}, 1, given.context, 3 * given.repeats
            )
            told = "  ".join(
                f"{way} {statistics.median(both[way]) / statistics.median(both[f'target {way}']):.3f}" for way in ways
            )
            print(f"{name:9} c, a draft pass over a target pass: {told}", flush=True)


if __name__ == "__main__":
    main()
