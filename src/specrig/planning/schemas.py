"""Makes the JSON schemas of a study's config and of its tables, for editors that complete and check. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specrig.study.claims import Claim
from specrig.study.rows import Pair, Task
from specrig.study.study import Study

SCHEMAS: dict[str, type[BaseModel]] = {"study": Study, "pairs": Pair, "tasks": Task, "reported": Claim}


def write_schemas(folder: Path) -> list[Path]:
    """Write the four schemas (study, pairs, tasks, reported) into `folder` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in SCHEMAS:
        path = folder / f"{name}.schema.json"
        path.write_text(schema_text(name), encoding="utf-8")
        paths.append(path)
    return paths


def write_captions(folder: Path) -> list[Path]:
    """Write the captions of Snakemake's report, which the report's outline has, into `folder`; returns their paths."""
    from specrig.report.outline import captions

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in captions().items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in captions()]


def schema_text(name: str) -> str:
    """Return the text of one schema: of a study, or of a row of pairs.tsv, tasks.tsv or reported.csv."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SCHEMAS[name].model_json_schema(mode="validation"),
    }
    if name == "study":
        # Filled in when a study is resolved, never by its author.
        schema["properties"].pop("rows")
        for part in ("Rows", "Pair", "Task", "LearningPoint"):
            schema["$defs"].pop(part)
        # Options stand beside `k`. Their names are checked when a study is read, against the registered methods:
        # a schema that listed them would have to change with every method.
        schema["$defs"]["MethodEntry"]["additionalProperties"] = True
        _allow_scalars(schema)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _allow_scalars(schema: dict[str, Any]) -> None:
    """Change a schema so that lists of plain values also take one value: a study may say `k: 4` for `k: [4]`."""
    for part in (schema, schema["$defs"]["MethodEntry"]):
        for name, property_ in part["properties"].items():
            for option in property_.get("anyOf", [property_]):
                if option.get("type") == "array" and "$ref" not in option["items"]:
                    kinds = [*property_.get("anyOf", [{"type": "array", "items": option["items"]}]), option["items"]]
                    kept = {key: value for key, value in property_.items() if key not in {"type", "items", "anyOf"}}
                    part["properties"][name] = {**kept, "anyOf": kinds}
                    break
