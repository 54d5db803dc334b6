"""Remove from published files what reveals the machine: paths, names of machine and user, addresses of servers."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from specrig.sharing.manifest import PublicationError

GENERIC = {
    *("root", "user", "users", "ubuntu", "debian", "admin"),
    *("runner", "jovyan", "docker", "localhost", "specrig", "snakemake"),
}
"""Common names of users and machines, which identify nobody."""
HIDDEN = "hidden"
SERVER = "http://not-published"
_POSIX = re.compile(r"(?<![\w:/.~>-])(?:~|file://)?(?:/[^\s/\"'<>|:,;()\[\]{}]+){2,}/?")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\[^\s\"'<>|]+")
_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")


def machine_names() -> list[str]:
    """The names of this machine and of its user, without short names and those in `GENERIC`."""
    found = {socket.gethostname(), socket.gethostname().split(".")[0]}
    with suppress(KeyError, OSError):  # a container whose user has no entry
        found.add(getpass.getuser())
    return sorted(name for name in found if len(name) > 2 and name.lower() not in GENERIC)


def machine_paths(*more: Path) -> list[str]:
    """The folders that no published file may name: the home folder, the working directory and `more`."""
    found = {str(path.expanduser().resolve()) for path in (Path.home(), Path.cwd(), *more)}
    return sorted(path for path in found if path.count("/") + path.count("\\") > 1 or path == str(Path.home()))


def scrubbed(value: Any, names: Iterable[str]) -> Any:
    """A copy of a JSON value with all its texts, keys included, treated by `scrub_text`."""
    if isinstance(value, dict):
        return {scrub_text(str(key), names): scrubbed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [scrubbed(inner, names) for inner in value]
    return scrub_text(value, names) if isinstance(value, str) else value


def scrub_text(text: str, names: Iterable[str]) -> str:
    """`text` with every absolute path reduced to its last part, and each of `names` replaced by `HIDDEN`."""
    text = _POSIX.sub(lambda found: PurePosixPath(found.group().removeprefix("file://")).name, text)
    text = _WINDOWS.sub(lambda found: PureWindowsPath(found.group()).name, text)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    return text


def without_addresses(value: Any) -> Any:
    """A copy of a JSON value with every http address replaced by `SERVER`."""
    if isinstance(value, dict):
        return {key: without_addresses(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_addresses(inner) for inner in value]
    return _ADDRESS.sub(SERVER, value) if isinstance(value, str) else value


def check_no_traces(folder: Path, paths: Iterable[str], names: Iterable[str]) -> None:
    """Raise PublicationError if a text file below `folder` contains one of `paths` or `names`.

    Records are not searched for names, because the text of a model may contain any word; everything else in them is
    numbers. An archive is checked before it is packed. A PDF says what the report's page says.
    """
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in (".pdf", ".xz"):
            continue
        text, where = path.read_bytes().decode("utf-8", errors="replace"), path.relative_to(folder)
        patterns = [rf"{re.escape(name)}(?![\w-])" for name in paths]
        if not (where.parts[0] == "records" and ".jsonl" in path.name):
            patterns += [rf"(?<!\w){re.escape(name)}(?!\w)" for name in names]
        for pattern in patterns:
            found = re.search(pattern, text)
            if found is not None:
                line = text.count("\n", 0, found.start()) + 1
                raise PublicationError(
                    f"{where}:{line} holds {found.group()!r}, which identifies this machine; rename it in the study (a "
                    "pair, a task, a row's notes), or report it where it comes from SpecRig itself"
                )
