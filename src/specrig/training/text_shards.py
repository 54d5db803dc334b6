"""What a target wrote, in shards: files of JSON lines, each whole or not there, so that writing may be cut at any time.

A shard depends on what is to be written and on its number alone: written again, it has the same bytes on the same
machine.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from specrig.corpus.example import generator, number
from specrig.corpus.wording import Overlap, normalized
from specrig.errors import first_line
from specrig.files import file_sha256, write_atomically
from specrig.heads.base import TrainingError
from specrig.heads.teacher import end_tokens, weight_files
from specrig.models import hub
from specrig.training import self_requests, shared_shards
from specrig.training.conversations import Conversations, Written, answer, ends_at
from specrig.training.generate import Precision, Script, Writer, fastest
from specrig.training.prompt_sources import SELF_LONG, WRITTEN_BY_TARGET
from specrig.training.prompts import Group, Planned, kept, plan, request_groups
from specrig.training.recipe import Recipe
from specrig.training.shared_shards import MANIFEST, manifests, shards
from specrig.training.trainer import training_device

Part = Literal["train", "heldout"]
SHARD = 2
"""Texts of the first shard, in those that are written side by side. Each shard has twice as many as the one before."""
LARGEST = 8
"""Texts of the largest shards: fewer rows stand empty at the end of a long shard, and more is lost when it is cut."""
FRUITLESS = 5
"""After so many shards in a row without a new text a target that writes its own requests is given up: it would write
for ever.
"""
_WRITTEN = TypeAdapter(Written)
_AGAIN = "delete its folder: the texts are written again"


class TextShards:
    """The shards of one target and recipe. Nothing is loaded before a shard is written."""

    def __init__(
        self, folder: Path, recipe: Recipe, corpus_dir: Path, target: Path, device: str, without: Collection[str] = ()
    ) -> None:
        """folder: shards of other targets and recipes may lie there too. without: see `prompts.kept`.

        Raises PromptError for requests that cannot be had, CorpusError for a missing corpus.
        """
        self.recipe, self.target, self.device = recipe, target, device
        self.tokenizer = hub.tokenizer(str(target))
        self.eos, self.width = end_tokens(target), recipe.text.sequence + 1
        self.own: Conversations | None = None
        if any(source.source in WRITTEN_BY_TARGET for source in recipe.sources):
            template = self_requests.template(self.tokenizer, target)
            self.own = Conversations(template, self.eos, self.width, recipe.own_requests)
        self.overlap = Overlap(without)
        self.groups: dict[Part, list[Group]] = {}
        parts: tuple[Part, ...] = ("train", "heldout")
        for part in parts:
            groups, left_out = kept(request_groups(recipe, corpus_dir, heldout=part == "heldout"), without)
            if left_out and part == "train":
                print(f"{left_out} training prompts are prompts of the evaluation and were left out", file=sys.stderr)
            self.groups[part] = groups
        self.key = self._key()
        self.folder = folder / self.key[:16]
        self.shared = [] if recipe.text.shards is None else manifests(recipe.text.shards)
        self._writer: Writer | None = None

    def texts(self, part: Part, count: int, others: Collection[Written] = ()) -> list[Written]:
        """The first `count` texts that are no duplicates, fewer where the requests end; missing shards are written.

        others: texts whose requests count as taken. Raises TrainingError for a target that writes no usable requests.
        """
        found, seen = list[Written](), {_first(text) for text in others}
        for rows in itertools.chain(self._shared(part), self._own(part, seen)) if count else ():
            for text in rows:
                if _first(text) not in seen and not self._evaluated(text):
                    seen.add(_first(text))
                    found.append(text)
            print(f"{part}: {min(len(found), count)} of {count} texts", file=sys.stderr, flush=True)
            if len(found) >= count:
                break
        return found[:count]

    def _shared(self, part: Part) -> Iterator[list[Written]]:
        """The shards in the folder `text.shards`, whatever recipe they were written by."""
        for manifest in self.shared:
            if _manifest(manifest, "target", "get the shards again") != self._settings["target"]:
                raise TrainingError(
                    f"{manifest}: another target than {self.target} wrote these shards; correct text.shards"
                )
            for file in shards(manifest, part):
                yield [cut for text in _shared_texts(file) if (cut := _shortened(text, self.width)) is not None]

    def _own(self, part: Part, seen: Collection[str]) -> Iterator[list[Written]]:
        """The shards of this recipe. seen: has grown, when the next shard is asked for, by each new text of the last."""
        same_recipe = (manifest for manifest in self.shared if manifest.parent.name == self.folder.name)
        read = {file.name.split(".")[0] for manifest in same_recipe for file in shards(manifest, part)}  # by `_shared`
        fruitless = 0
        for shard in itertools.count():
            if f"{part}-{shard:05}" in read:
                continue
            rows = self.shard(part, shard)
            if rows is None:
                return
            known = len(seen)
            yield rows
            fruitless = fruitless + 1 if len(seen) == known else 0
            if self.own is not None and fruitless == FRUITLESS:
                raise TrainingError(
                    f"{self.target}: there is no new request in {FRUITLESS} shards of text ({part}) that this target wrote; "
                    "raise training.text.sequence or training.own_requests.tokens, or name a file in training.prompts"
                )

    def shard(self, part: Part, shard: int) -> list[Written] | None:
        """The texts of a shard, written if it is not there or damaged; None behind the last one."""
        path = self.folder / f"{part}-{shard:05}.jsonl"
        if path.is_file():
            try:
                return _texts_of(path)
            except ValueError as error:
                kept_as = path.replace(path.with_name(f"{path.name}.damaged"))
                reason = f"{path} is damaged and will be made again: line {error}."
                print(f"{reason} It is kept as {kept_as.name}.", file=sys.stderr)
        if not path.is_file():
            first, end = self._range(shard)
            planned = list(itertools.islice(self._plan(part), first, end))
            if not planned:
                return None
            texts = [text for text in self._write(part, first, planned) if not self._evaluated(text)]
            write_atomically(path, "".join(json.dumps(asdict(text)) + "\n" for text in texts))
        return _texts_of(path)

    def _range(self, shard: int) -> tuple[int, int]:
        """The first text that is planned for a shard, and the first one behind it."""
        sizes = [self.recipe.text.batch * min(SHARD << at, self._largest) for at in range(shard + 1)]
        return sum(sizes[:-1]), sum(sizes)

    def _plan(self, part: Part) -> Iterator[Planned]:
        return plan(self.groups[part], self.recipe, self.target, self.tokenizer)

    def _write(self, part: Part, first: int, planned: Sequence[Planned]) -> list[Written]:
        # Those that take longest begin first, so that few rows stand empty while the last ones end.
        order = sorted(range(len(planned)), key=lambda at: planned[at].kind != SELF_LONG)
        scripts = [self._script(part, first + at, planned[at]) for at in order]
        seeds = [number(self.recipe.seed, "text", part, first + at) for at in order]
        written = self._opened().write(scripts, seeds, self.recipe.text.batch, self.width)
        done = {order[at]: texts for at, texts in written}
        return [each for at in range(len(planned)) for each in done[at]]

    def _script(self, part: Part, at: int, planned: Planned) -> Script[list[Written]]:
        temperatures = self.recipe.text.temperatures if part == "train" else (0.0,)
        temperature = temperatures[planned.round % len(temperatures)]
        if planned.prompt is not None:
            if len(planned.prompt) >= min(self.width, self._opened().target.max_positions):
                raise TrainingError(
                    f"a prompt fills all of text.sequence ({self.width} tokens): raise it or shorten the prompts"
                )
            # Measurements let a target repeat itself; a text made for amount need not hold much of that.
            ends = ends_at(self.eos, loops=self.own is not None)
            return answer(planned.kind, planned.requests, planned.prompt, self.width, temperature, ends)
        assert self.own is not None
        chance = generator(self.recipe.seed, "conversation", part, at)
        return (self.own.long if planned.kind == SELF_LONG else self.own.short)(chance, temperature)

    def _opened(self) -> Writer:
        """The model, loaded in the precision in which its first shard was written."""
        if self._writer is None:
            manifest = self.folder / MANIFEST
            where, text = training_device(self.device), self.recipe.text
            if manifest.is_file():
                precision: Precision = _manifest(manifest, "precision", _AGAIN)
                if precision not in get_args(Precision):
                    raise TrainingError(f"{manifest}: {str(precision)[:80]!r} is no precision; {_AGAIN}")
            else:
                precision = fastest(self.target, where, text.batch, self.width)
                content = {"key": self.key, "precision": precision, "largest": self._largest, **self._settings}
                write_atomically(manifest, json.dumps(content, indent=1) + "\n")
            self._writer = Writer(self.target, where, precision)
        return self._writer

    def _evaluated(self, text: Written) -> bool:
        """Whether a request in it is evaluated; one that the target wrote itself must not come near to one either."""
        if text.kind in WRITTEN_BY_TARGET:
            return any(self.overlap.near(request) for request in text.requests)
        return any(normalized(request) in self.overlap.whole for request in text.requests)

    @cached_property
    def _largest(self) -> int:
        """As `LARGEST`, of this recipe's shards, which an earlier version may have begun: its manifests do not say it,
        and all its shards are equally large.
        """
        own = [self.folder / MANIFEST, *(each for each in self.shared if each.parent.name == self.folder.name)]
        known = [_manifest(manifest, "largest", _AGAIN, SHARD) for manifest in own if manifest.is_file()]
        return max(known, default=LARGEST)  # so that no new shard holds texts of one that is there

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What decides the texts, besides the target; not how many there are to be."""
        recipe = self.recipe
        return {
            "seed": recipe.seed,
            "text": recipe.text.model_dump(
                mode="json", exclude={"sequences", "heldout_sequences", "shards"}, exclude_defaults=True
            ),
            "sources": [source.model_dump(mode="json", exclude_defaults=True) for source in recipe.sources],
            "own_requests": recipe.own_requests.model_dump(mode="json", exclude_defaults=True),
            "chat": recipe.chat,
            "target": [file_sha256(file) for file in weight_files(self.target)],
        }

    def _key(self) -> str:
        total = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode())
        for part, groups in self.groups.items():
            for group in groups:
                requests = None if group.requests is None else [each.turns for each in group.requests]
                total.update(json.dumps([part, group.kind, group.share, requests]).encode())
        return total.hexdigest()


def _first(text: Written) -> str:
    """What texts are compared by: temperature apart, two answers to one request are one too many."""
    return normalized("\n".join(text.requests))


def _shared_texts(file: Path) -> list[Written]:
    """The texts of a shard in `text.shards`. Raises TrainingError for a file that is none."""
    try:
        return _texts_of(file)
    except ValueError as error:
        raise TrainingError(f"{file}:{error}; get the shards again, or correct text.shards") from error


def _texts_of(file: Path) -> list[Written]:
    """The texts of a shard. Raises ValueError, with the line, for a file that is none."""
    found = []
    try:
        content = shared_shards.read(file)
    except lzma.LZMAError as error:
        raise ValueError(f" not compressed by xz, or cut off ({first_line(error)})") from error
    for at, line in enumerate(content.splitlines(), 1):
        try:
            found.append(_WRITTEN.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            reason = " ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
            raise ValueError(f"{at}: not a text that a target wrote ({reason})") from error
    return found


def _manifest(file: Path, key: str, fix: str, default: Any = None) -> Any:
    """What a manifest says under a key. Raises TrainingError where it does not, and there is no default."""
    try:
        content = json.loads(file.read_bytes())
        return content[key] if default is None else content.get(key, default)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TrainingError(f"{file}: it does not say the {key} of these texts ({first_line(error)}); {fix}") from error


def _shortened(text: Written, width: int) -> Written | None:
    """The first `width` tokens of a text; None where the target wrote none of them."""
    if len(text.tokens) <= width:
        return text
    spans = [(start, min(end, width)) for start, end in text.spans if start < width]
    return replace(text, tokens=text.tokens[:width], spans=spans) if spans else None
