"""The process of a llama.cpp server: `main` with the settings as JSON, which `start` starts. It ends at SIGTERM or with
its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from specrig.engines.http.launch import ServerProcess, free_port

DRAFT_TOP_K = 10
"""llama.cpp's drafts choose among so many likeliest tokens; in the model's graph it aborts where there are fewer."""


def start(settings: dict[str, Any]) -> tuple[ServerProcess, str]:
    """A server with the settings that `LlamaCpp.settings` makes, which answers at the address. Raises EngineError."""
    port = free_port()
    url, code = f"http://127.0.0.1:{port}", f"from {__name__} import main; main()"
    command = [sys.executable, "-c", code, json.dumps({**settings, "port": port})]
    return ServerProcess(command, url, health="/health"), url


def parameters(settings: dict[str, Any]) -> Any:
    """`xllamacpp.CommonParams` of the settings that `LlamaCpp.settings` makes."""
    import xllamacpp

    found = xllamacpp.CommonParams()
    found.model.path = settings["model"]
    found.hostnames, found.port = ["127.0.0.1"], settings["port"]
    found.n_ctx, found.n_parallel = settings["context"] * settings["slots"], settings["slots"]
    found.fit_params, found.ui, found.endpoint_metrics = False, False, True
    found.cache_prompt, found.cache_ram_mib = False, 0  # a prompt measured twice is prefilled twice
    drafting = found.speculative.draft
    for threads in (found.cpuparams, found.cpuparams_batch, drafting.cpuparams, drafting.cpuparams_batch):
        threads.n_threads = settings["threads"]
    drafting.backend_sampling = settings["vocabulary"] >= DRAFT_TOP_K
    if settings["device"] == "cpu":
        found.n_gpu_layers = drafting.n_gpu_layers = 0
    if settings["exact_cache"]:  # llama.cpp keeps keys and values in fp16 otherwise, which flash attention wants
        kind = xllamacpp.ggml_type.GGML_TYPE_F32
        found.cache_type_k = found.cache_type_v = drafting.cache_type_k = drafting.cache_type_v = kind
        found.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    speculate(found.speculative, settings["speculation"], xllamacpp.common_speculative_type)
    return found


def speculate(found: Any, speculation: dict[str, Any] | None, types: Any) -> None:
    """Fill `CommonParamsSpeculative`. speculation: `type` as llama.cpp's command line names it, k, and its options."""
    if speculation is None:
        return
    found.types = [getattr(types, "COMMON_SPECULATIVE_TYPE_" + speculation["type"].upper().replace("-", "_"))]
    k = speculation["k"]
    found.draft.n_max, found.draft.n_min, found.draft.p_min = k, 0, speculation.get("p_min", 0.0)
    if "draft" in speculation:
        found.draft.mparams.path = speculation["draft"]
        found.draft.probabilistic = speculation["probabilistic"]
        return
    for name in ("ngram_simple", "ngram_map_k", "ngram_map_k4v"):
        sizes = getattr(found, name)
        sizes.size_n, sizes.size_m = speculation["n"], k
    found.ngram_mod.n_match, found.ngram_mod.n_min, found.ngram_mod.n_max = speculation["n"], 0, k


def main() -> None:
    """Serve until a signal comes."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # so that a failed assertion is the last line of the log
    import xllamacpp

    server = xllamacpp.Server(parameters(json.loads(sys.argv[1])))
    print(server.listening_address, flush=True)
    while True:
        signal.pause()
