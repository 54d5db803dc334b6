"""Code and summarization text from installed Python sources, which are parsed by `ast` and never imported. No torch
here.

A code example is a function of the standard library or of a package: the prompt is its signature and docstring, the
completion its body. A summarization example is several functions and classes of one file of an installed dependency:
the prompt holds the second paragraphs of their docstrings, the completion the first.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

from specrig.corpus import instructions
from specrig.corpus.example import Example, hash_fraction, number
from specrig.corpus.recipe import Corpus

PACKAGES = (
    "torch", "transformers", "scipy", "numpy", "pandas", "matplotlib", "mlflow", "seaborn", "scikit-learn",
    "sympy", "networkx", "snakemake", "babel", "sqlalchemy",
)  # fmt: skip
"""Distributions whose docstrings are read; those that are not installed are skipped."""
_SKIPPED_FOLDERS = {
    "test", "tests", "testing", "idle_test", "site-packages", "dist-packages", "pydoc_data", "encodings", "turtledemo",
    "__pycache__", "lib2to3", "_vendor", "_pyrepl",
}  # fmt: skip
_LONGEST_FILE = 250_000  # bytes: the few longer files are tables and generated code
# A summary line, a blank line, prose. Parsing is what costs: files without two of these are not parsed for summaries.
_PROMISING = re.compile(
    r'"""(?:\n[ \t]*)?[^"\n]{25,110}\n[ \t]*\n[ '
    r"\t]+(?!Parameters|Args|Arguments|Returns|Example|Raises|>>>|\.\.|[-*:])\S"
)
_NO_PROSE = re.compile(r"^\s*(>>>|\.\. |[-=*]{3,}|\w+:$|[-*:|+])|\n\s*[-=~]{3,}", re.MULTILINE)
_POINTER = re.compile(r"(Refer to|See|Same as|Alias for|This is an alias)\b")
"""Documentation that begins so says nothing by itself."""
LONGEST_PROSE = 450
"""Longest piece of documentation that an assistant is asked to summarize, in characters."""
LEAST_PROSE = 250
"""Several pieces are put together where one is shorter."""
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def code(seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield documented functions of the standard library and of `limits.packages`; files are held out whole."""
    streams = [_functions(_standard_library(), Path(sysconfig.get_path("stdlib")), "code", seed, settings)]
    for name in settings.limits.packages:
        root, files = _package_files(name)
        # One kind of chance a package: what summarization holds out is not trained on as code.
        streams.append(_functions(files, root, "summarization", seed, settings))
    return _in_turn(streams)


def _functions(files: list[Path], root: Path, kind: str, seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield code examples, files shuffled; `kind` and a file's name decide whether it is held out."""
    for file in _shuffled(files, root, seed):
        name = file.relative_to(root).as_posix()
        heldout = hash_fraction(kind, name) < settings.heldout_share
        text = _read(file)
        lines = text.split("\n")
        for node in _documented(text):
            if isinstance(node, ast.ClassDef) or len(node.body) < 2:
                continue
            summary, rest = _split_docstring(node)
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            signature = textwrap.dedent("\n".join(lines[first : node.body[0].lineno - 1]))
            body = textwrap.dedent("\n".join(lines[(node.body[0].end_lineno or 0) : last])).strip("\n")
            if not (summary and 120 <= len(body) <= settings.limits.body and 0 < len(signature) <= 160):
                continue
            doc = _excerpt(f"{summary} {rest}".strip(), 220)
            filled = textwrap.fill(doc, 76)
            prompt = f"{signature.strip()}\n{textwrap.indent(f'{chr(34) * 3}{filled}{chr(34) * 3}', '    ')}\n"
            completion = textwrap.indent(body, "    ") + "\n"
            request = instructions.code(signature, doc)
            yield Example("code", prompt, completion, name, heldout, request, f"```python\n{prompt}{completion}```")


def summarization(seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield groups of documented functions of one file, packages in turn; files are shuffled and held out whole."""
    return _in_turn([_package(name, seed, settings) for name in PACKAGES])


def _in_turn(streams: list[Iterator[Example]]) -> Iterator[Example]:
    """Yield one example of each stream in turn, so that a small corpus holds examples of every source."""
    while streams:
        for stream in list(streams):
            example = next(stream, None)
            if example is None:
                streams.remove(stream)
            else:
                yield example


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return [file for file in root.rglob("*.py") if not _SKIPPED_FOLDERS & set(file.relative_to(root).parts)]


def _package_files(name: str) -> tuple[Path, list[Path]]:
    """Return (folder of a distribution, its Python files there); no files if it is not installed."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return Path(), []
    root = Path(str(distribution.locate_file("")))
    listed = [str(file) for file in distribution.files or () if file.suffix == ".py"]
    return root, [root / file for file in listed if not _SKIPPED_FOLDERS & set(Path(file).parts)]


def _package(name: str, seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield the summarization examples of one distribution."""
    root, files = _package_files(name)
    seen: set[str] = set()
    for file in _shuffled(files, root, seed):
        source = file.relative_to(root).as_posix()
        heldout = hash_fraction("summarization", source) < settings.heldout_share
        entries = []
        text = _read(file)
        if len(_PROMISING.findall(text)) < 2:
            continue
        for node in _documented(text):
            summary, rest = _split_docstring(node)
            body = _excerpt(rest, settings.limits.excerpt)
            if _POINTER.match(body) or _POINTER.match(summary):
                continue
            if 25 <= len(summary) <= 110 and len(body) >= 40 and summary not in seen and body not in seen:
                seen.update((summary, body))
                entries.append((node.name, summary, body, _prose(node, LONGEST_PROSE)))
        for start in range(0, len(entries) - 1, 4):
            group = entries[start : start + 4]
            if len(group) < 2:
                continue
            bodies = "\n".join(f"{entry}: {body}" for entry, _, body, _ in group)
            summaries = "".join(f"- {entry}: {summary}\n" for entry, summary, _, _ in group)
            prompt = f"Summarize {', '.join(entry for entry, *_ in group)}.\n\n{bodies}\n\nSummary:\n"
            request, answer = _request(
                sorted(((prose, summary) for _, summary, _, prose in group), key=lambda pair: -len(pair[0]))
            )
            yield Example("summarization", prompt, summaries, source, heldout, request, answer)


def _request(entries: list[tuple[str, str]]) -> tuple[str, str]:
    """A request for a summary and its answer: as many (text, summary) as make a text worth summarizing."""
    count = next(
        (n for n in range(1, len(entries)) if sum(len(prose) for prose, _ in entries[:n]) >= LEAST_PROSE), len(entries)
    )
    proses, summaries = zip(*entries[:count], strict=True)
    return instructions.summary("\n\n".join(proses)), " ".join(summaries)


def _shuffled(files: list[Path], root: Path, seed: int) -> list[Path]:
    """The files in an order that depends only on the seed and their names."""
    return sorted(files, key=lambda file: number(seed, "file", file.relative_to(root).as_posix()))


def _read(file: Path) -> str:
    """The file's text; empty if it cannot be read, is not UTF-8 or is a table of data."""
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= _LONGEST_FILE else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _documented(text: str) -> Iterator[_Documented]:
    """Yield the functions and classes with a docstring at module or class level, in the order of the text."""
    if '"""' not in text:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning: invalid escapes in other people's files
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for item in (node, *members):
            if isinstance(item, _Documented) and ast.get_docstring(item, clean=False):
                yield item


def _split_docstring(node: _Documented) -> tuple[str, str]:
    """A docstring's first two paragraphs, each on one line; the second is empty unless prose and both ASCII."""
    paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
    summary = " ".join(paragraphs[0].split())
    rest = paragraphs[1] if len(paragraphs) > 1 else ""
    prose = not _NO_PROSE.search(rest)
    return (summary, " ".join(rest.split())) if summary.isascii() and rest.isascii() and prose else (summary, "")


def _prose(node: _Documented, longest: int) -> str:
    """What the docstring says after its summary, up to the first paragraph that is no prose, as far as it fits."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or "")[1:]:
        if _NO_PROSE.search(paragraph) or not paragraph.isascii():
            break
        found.append(" ".join(paragraph.split()))
    return _excerpt("\n\n".join(found), longest)


def _excerpt(text: str, longest: int) -> str:
    """The whole sentences of `text` that fit into `longest` characters; whole words if these fill less than half."""
    if len(text) <= longest:
        return text
    cut = text[:longest]
    end = cut.rfind(". ")
    return cut[: end + 1] if end > longest // 2 else cut[: cut.rfind(" ")]
