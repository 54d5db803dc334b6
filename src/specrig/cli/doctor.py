"""The verb `specrig doctor`: what this machine has, what is missing and how to get it, and the cost of a study here."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from specrig.cli.arguments import DEFAULT, Json, load, print_json
from specrig.runtime.gpus import resolve_device
from specrig.terminal import console

if TYPE_CHECKING:
    from specrig.study.study import Study

SIGNS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "·"}
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Check:
    """One line. good: False where the study lacks it, None where it may be missing. fix: what to do."""

    topic: str
    good: bool | None
    text: str
    fix: str = ""


def doctor(
    config: Annotated[Path, typer.Argument(help="Study whose cost is estimated")] = DEFAULT, as_json: Json = False
) -> None:
    """Check this machine: PyTorch, GPU, engines, hub, disk, the cost of a study. Exit code 1 if the study lacks something."""
    study = load(config)
    checks = [*_installed(), *_engines(study), hub(study), *_cost(study)]
    for check in () if as_json else checks:
        text = f"{SIGNS[check.good]} {check.topic:8} {escape(check.text)}"
        console().print(text + (f"\n           → {escape(check.fix)}" if check.fix else ""), soft_wrap=True)
    if as_json:
        print_json(checks)
    if any(check.good is False for check in checks):
        raise typer.Exit(1)


def _installed() -> Iterator[Check]:
    import torch

    from specrig import __version__
    from specrig.provenance.environment import gpus, processor, torch_build
    from specrig.runtime.compiled import library

    cpu, build = processor(), torch_build()
    cores = f"{cpu['logical_cores']} logical cores of {cpu['model'] or 'an unknown processor'}"
    yield Check("SpecRig", True, f"{__version__}; Python {platform.python_version()} on {platform.system()}, {cores}")
    unused_gpu = NVIDIA_DRIVER.exists() and not torch.cuda.is_available()
    text = f"{build['version']}, threads: {build['threads']}, {build['cpu_capability']}"
    fix = "install a build of torch for the CUDA version that `nvidia-smi` shows" if unused_gpu else ""
    yield Check("torch", not unused_gpu, text, fix)
    if torch.cuda.is_available():
        for gpu in gpus():
            about = f", {gpu['memory_gb']} GB, driver {gpu['driver']}" if "driver" in gpu else ": NVML does not answer"
            yield Check("GPU", "driver" in gpu or None, gpu["name"] + about)
        return
    yield Check("GPU", None, "none that torch can use; studies run on the CPU")
    compiled = "" if library() else "install gcc: without compiled passes small models decode slower"
    yield Check("kernels", not compiled or None, "passes of small models compiled for this processor", compiled)


def _engines(study: Study) -> Iterator[Check]:
    from specrig.engines import registry

    for name, engine in registry().items():
        lacks, _, fix = (engine.missing() or "").partition(":")
        text = f"{name}: {lacks or 'ready'}{' (untested on hardware)' if engine.untested else ''}"
        yield Check("engines", True if not lacks else False if name in study.engines else None, text, fix.strip())


def hub(study: Study) -> Check:
    """Whether models and data sets can be fetched. A study that names none on the hub does not need it."""
    import requests
    from huggingface_hub import constants, get_token

    needed = any(task.fetched for task in study.rows.tasks.values()) or any(
        not Path(model).exists()
        for pair, row in study.rows.pairs.items()
        for part, model in study.paths.pair_files(pair, study.root).sources.items()
        if row.trained_in(part) is None and part not in row.gguf and row.weights == "pretrained"
    )
    token = "with a token" if get_token() else "no token (gated models need one: `hf auth login`)"
    try:
        answer = requests.head(constants.ENDPOINT, timeout=3, allow_redirects=True)
        reached, text = answer.status_code < 500, f"answers with {answer.status_code}"
    except requests.RequestException as error:
        reached, text = False, f"cannot be reached ({type(error).__name__})"
    text = f"{text}, {token}; this study {'needs' if needed else 'does not need'} it"
    fix = "" if reached else "set HF_ENDPOINT to a mirror, or fill the cache elsewhere and set HF_HUB_OFFLINE=1"
    return Check("hub", True if reached else False if needed else None, text, fix)


def _cost(study: Study) -> Iterator[Check]:
    """Disk, memory and time of the study on this machine, from its bandwidth and speed as they are now."""
    from specrig.planning.estimate import extent, hours, pair_sizes, size_text, time_text, training_cost
    from specrig.provenance.bandwidth import copy_gb_s, product_gflop_s

    sizes, cost = pair_sizes(study), training_cost(study)
    folder = next(path for path in (study.root, *study.root.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(folder).free, cost.disk + 1e9  # records, tables, MLflow's files
    fix = "" if free > needed else "free some, or choose another disk: --config results=PATH"
    yield Check("disk", free > needed, f"{size_text(free)} free, the study needs about {size_text(needed)}", fix)
    device = resolve_device(study.device)
    bandwidth, speed = 1e9 * (copy_gb_s(device) or 0.0) or None, 1e9 * product_gflop_s(device)
    trains = f"training at least {time_text(cost.flop / speed)}" if cost.named else "no training"
    seconds = 3600 * hours(study, sizes, bandwidth)[0]
    yield Check("cost", True, f"{study.study} here: {trains}, measuring about {time_text(seconds)}; {extent(study)}")
