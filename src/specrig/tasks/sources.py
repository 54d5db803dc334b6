"""Reads rows of data from a file (JSONL, JSON, CSV, TSV, text, Parquet), its address, or a data set on the hub. No torch here."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
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
"""Endings of files with prompts; each may be followed by one of `PACKED`."""
PACKED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
"""Ending of a packed file -> the bytes that it begins with."""
FIELDS = ("prompt", "messages", "conversation", "conversations", "turns")
"""Where a row's prompt or chat stands, if its task does not say."""


def is_data_file(name: str) -> bool:
    """Whether a name ends as one of `DATA_FILES`, packed or not."""
    path = Path(name.lower())
    return (path.with_suffix("") if path.suffix in PACKED else path).name.endswith(DATA_FILES)


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
    path = Path(name.lower())
    ending = Path(path.stem).suffix if path.suffix in PACKED else path.suffix
    content = _unpacked(content, path.suffix, source)
    if ending == ".parquet":
        return _parquet(content, source)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        fix = "set `encoding` in the task's row to windows-1252 if a spreadsheet wrote it, or save it as UTF-8"
        if b"\0" in content:
            fix = f"no text: files of prompts are {', '.join(DATA_FILES)}, also packed ({', '.join(PACKED)})"
        raise PromptError(f"{source}: not {error.encoding.upper()} at byte {error.start}; {fix}") from None
    if "\0" in text:
        raise PromptError(f"{source}: it holds NUL bytes, as UTF-16 without a byte order mark does; save it as UTF-8")
    if ending in (".csv", ".tsv"):
        return _csv(text, ending, source)
    if ending == ".txt":
        lines = enumerate(text.splitlines(), 1)
        return ((number, f"{source}:{number}", {"prompt": line}) for number, line in lines if line.strip())
    return _json(text, source)


def _json(text: str, source: str) -> Iterator[Row]:
    """Rows of JSONL, or of one array, which may be the only list in an object. Raises PromptError."""
    if text.lstrip()[:1] == "[" or not _is_jsonl(text):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None) or (1 if "\n" not in text.rstrip() else None)
            location = f"{source}:{line}" if line else source  # other faults than of syntax name no line
            raise PromptError(f"{location}: not JSON ({_json_fault(error)}); correct the file") from None
        yield from _listed(content if isinstance(content, list) else _rows_in(content, source) or [content], source)
        return
    # Not str.splitlines: JSON texts may hold U+2028.
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if not line.strip():
            continue
        location = f"{source}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(
                f"{location}: not JSON ({_json_fault(error)}); each line must be one JSON object"
            ) from None
        if line.strip() == text.strip() and (rows := _rows_in(row, source)) is not None:
            yield from _listed(rows, source)
        else:
            yield number, location, _object(row, location)


def _listed(rows: list[Any], source: str) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        yield number, f"{source}: row {number}", _object(row, f"{source}: row {number}")


def _rows_in(content: Any, source: str) -> list[Any] | None:
    """The rows in the one value of a file: an object's only list of objects; None for an object that is a row itself.

    Raises PromptError for one with several lists of rows.
    """
    if not isinstance(content, dict) or content.keys() & set(FIELDS):
        return None
    lists = [value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) > 1:
        raise PromptError(f"{source}: it holds several lists of rows ({', '.join(content)}); make a file of each")
    return lists[0] if lists else None


def _is_jsonl(text: str) -> bool:
    """Whether the first line that holds something is a value by itself, or the file has no second one."""
    first, *more = re.split(r"[\r\n]+", text.strip(), maxsplit=1)
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


def _unpacked(content: bytes, ending: str, source: str) -> bytes:
    """A file's bytes, unpacked where they begin as a packed file does. Raises PromptError where they do not unpack."""
    packed = next((kind for kind, start in PACKED.items() if content.startswith(start)), None)
    if packed is None and ending not in PACKED:
        return content
    try:
        if packed == ".zst":
            import pyarrow

            return bytes(pyarrow.input_stream(io.BytesIO(content), compression="zstd").read())
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        name = packed or ending
        raise PromptError(f"{source}: not a readable {name} file ({first_line(error)}); get it again") from None


def _csv(text: str, ending: str, source: str) -> Iterator[Row]:
    """Rows of a table, whose cells hold text: 02139 and 0.50 stay."""
    import pandas as pd

    first, _, rest = text.lstrip().partition("\n")
    if named := re.fullmatch(r"sep=(.)\s*", first):  # how a spreadsheet names the delimiter
        sign, text = named[1], rest
    else:  # the one of these that the header has most often
        sign = max("\t,;|" if ending == ".tsv" else ",;\t|", key=first.count)
    try:
        # pandas would cut rows that are too long, with a warning.
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            frame = pd.read_csv(
                io.StringIO(text), sep=sign, dtype=str, keep_default_na=False, skipinitialspace=True, index_col=False
            )
    except pd.errors.ParserWarning:
        fix = f"put texts that hold {sign!r} in quotes"
        raise PromptError(f"{source}: a row has more fields than the header; {fix}") from None
    except Exception as error:  # the reader has many
        raise PromptError(f"{source}: not a readable {ending} file ({first_line(error)}); check its content") from error
    frame.columns = frame.columns.str.strip()
    return _numbered(frame.fillna("").to_dict("records"), source)


def _parquet(content: bytes, source: str) -> Iterator[Row]:
    try:
        from pyarrow import parquet

        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    except Exception as error:  # the reader has many
        raise PromptError(f"{source}: not a readable .parquet file ({first_line(error)}); check its content") from error
    return _numbered(rows, source)


def _numbered(rows: Iterable[Mapping[Any, Any]], source: str) -> Iterator[Row]:
    return (
        (number, f"{source}: row {number}", {str(name): value for name, value in row.items()})
        for number, row in enumerate(rows, 1)
    )
