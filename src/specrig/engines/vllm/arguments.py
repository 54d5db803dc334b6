"""How vLLM is started: the same arguments for the engine in this process and for the server."""

from __future__ import annotations

import json
from typing import Any

from specrig.models.pair import PairFiles

BATCHED_TOKENS = 4096
"""Most tokens of a pass of the CPU build: the default of `vllm.LLM`. The server's own default of 2,048 cuts the prompts of 256
sampled requests, and vLLM 0.32 ends where a cut prompt has a seed ("CPU Generator does not use offset").
"""
KV_CACHE_BYTES = 1 << 30
"""KV cache of the CPU build, unless the pair's row gives its share of memory; the default is half the machine's."""


def arguments(pair: PairFiles, options: Any, device: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM` without those of speculation. options: `Vllm.Options`. No prefix cache: a prompt measured
    twice is prefilled twice.
    """
    optional = {
        "revision": pair.target_revision,
        "quantization": pair.quantization,
        "gpu_memory_utilization": pair.gpu_memory_utilization,
        "max_model_len": pair.max_model_len,
    }
    if device == "cpu":
        optional["max_num_batched_tokens"] = BATCHED_TOKENS
        if pair.gpu_memory_utilization is None:
            optional["kv_cache_memory_bytes"] = KV_CACHE_BYTES
    return {
        "model": pair.target,
        "dtype": pair.dtype,
        "tensor_parallel_size": pair.tensor_parallel,
        "enforce_eager": options.eager,
        "max_num_seqs": options.max_num_seqs,
        "enable_prefix_caching": False,
        **{name: value for name, value in optional.items() if value is not None},
    }


def flags(found: dict[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as flags of `vllm serve`: `--no-…` for False, JSON for a dictionary."""
    words = []
    for name, value in found.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return words
