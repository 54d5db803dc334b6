"""Runs jobs of studies in copies of itself that have imported torch and all else: python server.py ADDRESS.

Of a job's ten seconds in a tiny study, seven go into imports. A copy (`os.fork`) is a process of its own, with the
files, folder, environment and arguments of the process that sent the request (sitecustomize.py). It is killed when that
one dies. The server ends when its standard input does.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

from short_probes import shorten

PACKAGES = ["snakemake.cli", "snakemake.workflow", "mlflow", "mlflow.tracking", "seaborn", "scipy.stats", "torch"]
FROM_TRANSFORMERS = ["AutoModelForCausalLM", "AutoTokenizer", "LlamaForCausalLM", "PreTrainedTokenizerFast"]
READ_AT_IMPORT = ("HF_", "HOME", "PYTHON", "TRANSFORMERS_", "XDG_")
"""Variables that packages read when they are imported: a request with others than the server's is refused."""
SET_BY_SPECRIG = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""What the command line sets where it is not set: a test that has called it has them, and the server too."""


def import_all() -> None:
    for name, value in SET_BY_SPECRIG.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PACKAGES:
            importlib.import_module(name)
        transformers = importlib.import_module("transformers")
        for name in FROM_TRANSFORMERS:
            getattr(transformers, name)
        import specrig

        for module in pkgutil.walk_packages(specrig.__path__, "specrig."):
            if "vllm" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    shorten()
    gc.collect()
    gc.freeze()


def read_at_import(environment: Any) -> dict[str, str]:
    names = {name for name in environment if name.startswith(READ_AT_IMPORT)} - {"HF_TOKEN"}
    return SET_BY_SPECRIG | {name: environment[name] for name in names}


def accept(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Waits for requests; returns one, with its files, in each copy. In the server itself it never returns."""
    own = read_at_import(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for who waits for the copies
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if "torch" not in sys.modules:
            import_all()
        if os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, files, _, _ = socket.recv_fds(connection, 8, 3)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            part = connection.recv(1 << 20)
            body += part or os._exit(0)
        request = json.loads(body)
        if read_at_import(request["env"]) != own:
            os._exit(0)
        if not (child := os.fork()):
            connection.close()
            return request, files
        watch(child, connection)


def watch(child: int, connection: socket.socket) -> None:
    """Answer with the exit code of the copy, or kill it when who sent the request is gone; ends this process."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        connection.sendall(code.to_bytes(8, "big", signed=True))
    os._exit(0)


def main() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        request, files = accept(listener)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))  # type: ignore[attr-defined]
    sys.orig_argv, sys.argv = request["argv"], request["argv"][2:]
    sys.path[0] = request["cwd"]
    code: Any = 0
    try:
        if first := os.environ.get("SPECRIG_TESTS_FIRST"):
            exec(Path(first).read_text(), {})
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As at any end, but modules are not taken down one by one.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
