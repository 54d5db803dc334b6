"""Reads rows of data from a JSONL, CSV or Parquet file, its address, or a data set on the hub. No torch here."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from hashlib import sha256 as sha256_of
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specrig.errors import first_line
from specrig.models.hub import offline

Row = tuple[int, str, dict[str, Any]]
"""(row number from 1, the row's place for error messages, its fields)"""
COMMIT = re.compile(r"[0-9a-f]{40}")


class PromptError(ValueError):
    """Data that cannot be used; the message names the file or data set, the row, the field and the fix."""


def read_rows(path: Path, sha256: str | None = None) -> Iterator[Row]:
    """Read the rows of a local file in the format of its ending; blank lines of JSONL are skipped.

    Raises PromptError if the file cannot be read or parsed, or has another SHA-256.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PromptError(f"{path}: no such file of prompts; correct the task's path") from None
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror}); give the path of a readable file") from None
    return parse_rows(content, path.suffix, str(path), sha256)


def fetch_rows(url: str, sha256: str | None = None) -> Iterator[Row]:
    """Download a file and read its rows. Raises PromptError if it cannot be fetched or used."""
    from urllib.request import urlopen

    if offline():
        raise PromptError(
            f"{url}: offline mode is on (HF_HUB_OFFLINE); unset it, or download the file and give its path"
        )
    try:
        with urlopen(url, timeout=60) as response:
            content = response.read()
    except OSError as error:  # URLError and timeouts are OSErrors
        raise PromptError(
            f"{url}: cannot be fetched ({str(error) or type(error).__name__}); "
            "check the network and the address, or download the file and give its path"
        ) from None
    return parse_rows(content, Path(urlsplit(url).path).suffix, url, sha256)


def hub_rows(name: str, config: str | None, split: str, revision: str | None) -> Iterator[Row]:
    """Read the rows of a data set on the hub with `datasets`, which uses its cache, offline mode and mirrors as
    configured.

    Raises PromptError if the library is missing, the data cannot be loaded, or the cache holds another commit than
    `revision`.
    """
    try:
        import datasets
    except ImportError:
        raise PromptError(
            f"{name}: data sets of the hub need the datasets library; install it with `pip install 'specrig[data]'`"
        ) from None
    try:
        builder = datasets.load_dataset_builder(name, config, revision=revision)
        builder.download_and_prepare()
        loaded = builder.as_dataset(split=split)
    except Exception as error:  # whatever its loader and the network raise, the user sees one of two fixes
        reason = first_line(error)
        if offline():
            fix = "offline mode is on (HF_HUB_OFFLINE) and the data are not in the cache: unset it and run once online"
        else:
            fix = "if the hub cannot be reached check network and HF_ENDPOINT; "
            fix += "else check source, config, split and revision of the row (gated data: `hf auth login`)"
        raise PromptError(
            f"{name}: the data set cannot be loaded ({reason}); {fix}, or give the path of a local file"
        ) from error
    # Where the hub does not answer, datasets takes what the cache has, of whatever commit.
    if revision and COMMIT.fullmatch(revision) and builder.hash != revision:
        raise PromptError(
            f"{name}: the cache holds commit {builder.hash}, the row pins {revision}, and the hub cannot be reached: "
            "run once with the network, or correct the row"
        )
    return ((number, f"{name}: row {number}", dict(row)) for number, row in enumerate(loaded, 1))


def parse_rows(content: bytes, ending: str, source: str, sha256: str | None = None) -> Iterator[Row]:
    """Read the rows in a file's bytes; `ending` is its format, `source` its name in messages.

    Raises PromptError if the SHA-256 is not `sha256`, or for what does not parse.
    """
    found = sha256_of(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise PromptError(
            f"{source}: its SHA-256 is {found}, the row pins {sha256}: the file has changed or is cut; "
            "get the pinned one, or correct the row"
        )
    return _jsonl(content, source) if ending not in _TABLES else _table(content, ending, source)


def _jsonl(content: bytes, source: str) -> Iterator[Row]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{source}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    # Not str.splitlines: JSON texts may hold U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{source}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptError(
                f"{location}: not JSON ({error.msg} at column {error.colno}); each line must be one JSON object"
            ) from None
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
            raise PromptError(f"{location}: not JSON ({reason}); each line must be one JSON object") from None
        if not isinstance(row, dict):
            kind = "a list" if isinstance(row, list) else "a bare value"
            raise PromptError(f'{location}: {kind} where a JSON object is needed, e.g. {{"id": 1, "prompt": "…"}}')
        yield number, location, row


_TABLES = {".csv": "read_csv", ".parquet": "read_parquet"}


def _table(content: bytes, ending: str, source: str) -> Iterator[Row]:
    import pandas as pd

    # A CSV file holds text: 02139 and 0.50 stay as they are written.
    text = {"keep_default_na": False, "dtype": str} if ending == ".csv" else {}
    try:
        frame = getattr(pd, _TABLES[ending])(io.BytesIO(content), **text)
    except Exception as error:  # each reader has its own
        raise PromptError(f"{source}: not a readable {ending} file ({first_line(error)}); check its content") from error
    for number, row in enumerate(frame.to_dict("records"), 1):
        yield number, f"{source}: row {number}", {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value with lists in place of Parquet's arrays, as JSON would hold it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value
