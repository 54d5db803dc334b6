"""One run of a study at a time. The operating system holds the lock, which ends with its process."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO


class BusyError(RuntimeError):
    """Another run of the study is at work. The message says which process, and what to do."""


def lock_study(root: Path) -> IO[str]:
    """Take the lock of the study whose results folder is `root`: it is held while the returned file is open.

    Raises BusyError if another process holds it, OSError if the folder cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    file = (root / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise BusyError(
            f"{root}: another run of this study is at work ({holder}); wait until it ends, or stop it, "
            "or give this run its own folder, e.g. --config results=PATH"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file
