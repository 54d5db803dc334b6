"""One training: the folder that it writes, the progress that it reports, and how it continues after it was killed."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from specrig.errors import first_line
from specrig.files import files_sha256, write_atomically
from specrig.heads.base import TrainingError
from specrig.training.checkpoint import FILE as CHECKPOINT
from specrig.training.checkpoint import State, steps_done
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Recipe

STATES = ".states"
"""In the folder of an unfinished training: the target's states that it learns from (`training.states`)."""
_LOG_EVERY_S = 10.0
_READ_EVERY = {"cpu": 1, "cuda": 10}
"""Every how many steps the loss is read. To read it, the CPU must wait until the GPU has done all the work in its
queue.
"""


class Curve:
    """Writes `training.jsonl`, one JSON object a line, and shows progress: a bar with `progress` on a terminal, else a
    line every ten seconds.

    done: steps that a training took before it was cut; their lines in the file are kept.
    """

    def __init__(self, path: Path, label: str, steps: int, progress: bool, done: int = 0) -> None:
        self.label, self.steps = label, steps
        kept = path.read_text(encoding="utf-8").splitlines(keepends=True) if done and path.is_file() else []
        whole = [line for line in kept if line.endswith("\n") and json.loads(line)["step"] <= done]
        write_atomically(path, "".join(whole))
        self.file = path.open("a", encoding="utf-8")
        self.pending: list[tuple[int, Tensor, dict[str, Any]]] = []
        self.spoke = time.perf_counter()
        # The time of a training that was cut goes on where its last kept line ends.
        self.start = self.spoke - (json.loads(whole[-1])["seconds"] if whole else 0.0)
        console = Console(stderr=True, emoji=False)
        self.bar: Progress | None = None
        if progress and console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(), console=console, transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task(label, total=steps, note="")
            self.bar.start()

    def __enter__(self) -> Curve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            if self.bar:
                self.bar.stop()
            self.file.close()

    def note(self, step: int, loss: Tensor, **values: Any) -> None:
        """Append a line with the loss, read every few steps on a GPU. Raises TrainingError for a loss that is not
        finite.
        """
        self.pending.append((step, loss.detach(), {**values, "seconds": self._seconds()}))
        if len(self.pending) >= _READ_EVERY[loss.device.type]:
            self.flush()

    def write(self, step: int, **values: Any) -> None:
        """Append a line: the step, the seconds since the start, `values`."""
        self.flush()
        self._append({"step": step, "seconds": self._seconds(), **values})
        self.file.flush()

    def flush(self) -> None:
        """Read the losses noted since and write their lines."""
        if not self.pending:
            return
        noted, self.pending = self.pending, []
        for (step, _, values), loss in zip(noted, torch.stack([loss for _, loss, _ in noted]).tolist(), strict=True):
            if not math.isfinite(loss):
                raise TrainingError(f"{self.label}: the loss is {loss} at step {step}; lower lr and matrix_lr")
            self._append({"step": step, **values, "loss": round(loss, 5)})
            self.show(step, loss)
        self.file.flush()

    def _append(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")

    def _seconds(self) -> float:
        return round(time.perf_counter() - self.start, 3)

    def show(self, step: int, loss: float) -> None:
        """Report progress to a person."""
        if self.bar:
            self.bar.update(self.task, completed=step, note=f"loss {loss:.3f}")
        elif (now := time.perf_counter()) - self.spoke > _LOG_EVERY_S:
            self.spoke = now
            self.log(f"step {step}/{self.steps}, loss {loss:.3f}, {now - self.start:.0f} s")

    def log(self, text: str) -> None:
        """One line on standard error."""
        print(f"{self.label}: {text}", file=sys.stderr, flush=True)


class Run:
    """One training: the hidden folder it writes into, its curve, and its checkpoint.

    `done`: steps that a training with the same `key` took there before it was cut; 0 at a fresh start.
    """

    def __init__(self, folder: Path, curve: Curve, key: str) -> None:
        self.folder, self.curve, self.key = folder, curve, key
        self.curves = [curve]
        """All that are in step with the checkpoint."""
        self.done = steps_done(folder, key)

    def begin(
        self, parts: Mapping[str, tuple[nn.Module, Optimizer]], generators: Sequence[torch.Generator] = ()
    ) -> None:
        """Name what the training changes (see `checkpoint.State`). If a checkpoint of the same training is there, it is
        restored.
        """
        self.state = State(self.folder, self.key, parts, generators)

    def take_step(self, step: int, loss: Tensor, *, tokens: int, lr: float) -> None:
        """Take one optimiser step. tokens: seen so far; lr: the peak rate. Raises TrainingError for a loss that is not
        finite, on a GPU some steps later.
        """
        loss.backward()
        self.curve.note(step, loss, tokens=tokens, lr=lr * self.state.optimizers[0].rate())
        for optimizer in self.state.optimizers:
            optimizer.step()

    def keep(self, step: int) -> None:
        """Write a checkpoint, if one is due. The evaluation after `step` comes before: a training that goes on from the
        checkpoint does not repeat it.
        """
        if self.state.due():
            for curve in self.curves:
                curve.flush()  # so that it holds every step that the checkpoint has taken
            self.state.save(step)


def training_device(device: str) -> torch.device:
    """The device to train on, `cpu` or `cuda`, made ready. Raises TrainingError where PyTorch sees no GPU."""
    where = torch.device(device)
    if where.type == "cuda":
        if not torch.cuda.is_available():
            raise TrainingError(
                "device cuda: PyTorch sees no GPU here; set `device: cpu` or `device: auto`, or install its CUDA build"
            )
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    return where


@contextmanager
def training(out: Path, steps: int, progress: bool, key: str) -> Iterator[Run]:
    """A `Run` that ends as the model folder `out`; `key` says what decides the training (see `key_of`)."""
    with (
        within_memory(out.name),
        model_folder(out, key) as folder,
        Curve(folder / "training.jsonl", out.name, steps, progress, steps_done(folder, key)) as curve,
    ):
        yield Run(folder, curve, key)


@contextmanager
def within_memory(label: str) -> Iterator[None]:
    """Say what to change when the GPU's memory is full. Raises TrainingError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"{label}: the GPU's memory is full ({first_line(error)}); lower its batch, text.batch or text.sequence in the "
            "study's training block"
        ) from error


def key_of(recipe: Recipe, *files: Path) -> str:
    """What decides a training: the recipe and the content of the files it learns from."""
    return files_sha256(files, recipe.model_dump_json().encode())


@contextmanager
def model_folder(out: Path, key: str = "") -> Iterator[Path]:
    """A hidden sibling of `out` to write a model into; renamed to `out` at the end.

    A training that was killed or that failed leaves at most the hidden folder, never a model folder that looks
    finished. The next one goes on from its checkpoint, or clears it when that is another training's. A training that
    fails before its first checkpoint leaves nothing.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.parent / f".{out.name}.unfinished"
    temporary.mkdir(exist_ok=True)
    if not steps_done(temporary, key):
        for left in temporary.iterdir():
            if left.name != STATES:  # each of its files says for itself whose it is
                left.unlink()
    try:
        yield temporary
    except Exception:
        if not steps_done(temporary, key):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary / STATES, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    (temporary / CHECKPOINT).unlink(missing_ok=True)  # last: to delete the states takes long, and a kill may come
    temporary.rename(out)
