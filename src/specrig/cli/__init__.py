"""The command line `specrig`: what people type, and under `specrig stage` the stages of the workflow. A verb imports what it
needs when it is called, so planning needs no torch.

Errors that the user can fix are printed in a few lines, with the fix. The exit code is then 2; after Ctrl-C it is 130.
SPECRIG_DEBUG=1 shows the traceback instead.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from specrig import __version__
from specrig.cli import decode, doctor, measure, plan, report, run, serve, share, train
from specrig.cli.arguments import INTERRUPTED
from specrig.cli.examples import epilog
from specrig.cli.imports import skip_unused
from specrig.dag.interruption import MESSAGE
from specrig.runtime.types import FallbackWarning
from specrig.terminal import console

app = typer.Typer(
    name="specrig",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

FULL = os.strerror(errno.ENOSPC)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"specrig {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Which speculative-decoding method makes my pair faster on my tasks, by how much, and how surely?"""


TYPED: tuple[Callable[..., None], ...] = (
    *(plan.plan, decode.decode, plan.methods, doctor.doctor, plan.advise, measure.tune),
    *(share.compare, share.publish, share.verify, plan.pin),
)
"""What people type, in the order of the help."""
RARE: tuple[Callable[..., None], ...] = (plan.schema,)
"""Not in the help."""
STAGES: tuple[Callable[..., None], ...] = (
    *(train.prompts, train.convert, train.train, train.write_text, train.train_jointly),
    *(measure.answers, measure.measure, measure.traffic, measure.audit, measure.audit_exact),
    *(report.tables, report.quality, report.figures, report.track, report.report, report.paper),
)
"""What the workflow's rules run."""

app.command(context_settings={"ignore_unknown_options": True})(run.run)
for verb in TYPED:
    app.command()(verb)
app.add_typer(serve.serve, name="serve")
for verb in RARE:
    app.command(hidden=True)(verb)
stage = typer.Typer(no_args_is_help=True, help="Run one stage of the workflow by hand, as its rules do (docs/cli.md).")
for verb in STAGES:
    stage.command()(verb)
app.add_typer(stage, name="stage", hidden=True)
for group, prefix in ((app, ""), (serve.serve, "serve "), (stage, "stage ")):
    for command in group.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        command.epilog = epilog(prefix + name)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code. Errors are printed, not raised.

    arguments: without the program's name; default: those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with _stopped_by_sigterm():
        return _run(arguments)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM (a cluster's time limit, `kill`) end the process as an exit does: temporary copies of models are removed,
    and servers are stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _run(arguments: Sequence[str]) -> int:
    _quiet_packages()
    skip_unused()
    try:
        code = app(arguments, standalone_mode=False)
        if code == INTERRUPTED:  # typer has caught the signal
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(MESSAGE, nl=False, err=True)
        return INTERRUPTED
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        # Wrong usage. Recognised by its attributes, since typer's own copy of click is private.
        if hasattr(error, "show") and isinstance(code := getattr(error, "exit_code", None), int):
            error.show()
            return code
        if os.environ.get("SPECRIG_DEBUG") == "1":
            raise
        # SpecRig's own exceptions are written for the user: they name the place and the fix.
        if type(error).__module__.split(".")[0] == "specrig":
            return _print_error(type(error).__name__, str(error), 2)
        if isinstance(error, OSError) or FULL in str(error):  # safetensors has an error of its own
            name, text = getattr(error, "filename", None), getattr(error, "strerror", None) or str(error)
            reason = f"{name}: {text}" if name else f"{text}{_free_space(arguments)}"
            return _print_error(
                "cannot read or write", f"{reason}\n    → check the path, its permissions and the free space", 2
            )
        reason = f"{type(error).__name__}: {str(error) or 'no message'}"
        return _print_error("unexpected error", f"{reason}\n    → SPECRIG_DEBUG=1 shows where; please report it", 1)


def _quiet_packages() -> None:
    """Keep warnings of torch and other packages off the terminal; SPECRIG_DEBUG=1 and python -W show them."""
    if sys.warnoptions or os.environ.get("SPECRIG_DEBUG") == "1":
        return
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", category=FallbackWarning)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_LOGS", "-all")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _free_space(arguments: Sequence[str]) -> str:
    """The free space where a command line writes, for an error that does not name the full disk."""
    files = [Path(word) for word in arguments if "/" in word and Path(word).is_file()]
    folders = dict.fromkeys([*(file.parent for file in files), Path.cwd(), Path(tempfile.gettempdir())])
    return "; free: " + ", ".join(f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB in {folder}" for folder in folders)


def _print_error(title: str, message: str, code: int) -> int:
    screen = console(stderr=True)
    screen.print(f"✗ {title}", style="bold red", markup=False)
    screen.print(message, markup=False, soft_wrap=True)
    return code
