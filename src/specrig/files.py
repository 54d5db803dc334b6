"""Files written whole or not at all, and the sums of their content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that at any moment, even after a kill, `path` holds the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is reported without a name
        raise


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Iterable[Path], before: bytes = b"") -> str:
    """SHA-256 over `before` and the SHA-256 of each file's content, in hexadecimal digits."""
    return hashlib.sha256(before + b"".join(bytes.fromhex(file_sha256(path)) for path in paths)).hexdigest()
