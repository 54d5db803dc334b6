"""Trained parts (targets, drafts, heads, texts of targets), kept by the digest of what makes them: studies share them.

A part lies in `<results>/.trained/<digest>/`. A study has its own copy, with its own times, by which Snakemake judges. No
torch here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from specrig.cell import digest
from specrig.files import file_sha256
from specrig.measurement.quarantine import HASHES, damaged_files, write_hashes
from specrig.provenance.digests import code_digest
from specrig.provenance.environment import model_digest
from specrig.study.study import Study
from specrig.training import shared_shards
from specrig.training.stages import STAGES, TEXT, Stage

FOLDER = ".trained"
"""In the folder of all results; no study can have this name."""
ABOUT = "about.json"
"""Beside a part's files: what it is, and which study made it."""
WRITING = Stage(("specrig.training.target_text",), ("target",), ("text", "prompts", "own_requests", "chat"))
"""How the target's text is made."""
A_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is kept."""

    part: str
    """`target`, `draft`, a head, or `text`."""
    made_by: str
    """Study and pair that made it."""
    needed_by: tuple[str, ...]
    """Studies whose folder has the same files."""
    bytes: int
    path: Path


class TrainedParts:
    """The parts that are kept in the results folder of a study."""

    def __init__(self, study: Study) -> None:
        self.study, self.folder = study, study.results / FOLDER

    def key(self, name: str, device: str, learns_from: Iterable[Path], stage: Stage | None = None) -> str:
        """Digest of what makes a part: code, keys of the recipe, corpus, the files or model folders in `learns_from`.

        The number of threads counts only where the study sets it, as it does for Snakemake.
        """
        made, corpus = stage or STAGES[name], self.study.root / "corpus"
        files = [corpus / "train.jsonl", corpus / "heldout.jsonl", *learns_from]
        recipe = self.study.training.model_dump_json(include={"seed", *made.keys})
        where = [device, self.study.threads, version("torch")]
        return digest([name, code_digest(*made.modules), recipe, where, [_content(path) for path in files]])

    def text_key(self, device: str, target: Path) -> str | None:
        """The `key` of a target's text. None where it depends on a data set of the hub, which has no digest."""
        training = self.study.training
        if any(source.kind == "hub" for source in training.sources):
            return None
        files = [Path(source.source).expanduser() for source in training.sources if source.kind == "file"]
        made = self.key(TEXT, device, [target, *files, *shared_shards.files(training.text.shards)], WRITING)
        # The corpus holds back what is measured.
        only_corpus = training.text.shards is None and all(source.kind == "corpus" for source in training.sources)
        return made if only_corpus else digest([made, sorted(self.study.evaluated(self.study.root))])

    def has(self, key: str | None) -> bool:
        """Whether a part is kept under this key."""
        return key is not None and (self.folder / key).is_dir()

    def take(self, key: str | None, out: Path) -> bool:
        """Make `out`, a model folder or the target's text, a copy of what is kept; False if it must be trained.

        A damaged part is removed. A part that cannot be copied is no error. Both cases print a line.
        """
        if key is None or not self.has(key):
            return False
        kept, copy = self.folder / key, out.parent / f".{out.name}.taken"
        shutil.rmtree(copy, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copytree(kept, copy, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(ABOUT))
            wrong = [f"{path.name}: {reason}" for path, reason in damaged_files(copy).items()] or _unlisted(copy)
        except OSError as error:  # somebody cleans at this moment, or the disk is full
            shutil.rmtree(copy, ignore_errors=True)
            print(f"{kept} cannot be copied, so {out} is made again: {error}", file=sys.stderr)
            return False
        if wrong:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(kept, ignore_errors=True)
            print(f"{kept} is damaged and removed ({wrong[0]}): {out} is made again.", file=sys.stderr)
            return False
        if out.name == TEXT:
            (copy / TEXT).replace(out)
            write_hashes(out.parent, [TEXT])
            shutil.rmtree(copy)
        else:
            shutil.rmtree(out.with_name(f".{out.name}.unfinished"), ignore_errors=True)  # of a training that was killed
            shutil.rmtree(out, ignore_errors=True)
            copy.rename(out)
        print(
            f"{out} is taken from {kept}, made by {_about(kept)[1]}: the same text, recipe and code.", file=sys.stderr
        )
        return True

    def keep(self, key: str | None, out: Path, name: str, pair: str) -> None:
        """Keep a finished part. Its files are linked, not copied, where the file system can.

        A part that cannot be kept is said and no error: the study has its own.
        """
        if key is None or (self.folder / key).is_dir():
            return
        unfinished = self.folder / f".{key}.{os.getpid()}"
        try:
            unfinished.mkdir(parents=True)
            for path in [out] if out.is_file() else [path for path in out.iterdir() if path.is_file()]:
                _link(path, unfinished / path.name)
            if out.is_file():
                write_hashes(unfinished, [out.name])
            about = {"part": name, "study": self.study.study, "pair": pair}
            (unfinished / ABOUT).write_text(json.dumps(about), encoding="utf-8")
            unfinished.rename(self.folder / key)
        except OSError as error:
            print(f"{out} is not kept for other studies: {error}", file=sys.stderr)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def parts(self) -> list[Part]:
        """What is kept."""
        needed = self._needed()
        found = []
        for kept in sorted(self.folder.glob("[!.]*")):
            part, made_by = _about(kept)
            size = sum(path.stat().st_size for path in kept.iterdir())
            found.append(Part(part, made_by, needed.get(_sums(kept / HASHES), ()), size, kept))
        return sorted(found, key=lambda each: (each.made_by, each.part, each.path))

    def clean(self) -> list[Part]:
        """Remove what no study has in its folder, and what a killed process left; returns the parts."""
        unneeded = [part for part in self.parts() if not part.needed_by]
        left = [path for path in self.folder.glob(".*") if path.stat().st_mtime < time.time() - A_DAY]
        for path in (*(part.path for part in unneeded), *left):
            shutil.rmtree(path, ignore_errors=True)
        return unneeded

    def _needed(self) -> dict[bytes, tuple[str, ...]]:
        """Hashes of a part's files -> the studies that have the part."""
        found: dict[bytes, list[str]] = {}
        for pattern in (f"*/models/*/{HASHES}", f"*/models/*/*/{HASHES}"):
            for path in sorted(self.study.results.glob(pattern)):
                study = path.relative_to(self.study.results).parts[0]
                if study not in found.setdefault(_sums(path), []):
                    found[_sums(path)].append(study)
        return {sums: tuple(studies) for sums, studies in found.items()}


def _content(path: Path) -> str:
    """Digest of a file or of a model folder; "" for what is not there, which the training will say."""
    if path.is_dir():
        return model_digest(str(path))["sha256"]
    return file_sha256(path) if path.is_file() else ""


def _about(kept: Path) -> tuple[str, str]:
    """Name of a part; study and pair that made it."""
    try:
        about = json.loads((kept / ABOUT).read_text(encoding="utf-8"))
        return str(about["part"]), f"{about['study']}/{about['pair']}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "unknown", "unknown"


def _sums(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _unlisted(folder: Path) -> list[str]:
    """Files of a folder without a hash; what is wrong with each."""
    if not (folder / HASHES).is_file():
        return [f"{HASHES}: it is missing"]
    listed = {line.partition("  ")[2] for line in (folder / HASHES).read_text(encoding="utf-8").splitlines()}
    return [f"{path.name}: it has no hash" for path in folder.iterdir() if path.name not in {HASHES, *listed}]


def _link(path: Path, to: Path) -> None:
    try:
        to.hardlink_to(path)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, to)
