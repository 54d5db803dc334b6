"""Synthetic records for tests: the accept/reject process simulated, no model anywhere. Nothing here was ever measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
import yaml

from specrig.cell import Cell, digest
from specrig.measurement.blocks import seed_of
from specrig.measurement.records import Record, Repeat, Rounds, Run, write_records

TARGET_PASS_S = 6e-3
DRAFT_PASS_S = 5e-4
WIDTH_COST = 0.04
"""v(n) = 1 + WIDTH_COST · (n - 1)."""
LOOP_S = 2e-4
"""The loop's own work a round, in baseline and method alike."""


def simulate(
    alpha: float, k: int, length: int, random: np.random.Generator, *, drafts: bool = True, hit_rate: float = 1.0
) -> Run:
    """One generation of `length` tokens whose drafted tokens are accepted independently with probability `alpha`.

    drafts: whether a draft model is paid for. hit_rate: share of rounds that find a draft at all (n-gram).
    """
    emitted_total = 1
    rounds = Rounds()
    target: dict[int, tuple[int, float]] = {}
    draft_calls, reached = 0, 0
    loop_s = 0.0
    while emitted_total < length:
        room = length - emitted_total
        depth = min(k, room - 1) if random.random() < hit_rate else 0
        accepted = 0
        while accepted < depth and random.random() < alpha:
            accepted += 1
        reached += min(accepted + 1, depth)
        emitted = min(accepted + 1, room)
        rounds.drafted.append(depth)
        rounds.depth.append(depth)
        rounds.accepted.append(accepted)
        rounds.emitted.append(emitted)
        rounds.cut = hit_rate == 1.0 and depth < k
        emitted_total += emitted
        calls, seconds = target.get(depth + 1, (0, 0.0))
        jitter = 1 + 0.03 * random.standard_normal()
        target[depth + 1] = (calls + 1, seconds + TARGET_PASS_S * (1 + WIDTH_COST * depth) * jitter)
        draft_calls += depth if drafts else 0
        loop_s += LOOP_S
    draft_s = draft_calls * DRAFT_PASS_S
    target_s = sum(seconds for _, seconds in target.values())
    return Run(
        tokens=[int(token) for token in random.integers(0, 60, length)],
        stop="length",
        rounds=rounds,
        overlap=alpha * reached,
        reached=reached,
        ttft_s=0.01,
        prefill_s=0.011 if drafts and k else 0.01,
        decode_s=target_s + draft_s + loop_s,
        target_passes=target,
        draft_passes={1: (draft_calls, draft_s)} if draft_calls else {},
        peak_memory_mb=512.0,
    )


def repeated(run: Run) -> Run:
    """The run with two repeats of its times, the first of which was a little slower."""
    count = len(run.rounds.emitted)
    tokens = len(run.tokens) - run.prefill_tokens
    repeats = [
        Repeat(
            tokens=tokens, ttft_s=run.ttft_s, prefill_s=run.prefill_s, decode_s=slower * run.decode_s,
            round_s=[slower * run.decode_s / count] * count,
        )
        for slower in (1.01, 1.0)
    ]  # fmt: skip
    decode_s = sum(repeats[1].round_s)
    return run.model_copy(update={"repeats": repeats, "timing": "rounds", "decode_s": decode_s})


def cell_records(cell: Cell, *, alpha: float, prompts: int = 6, length: int = 64, seed: int = 0) -> list[Record]:
    """Records of one cell; `alpha` varies a little by prompt, as texts do."""
    random = np.random.default_rng([seed, int(digest(cell.model_dump())[:8], 16)])
    hit_rate = 0.5 if cell.method == "ngram" else 1.0
    records = []
    for prompt in range(prompts):
        own = float(np.clip(alpha + 0.06 * random.standard_normal(), 0.02, 0.98))
        run = repeated(simulate(own, cell.k, length, random, drafts=cell.method != "ngram", hit_rate=hit_rate))
        baseline = repeated(simulate(0.0, 0, length, random))
        if cell.temperature == 0:
            run.tokens = list(baseline.tokens)
        records.append(
            Record(
                cell=cell,
                digest=digest(cell.model_dump()),
                prompt_id=f"{cell.task}-{prompt}",
                group=prompt,
                seed=seed_of(seed, cell.task, f"{cell.task}-{prompt}"),
                prompt_tokens=20,
                text="synthetic <text> & more",
                baseline_text="synthetic <text> & more",
                lossless=cell.method != "medusa",
                run=run,
                baseline=baseline,
            )
        )
    return records


ALPHAS = {"code": 0.75, "translation": 0.55, "summarization": 0.65, "creative_writing": 0.45}
SHIFTS = {"draft_model": 0.0, "adaptive_k": 0.02, "ngram": -0.1, "medusa": -0.2}


def write_study(
    folder: Path,
    *,
    methods: Iterable[str] = ("draft_model", "adaptive_k", "ngram", "medusa"),
    ks: Iterable[int] = (2, 4, 6),
    tasks: Iterable[str] = tuple(ALPHAS),
    temperatures: Iterable[float] = (0.0,),
    pairs: Iterable[str] = ("tiny",),
    engines: Iterable[str] = ("native",),
    prompts: int = 4,
    length: int = 48,
) -> Path:
    """A whole synthetic results folder: study.json, records with indexes and environments. Returns `folder`."""
    methods, ks, tasks, pairs, engines = list(methods), list(ks), list(tasks), list(pairs), list(engines)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "study": folder.name,
        "seed": 1,
        "engines": engines,
        "pairs": pairs,
        "tasks": tasks,
        "methods": [{"method": method, "k": ks} for method in methods],
        "temperatures": list(temperatures),
        "prompts": prompts,
        "max_new_tokens": length,
    }
    (folder / "study.json").write_text(json.dumps(config))
    for engine in engines:
        for pair in pairs:
            for method in methods:
                cells = [
                    Cell(engine=engine, pair=pair, method=method, k=k, task=task, temperature=temperature)
                    for k in ([4] if method == "adaptive_k" else ks)
                    for task in tasks
                    for temperature in temperatures
                ]
                write_job(folder, cells, prompts=prompts, length=length)
    return folder


def write_grid(folder: Path, *, pairs: int, tasks: int, reported: Path | None = None, **keys: object) -> Path:
    """A study to be planned, and nothing measured: its tables, a file of prompts for each task and its config, whose
    path is returned.

    Every pair, of known models that nothing loads, runs five methods at four k on every task. reported: the file of
    reported figures.
    keys: others of the config.
    """
    folder.mkdir(parents=True)
    names = {kind: [f"{kind}{number}" for number in range(count)] for kind, count in (("pair", pairs), ("task", tasks))}
    models = "meta-llama/Llama-3.1-8B-Instruct\tmeta-llama/Llama-3.2-1B-Instruct\tbfloat16"
    rows = {
        "pair": dict.fromkeys(names["pair"], models),
        "task": {name: folder / f"{name}.jsonl" for name in names["task"]},
    }
    for kind, header in (("pair", "pair\ttarget\tdraft\tdtype"), ("task", "task\tsource")):
        (folder / f"{kind}s.tsv").write_text(
            "\n".join([header, *(f"{name}\t{row}" for name, row in rows[kind].items())])
        )
    for name in names["task"]:
        lines = [json.dumps({"id": f"{name}-{number}", "prompt": f"prompt {number} of {name}"}) for number in range(4)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    config = {
        "study": "scale",
        "pairs": names["pair"],
        "tasks": names["task"],
        "methods": [
            {"method": method, "k": [2, 4, 6, 8]}
            for method in ("draft_model", "tree", "ngram", "suffix", "suffix_hybrid")
        ],
        "prompts": 4,
        "max_new_tokens": 48,
        "device": "cpu",
        "tables": {
            "pairs": str(folder / "pairs.tsv"),
            "tasks": str(folder / "tasks.tsv"),
            "reported": reported and str(reported),
        },
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(config | keys))
    return folder / "study.yaml"


def write_job(folder: Path, cells: list[Cell], *, prompts: int = 4, length: int = 48, seed: int = 0) -> None:
    """The folder of a job: a record file a cell, index.json and environment.json."""
    job = folder / "records" / Path(*cells[0].method_key)
    index: dict[str, dict] = {"cells": {}, "failed": {}}
    for cell in cells:
        alpha = float(np.clip(ALPHAS.get(cell.task, 0.6) + SHIFTS.get(cell.method, 0.0), 0.05, 0.95))
        path = job / f"{cell.slug}.jsonl"
        write_records(path, cell_records(cell, alpha=alpha, prompts=prompts, length=length, seed=seed))
        index["cells"][cell.slug] = {
            "records": path.name,
            "sha256": sha256(path.read_bytes()).hexdigest(),
            "digest": digest(cell.model_dump()),
        }
    (job / "index.json").write_text(json.dumps(index))
    environment = {
        "captured": "2000-01-01T00:00:00+00:00",
        "python": "3.11.0",
        "packages": {"torch": "0.0-synthetic"},
        "cpu": {"model": "synthetic processor", "cores": 2},
        "gpus": [],
        "torch": {"threads": 2},
        "git": {"commit": "0" * 40, "dirty": False},
        "models": {"target": {"source": f"models/{cells[0].pair}/target", "sha256": "0" * 64}},
    }
    (job / "environment.json").write_text(json.dumps(environment))
