"""The verb `specrig doctor`: what this machine has, what is missing and how to get it, and the cost of a study here."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specrig.cli.arguments import DEFAULT, Json, load, print_json
from specrig.runtime.gpus import resolve_device
from specrig.terminal import console

if TYPE_CHECKING:
    from specrig.study.study import Study

SIGNS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "·"}
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
HUB_TIMEOUT_S = 3.0
RESULTS_BYTES = 1e9
"""Room for records, tables, figures and MLflow's files of a small study, besides its models."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line. good: False where something is wrong or too little, None where it may be missing. fix: what to do."""

    topic: str
    good: bool | None
    text: str
    fix: str = ""


def doctor(
    config: Annotated[Path, typer.Argument(help="Study whose cost is estimated")] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Check this machine: PyTorch, GPU, kernels, engines, hub, disk, and the cost of a study here.

    The exit code is 1 if something that the study needs is wrong.
    """
    study = load(config)
    checks = []
    for check in _checks(study):
        checks.append(check)
        if not as_json:
            _show(check, console())
    if as_json:
        print_json(checks)
    else:
        console().print(f"Next: {_next(checks, config)}", markup=False, soft_wrap=True)
    if any(check.good is False for check in checks):
        raise typer.Exit(1)


def _next(checks: Sequence[Check], config: Path) -> str:
    """What to do now, in one line."""
    wrong = [check for check in checks if check.good is False]
    if wrong:
        return (
            f"{wrong[0].topic}: {(wrong[0].fix or wrong[0].text).splitlines()[0]}; then `specrig doctor {config}` again"
        )
    return f"`specrig run {config}` runs the study; `specrig plan {config}` lists its cells"


def _show(check: Check, console: Console) -> None:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=8)
    line.add_column(overflow="fold")
    line.add_row(SIGNS[check.good], check.topic, escape(check.text + (f"\n→ {check.fix}" if check.fix else "")))
    console.print(line)


def _checks(study: Study) -> Iterator[Check]:
    yield _installation()
    yield from _torch()
    yield from _gpu()
    yield from _kernels()
    yield from _engines(study)
    yield _hub(study)
    yield from _cost(study)


def _installation() -> Check:
    from specrig import __version__
    from specrig.provenance.environment import code_version, processor
    from specrig.results.machine import processor_name

    git, cpu = code_version(), processor()
    commit = f", commit {git['commit'][:12]}{' with uncommitted changes' if git['dirty'] else ''}" if git else ""
    name = processor_name({**cpu, "model": cpu["model"] or "an unknown processor"})
    cores = f"{cpu['logical_cores']} logical cores of {name}"
    return Check(
        "SpecRig", True, f"{__version__}{commit}; Python {sys.version.split()[0]} on {platform.system()}, {cores}"
    )


def _torch() -> Iterator[Check]:
    from specrig.provenance.environment import torch_build

    build = torch_build()
    kind = f"CUDA {build['cuda']}" if build["cuda"] else "CPU"
    threads = f"{build['threads']} thread{'s' if build['threads'] != 1 else ''}"
    text = f"{build['version']}, {kind} build, {threads}, {build['cpu_capability']}"
    without_gpu = NVIDIA_DRIVER.exists() and not build["cuda"]
    fix = "this machine has an NVIDIA driver: install a CUDA build of torch to use the GPU" if without_gpu else ""
    yield Check("torch", not without_gpu, text, fix)


def _gpu() -> Iterator[Check]:
    import torch

    from specrig.provenance.environment import gpus

    if not torch.cuda.is_available():
        wrong = NVIDIA_DRIVER.exists() and torch.version.cuda is not None
        fix = (
            "torch finds no GPU although there is a driver: compare `nvidia-smi` with torch's CUDA version"
            if wrong
            else ""
        )
        yield Check("GPU", False if wrong else None, "none that torch can use; studies run on the CPU", fix)
        return
    for gpu in gpus():
        more = (
            f", {gpu['memory_gb']} GB, driver {gpu['driver']}"
            if "driver" in gpu
            else ": NVML does not answer, no energy or clocks"
        )
        yield Check("GPU", True if "driver" in gpu else None, gpu["name"] + more)


def _kernels() -> Iterator[Check]:
    """The kernels of the native engine."""
    import torch

    from specrig.runtime.compiled import library
    from specrig.runtime.linear import SMALL, reorderable

    if torch.cuda.is_available():
        kinds = {
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        }
        found = ", ".join(name for name, on in kinds.items() if on) or "plain only"
        bfloat16 = "yes" if torch.cuda.is_bf16_supported() else "no"
        yield Check("kernels", True, f"attention: {found}; bfloat16: {bfloat16}; passes replayed as CUDA graphs")
        return
    made = library() is not None
    text = (
        "passes of small models compiled for this processor"
        if made
        else "no compiled passes: small models decode slower"
    )
    yield Check("kernels", made or None, text, "" if made else "install gcc")
    packed = reorderable(torch.empty(SMALL))
    text = (
        "linear layers reordered for oneDNN"
        if packed
        else "linear layers by the stock kernel, which is slow for a few rows"
    )
    yield Check("kernels", packed, text, "" if packed else "install a build of torch with oneDNN (mkldnn)")
    fast = (
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
        else False
    )
    yield Check(
        "kernels",
        None if not fast else True,
        f"bfloat16 {'in the processor' if fast else 'emulated: float32 is faster here'}",
    )


def _engines(study: Study) -> Iterator[Check]:
    from specrig.engines import registry

    for name, engine in registry().items():
        missing = engine.missing()
        needed = name in study.engines
        text = f"{name}: {'ready' if missing is None else missing.partition(':')[0]}"
        text += " (untested on hardware)" if engine.untested else ""
        fix = "" if missing is None else missing.partition(":")[2].strip()
        yield Check("engines", True if missing is None else False if needed else None, text, fix)


def _hub(study: Study) -> Check:
    """Whether models and data sets can be fetched. Only a study that names some needs it.

    A GGUF file's model folder, which a run makes, comes from no hub.
    """
    import requests
    from huggingface_hub import constants, get_token

    needed = any(task.fetched for task in study.rows.tasks.values()) or any(
        not Path(model).exists()
        for pair in study.rows.pairs
        for part, model in study.paths.pair_files(pair, study.root).sources.items()
        for row in (study.rows.pairs[pair],)
        if row.trained_in(part) is None and part not in row.gguf and row.weights == "pretrained"
    )
    if any(task.kind == "hub" for task in study.rows.tasks.values()) and find_spec("datasets") is None:
        return Check("hub", False, "data sets need the library datasets", "`pip install 'specrig[data]'`")
    token = "with a token" if get_token() else "no token (gated models need one: `hf auth login`)"
    if constants.HF_HUB_OFFLINE:
        return Check("hub", not needed and None, f"offline by HF_HUB_OFFLINE, {token}")
    try:
        answer = requests.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S, allow_redirects=True)
        reached, text = answer.status_code < 500, f"answers with {answer.status_code}"
    except requests.RequestException as error:
        reached, text = False, f"cannot be reached ({type(error).__name__})"
    use = "this study needs it" if needed else "this study does not need it"
    fix = "" if reached else "set HF_ENDPOINT to a mirror, or fill the cache elsewhere and set HF_HUB_OFFLINE=1"
    return Check("hub", True if reached else False if needed else None, f"{text}, {token}; {use}", fix)


def _cost(study: Study) -> Iterator[Check]:
    """Disk, memory and time of the study on this machine, from its bandwidth and speed as they are now."""
    import psutil

    from specrig.planning.estimate import extent, hours, pair_sizes, size_text, time_text, training_cost
    from specrig.provenance.load import probe

    sizes, cost = pair_sizes(study), training_cost(study)
    folder = next(path for path in (study.root, *study.root.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(folder).free, cost.disk + RESULTS_BYTES
    fix = "free some, or choose another disk: --config results=PATH"
    yield Check(
        "disk",
        free > needed,
        f"{size_text(free)} free, {study.study} needs about {size_text(needed)}",
        "" if free > needed else fix,
    )
    device = resolve_device(study.device)
    if device == "cpu":
        most = max([cost.memory if cost.named else 0.0, *(size.memory_bytes or 0 for size in sizes)])
        available = psutil.virtual_memory().available
        fix = "" if available > most else "end other programs, or take smaller models"
        yield Check(
            "memory",
            available > most,
            f"{size_text(available)} available, {study.study} needs up to {size_text(most)}",
            fix,
        )
    now = probe(device)
    copied, speed = now["copy_gb_s"], now["product_gflop_s"] * 1e9
    product = f"a float32 matrix product {now['product_gflop_s']:,.0f} GFLOP/s"
    yield Check("speed", True, f"copies {copied:.0f} GB/s, {product}" if copied else product)
    bandwidth = copied * 1e9 if copied else None
    trains = f"training at least {time_text(cost.flop / speed)}" if cost.named else "no training"
    measures = f"measuring about {time_text(hours(study, sizes, bandwidth)[0] * 3600)}, drafts not counted"
    yield Check("cost", True, f"{study.study} here: {trains}, {measures}; {extent(study)}")
