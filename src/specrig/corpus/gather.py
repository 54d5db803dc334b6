"""Builds the embedded corpus: four tasks from text that comes with Python and the project's dependencies. No download,
no torch.

Whole files (code, summarization) or whole combinations of entities (translation, creative writing) are held out. A hash
of their names decides which, whatever the seed: so no study evaluates with what the training of another has read. The
same seed and the same installed packages give the same corpus.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from specrig.corpus import instructions, locale_text, source_text, stories
from specrig.corpus.example import CHAT, EXPLANATION, TASKS, CorpusError, Example, number
from specrig.corpus.recipe import Corpus
from specrig.corpus.wording import normalized
from specrig.errors import first_line

SOURCES: dict[str, Callable[[int, Corpus], Iterator[Example]]] = {
    "code": source_text.code,
    "summarization": source_text.summarization,
    "translation": locale_text.translation,
    "creative_writing": stories.creative_writing,
}
"""Task -> function (seed, settings) that yields its examples, without end or until the sources are used up."""


def _text(example: Example) -> tuple[str, str]:
    """A text to continue, and its end."""
    return example.prompt, example.completion


def _request(example: Example) -> tuple[str, str]:
    """A request to an assistant, and what it may answer."""
    return example.instruction, example.answer


def explanation(prompt: str, completion: str) -> tuple[str, str]:
    """A request to explain the function of an example of `code`, and what its docstring says."""
    signature, _, doc = prompt.partition('\n    """')
    documentation = " ".join(doc.replace('"""', "").split())
    return instructions.explanation(f"{signature}\n{completion}".rstrip()), documentation


def _explanation(example: Example) -> tuple[str, str]:
    return explanation(example.prompt, example.completion)


PROMPTS: dict[str, tuple[str, Callable[[Example], tuple[str, str]]]] = {
    **{task: (task, _text) for task in TASKS},
    **{task + CHAT: (task, _request) for task in TASKS},
    EXPLANATION: ("code", _explanation),
}
"""File of held-out prompts -> the task that they are made of, and the function that gives (prompt, reference)."""
FIELDS = ("task", "text", "prompt", "completion", "instruction")
"""What is read of a row of the corpus."""


def build(settings: Corpus, seed: int, out: Path) -> None:
    """Write `out/corpus/{train,heldout}.jsonl`, `out/prompts/<task>.jsonl` and, as instructions,
    `out/prompts/<task>_chat.jsonl` and `out/prompts/explanation_chat.jsonl`.

    Lines of the corpus are {"task", "text", "prompt", "completion", "source", "instruction", "answer"} with text =
    prompt + completion; the end-of-text token is added when they are tokenized. Lines of prompts are {"id", "prompt",
    "reference"}. Both folders are written under another name and then renamed, so that neither is ever seen
    half-written.

    Raises CorpusError when the sources of a task have too few held-out examples.
    """
    train: list[Example] = []
    heldout: list[Example] = []
    prompts: dict[str, list[dict[str, str]]] = {}
    for task in TASKS:
        trained, held = gather(task, settings, seed)
        train += trained
        count = settings.prompts
        for name, (source, ask) in PROMPTS.items():
            if source == task:
                prompts[name] = [
                    {"id": f"{name}-{index:03d}", "prompt": prompt, "reference": reference}
                    for index, (prompt, reference) in enumerate(map(ask, held[:count]))
                ]
        heldout += held[count:]
    # One shuffled stream: an optimiser step sees every task, and neighbours come from different files.
    train.sort(key=lambda example: number(seed, "train order", example.prompt))
    with tempfile.TemporaryDirectory(dir=_made(out), prefix=".corpus.") as folder:
        corpus, prompt_files = Path(folder) / "corpus", Path(folder) / "prompts"
        _write(corpus / "train.jsonl", [example.row() for example in train])
        _write(corpus / "heldout.jsonl", [example.row() for example in heldout])
        for task, rows in prompts.items():
            _write(prompt_files / f"{task}.jsonl", rows)
        for made in (corpus, prompt_files):
            made.chmod(0o755)
            for damaged in (out / made.name).glob("*.damaged-*"):  # what an earlier run set aside stays
                damaged.replace(made / damaged.name)
            shutil.rmtree(out / made.name, ignore_errors=True)
            made.replace(out / made.name)


def gather(task: str, settings: Corpus, seed: int) -> tuple[list[Example], list[Example]]:
    """Return (training examples, held-out examples) of a task; no held-out prompt or completion occurs in a training
    text.

    The first `settings.prompts` held-out examples are for decoding, the others for the held-out losses. Raises
    CorpusError when the sources give no held-out example beyond the prompts.
    """
    budget = int(getattr(settings.characters, task))
    needed = settings.prompts + settings.heldout_texts
    train: dict[str, Example] = {}
    heldout: dict[str, Example] = {}
    size = 0
    for example in SOURCES[task](seed, settings):
        if example.heldout:
            if len(heldout) < needed:
                heldout.setdefault(example.prompt, example)
        elif size < budget and example.prompt not in train:
            train[example.prompt] = example
            size += len(example.prompt) + len(example.completion)
        if size >= budget and len(heldout) >= needed:
            break
    # A function may be copied into another file: what was trained on is no held-out example.
    texts = "\0".join(example.prompt + example.completion for example in train.values())
    clean = [e for e in heldout.values() if e.prompt.strip() not in texts and e.completion.strip() not in texts]
    # Nor is what an assistant was asked in training, in whatever spelling.
    instructions = {normalized(example.instruction) for example in train.values()}
    clean = list({asks: e for e in clean if (asks := normalized(e.instruction)) not in instructions}.values())
    if len(clean) < settings.prompts + 1:
        raise CorpusError(
            f"task {task!r}: only {len(clean)} held-out examples in the installed sources, but corpus.prompts asks for "
            f"{settings.prompts} besides those for the losses; lower corpus.prompts or raise corpus.heldout_share"
        )
    clean.sort(key=lambda example: number(seed, "heldout order", example.prompt))
    return list(train.values()), clean


def present(path: Path) -> Path:
    """`path`, a corpus file. Raises CorpusError where there is none."""
    if not path.is_file():
        raise CorpusError(f"{path}: no such corpus file; build it with `specrig stage corpus`")
    return path


def read(path: Path) -> list[dict[str, str]]:
    """Read the rows of a corpus file. Raises CorpusError if the file is missing, empty or damaged, with the line."""
    rows = []
    for at, line in enumerate(present(path).read_bytes().splitlines(), 1):
        try:
            rows.append(_row(line))
        except (ValueError, RecursionError) as error:
            reason = first_line(error)
            raise CorpusError(
                f"{path}:{at}: not a row of the corpus ({reason}); build it again with `specrig stage corpus`"
            ) from error
    if not rows:
        raise CorpusError(f"{path}: the corpus file is empty; delete its folder and build it again")
    return rows


def _row(line: bytes) -> dict[str, str]:
    """A row of the corpus. Raises ValueError for a line that is none."""
    row = json.loads(line.decode("utf-8"))
    fields = row if isinstance(row, dict) else {}
    if lacking := [name for name in FIELDS if not isinstance(fields.get(name), str)]:
        raise ValueError(f"it has no text {', '.join(lacking)}")
    for name in FIELDS:
        fields[name].encode()  # half a character is one that no tokenizer reads
    return fields


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    _made(path.parent)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
