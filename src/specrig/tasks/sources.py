"""Reads rows of data from a file (JSONL, JSON, CSV, TSV, text, Parquet), its address, or a data set on the hub. No torch here."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
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


DATA_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet")
"""Endings of files with prompts; each may be followed by .gz."""


def is_data_file(name: str) -> bool:
    """Whether a name ends as one of `DATA_FILES`, packed or not."""
    return name.lower().removesuffix(".gz").endswith(DATA_FILES)


def read_rows(path: Path, sha256: str | None = None, encoding: str = "utf-8") -> Iterator[Row]:
    """Read the rows of a local file in the format of its ending; blank lines of JSONL and text are skipped.

    Raises PromptError if the file cannot be read or parsed, or has another SHA-256.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PromptError(f"{path}: no such file of prompts; correct the task's path") from None
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror}); give the path of a readable file") from None
    return parse_rows(content, path.name, str(path), sha256, encoding)


def fetch_rows(url: str, sha256: str | None = None, encoding: str = "utf-8") -> Iterator[Row]:
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
    return parse_rows(content, urlsplit(url).path, url, sha256, encoding)


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


def parse_rows(
    content: bytes, name: str, source: str, sha256: str | None = None, encoding: str = "utf-8"
) -> Iterator[Row]:
    """Read the rows in a file's bytes. Its format is the ending of its `name`; `source` is its name in messages.

    Raises PromptError if the SHA-256 is not `sha256`, or for what does not parse.
    """
    found = sha256_of(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise PromptError(
            f"{source}: its SHA-256 is {found}, the row pins {sha256}: the file has changed or is cut; "
            "get the pinned one, or correct the row"
        )
    endings = Path(name.lower()).suffixes
    if endings[-1:] == [".gz"]:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise PromptError(f"{source}: not a readable .gz file ({first_line(error)}); get it again") from None
        endings.pop()
    ending = endings[-1] if endings else ""
    if ending == ".parquet":
        return _table(content, ending, source)
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        fix = "set `encoding` in the task's row to windows-1252 if a spreadsheet wrote it, or save it as UTF-8"
        raise PromptError(f"{source}: not {error.encoding.upper()} at byte {error.start}; {fix}") from None
    if ending in (".csv", ".tsv"):
        return _table(text, ending, source)
    if ending == ".txt":
        lines = enumerate(text.splitlines(), 1)
        return ((number, f"{source}:{number}", {"prompt": line}) for number, line in lines if line.strip())
    return _json(text, source)


def _json(text: str, source: str) -> Iterator[Row]:
    """Rows of JSONL, or of one array, which may be the only list in an object."""
    if text.lstrip()[:1] == "[" or not _is_jsonl(text):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None) or (1 if "\n" not in text.rstrip() else None)
            location = f"{source}:{line}" if line else source  # other faults than of syntax name no line
            raise PromptError(f"{location}: not JSON ({_json_fault(error)}); correct the file") from None
        lists = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else []
        rows = content if isinstance(content, list) else lists[0] if len(lists) == 1 else [content]
        for number, row in enumerate(rows, 1):
            yield number, f"{source}: row {number}", _object(row, f"{source}: row {number}")
        return
    # Not str.splitlines: JSON texts may hold U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{source}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(
                f"{location}: not JSON ({_json_fault(error)}); each line must be one JSON object"
            ) from None
        yield number, location, _object(row, location)


def _is_jsonl(text: str) -> bool:
    """Whether the first line that holds something is a value by itself, or the file has no second one."""
    first, _, more = text.strip().partition("\n")
    try:
        json.loads(first)
    except RecursionError:
        return True
    except ValueError:
        return not more or first.strip() not in ("{", "[")
    return True


def _json_fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"


def _object(row: Any, location: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        kind = "a list" if isinstance(row, list) else "a bare value"
        raise PromptError(f'{location}: {kind} where a JSON object is needed, e.g. {{"id": 1, "prompt": "…"}}')
    return row


def _table(content: str | bytes, ending: str, source: str) -> Iterator[Row]:
    import pandas as pd

    try:
        if isinstance(content, bytes):
            frame = pd.read_parquet(io.BytesIO(content))
        else:
            # The delimiter is the sign of these that the header has most often. A cell holds text: 02139 and 0.50 stay.
            header = content.lstrip().partition("\n")[0]
            sign = max("\t,;|" if ending == ".tsv" else ",;\t|", key=header.count)
            frame = pd.read_csv(io.StringIO(content), sep=sign, dtype=str, keep_default_na=False, skipinitialspace=True)
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
