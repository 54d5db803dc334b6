"""The files of a model folder: which are there, and what the headers of its weights say, without reading a weight.

No torch here. Each fault is a ModelError with a way out of its own.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from specrig.errors import first_line
from specrig.heads.shapes import further_extras, whole_layers
from specrig.models.pair import ModelError
from specrig.runtime.types import SCALE
from specrig.runtime.whole import BESIDE

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files that transformers loads weights from, the first that is there."""
READ = ("*.json", "*.jinja", "*.model", "*.safetensors", "pytorch_model*.bin")
"""Files that are read of a folder."""
POINTER = b"version https://git-lfs"
"""How a file begins that Git LFS has left in place of the one it stands for."""
PICKLE = b"\x80"
"""How a file of torch begins that an old torch wrote; a newer one writes ZIP archives, whose end tells that they are whole."""
FOREIGN = (
    ("model_index.json", "a diffusers pipeline, which makes images, no language model"),
    ("*.gguf", "a GGUF file: name the file itself, not its folder"),
    ("consolidated.*", "weights in their authors' own layout: take the copy for transformers (often named …-hf)"),
    ("*.onnx", "an ONNX export: take the model that it was made from"),
    ("openvino_model.*", "an OpenVINO export: take the model that it was made from"),
    ("weights*.npz", "weights of MLX: take the model that they were made from"),
    ("tf_model.h5", "weights of TensorFlow: take the model's *.safetensors"),
    ("flax_model.msgpack", "weights of Flax: take the model's *.safetensors"),
    ("*.pt*", "weights of another program: convert them with it to transformers' format"),
)
"""Files that stand in place of weights that transformers reads, and what is said of them."""
ADAPTER = "adapter_config.json"
NUMBERS = {"F64", "F32", "F16", "BF16"}
"""Types of tensors that are plain numbers; others are quantized, or of no weight."""
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
LM_HEADS = ("lm_head.weight", "embed_out.weight")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
"""In the name of a tensor of a decoder layer, with its number."""
WEIGHT = re.compile(r"weight|_packed$|\.W_q$")
"""In the name of a matrix that is multiplied with, plain or quantized."""
QUANTIZED = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quanto_qmap.json": "quanto",
    "qmodel.pt": "hqq",
}
"""Files in which programs note a quantization that config.json says nothing of."""
TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")
"""Files in which tokenizers keep their tokens; those after tokenizer.json are of older models: byte-level BPE,
SentencePiece (two names), WordPiece.
"""
LLAMA_NAMES = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures whose tensors are known by name and shape."""
LLAMA_SHAPES = ("gemma", "gemma2", "gemma3_text", "granite", "olmo2", "smollm3")
"""Architectures that have further tensors, and the shapes of a Llama's under their names."""


class Tensor(NamedTuple):
    """What a header says of a tensor. type: as safetensors names it, e.g. BF16."""

    type: str
    shape: tuple[int, ...]


def instead_of_model(folder: Path) -> str:
    """What a folder without config.json does or holds, a sentence whose subject is the folder."""
    if not any(folder.iterdir()):
        return "is empty"
    if (folder / ADAPTER).is_file():
        return f"holds an adapter (LoRA) for {adapted(folder)}, which runs only inside that model: {MERGE}"
    for pattern, what in FOREIGN:
        if (file := next(iter(sorted(folder.glob(pattern))), None)) is not None:
            return f"holds {file.name}: {what}"
    return "holds no config.json"


MERGE = "merge the two (peft: `merge_and_unload()`, then `save_pretrained`) and name the merged folder"


def adapted(folder: Path) -> str:
    """The model that an adapter in this folder was made for."""
    try:
        return str(json.loads((folder / ADAPTER).read_bytes())["base_model_name_or_path"])
    except (ValueError, LookupError, TypeError, OSError):
        return "another model"


def check_files(folder: Path) -> None:
    """Raise ModelError where a model folder holds pointers of Git LFS, an adapter beside its weights, or no weights."""
    pointers = sorted({file.name for pattern in READ for file in folder.glob(pattern) if is_pointer(file)})
    if pointers:
        raise ModelError(
            f"{folder}: {_some(pointers)}: only what Git LFS has left in place of the file; run `git lfs pull` in the "
            "repository, or fetch the model with the hub's client (`hf download`)"
        )
    if (folder / ADAPTER).is_file():
        raise ModelError(
            f"{folder}: an adapter (LoRA, {ADAPTER}) lies beside a model, and which of the two is meant is not said: "
            f"{MERGE}, or move the adapter's files away"
        )
    if not any((folder / name).is_file() for name in WEIGHTS):
        others = next((f"; {file.name} is {what}" for pattern, what in FOREIGN for file in folder.glob(pattern)), "")
        raise ModelError(
            f"{folder}: no weights there (model.safetensors, its shards with their index, or pytorch_model.bin){others}; "
            "fetch them, or name another folder"
        )
    if not any((folder / name).is_file() for name in WEIGHTS[:2]):
        for file in sorted(folder.glob("pytorch_model*.bin")):
            if not (zipfile.is_zipfile(file) or _begins(file, PICKLE)):
                raise ModelError(f"{file}: cut short, or no file of torch's; fetch it again")
    for name in (name for name in WEIGHTS if name.endswith("index.json") and (folder / name).is_file()):
        if not any((folder / whole).is_file() for whole in WEIGHTS[: WEIGHTS.index(name)]):
            shards = set(_index(folder / name).values())
            if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
                raise ModelError(
                    f"{folder}: {len(missing)} of the {len(shards)} files in {name} are not there: {_some(missing)}; "
                    "fetch them"
                )
            return


def noted_quantization(folder: Path) -> dict[str, Any]:
    """What files beside config.json say of a quantization, as config.json would say it; empty: nothing."""
    method = next((method for name, method in QUANTIZED.items() if (folder / name).is_file()), None)
    return {} if method is None else {"quantization_config": {"quant_method": method}}


def is_pointer(file: Path) -> bool:
    """Whether Git LFS has left a pointer in the file's place."""
    return _begins(file, POINTER)


def _begins(file: Path, start: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(start)) == start


def headers(folder: Path) -> dict[str, Tensor]:
    """Tensor name -> what the headers of a folder's safetensors files say; empty for weights in another format.

    Raises ModelError for a file that is cut short or none, and for one that lacks what the index says it has.
    """
    single = folder / WEIGHTS[0]
    if single.is_file():
        return _header(single)
    if not (folder / WEIGHTS[1]).is_file():
        return {}
    index = _index(folder / WEIGHTS[1])
    shards = {name: _header(folder / name) for name in sorted(set(index.values()))}
    if lacking := sorted(tensor for tensor, shard in index.items() if tensor not in shards[shard]):
        raise ModelError(
            f"{folder}: {index[lacking[0]]} lacks {_some(lacking)}, which the index says it has; fetch index and "
            "weights from one place"
        )
    return {name: tensor for shard in shards.values() for name, tensor in shard.items()}


def _index(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes())["weight_map"]
        if found and all(isinstance(name, str) for name in found.values()):
            return dict(found)
        raise ValueError("it maps no tensor to a file")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: not the index of a model's weights ({first_line(error)}); fetch it again") from error


def _header(file: Path) -> dict[str, Tensor]:
    """Of a safetensors file: 8 bytes with the header's size, the header, then the tensors."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
            entries = json.loads(opened.read(length))
        entries.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        found = {name: Tensor(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: no whole safetensors file ({first_line(error)}); fetch it again") from error
    if 8 + length + end != size:
        raise ModelError(
            f"{file}: cut short: its header speaks of {8 + length + end:,} bytes, the file has {size:,}; fetch it again"
        )
    return found


def contradiction(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str | None:
    """How the headers of weights contradict a config.json (of the language model), with the fix; None: in nothing."""
    rounded = {name for name in tensors if name + SCALE in tensors}  # by ourselves: they become numbers when read
    own = {
        name: tensor
        for name, tensor in tensors.items()
        if not BESIDE.search(name) and name.removesuffix(SCALE) not in rounded - {name}
    }
    odd = [
        name
        for name, tensor in own.items()
        if tensor.type not in NUMBERS and name not in rounded and WEIGHT.search(name)
    ]
    if odd:
        return (
            f"{odd[0]} is of type {own[odd[0]].type}, so it is quantized, and config.json does not say how; take the model "
            "that it was quantized from"
        )
    reason = _other_sizes(config, own) or _other_names(config, own)
    return None if reason is None else f"{reason}; config.json and weights are of two models: take both from one place"


def _other_sizes(config: Mapping[str, Any], own: Mapping[str, Tensor]) -> str | None:
    V, D = config.get("vocab_size"), config.get("hidden_size")
    embedding = min((name for name in own if name.endswith(EMBEDDINGS) and not LAYER.search(name)), key=len, default="")
    if embedding and isinstance(V, int) and own[embedding].shape[0] != V:
        rows = own[embedding].shape[0]
        return f"config.json says that there are {V} tokens, {embedding} has {rows} rows"
    narrow = config.get("word_embed_proj_dim") or config.get("embedding_size")
    if embedding and isinstance(D, int) and not narrow and own[embedding].shape[-1] != D:
        width = own[embedding].shape[-1]
        return f"config.json says hidden_size {D}, {embedding} is {width} wide"
    output = next((name for name in own if name.endswith(LM_HEADS)), "")
    if output and isinstance(V, int) and own[output].shape[0] != V:
        return f"config.json says that there are {V} tokens, {output} has {own[output].shape[0]} rows"
    untied = embedding.endswith("embed_tokens.weight") and config.get("tie_word_embeddings") is False
    if untied and not any("head" in name or "embed_out" in name for name in own):
        return (
            "config.json says that the LM head is not tied to the embedding (tie_word_embeddings: false), and the "
            "weights hold no lm_head.weight"
        )
    numbers = [int(match[1]) for match in map(LAYER.search, own) if match]
    layers = next((config[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if config.get(name)), None)
    more = config.get("num_nextn_predict_layers") or 0
    if numbers and isinstance(layers, int) and not layers <= max(numbers) + 1 <= layers + more:
        return f"config.json says that there are {layers} layers, the weights have {max(numbers) + 1}"
    return None


def _other_names(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str | None:
    """Of architectures with Llama's names: a tensor that is missing, that nothing would read, or of another shape."""
    kind, sizes = config.get("model_type"), _sizes(config)
    if kind not in LLAMA_NAMES + LLAMA_SHAPES or sizes is None:
        return None
    shapes = whole_layers(sizes, 0)
    shapes |= dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (sizes.vocab_size, sizes.hidden_size))
    shapes["norm.weight"] = (sizes.hidden_size,)
    parts = {f"{name}_norm.weight" for name in "qk" if kind == "qwen3"}
    if kind == "qwen2" or (kind != "mistral" and config.get("attention_bias")):
        parts |= {f"{name}_proj.bias" for name in ("qkv" if kind == "qwen2" else "qkvo")}
    if config.get("mlp_bias"):
        parts |= {f"{name}_proj.bias" for name in ("gate", "up", "down")}
    extras = further_extras(sizes, 0).items()
    shapes |= {name: shape for name, shape in extras if name.split(".", 3)[3] in parts}
    there = {name.removeprefix("model."): tuple(tensor.shape) for name, tensor in tensors.items()}
    if kind in LLAMA_NAMES:
        needed = shapes.keys() - {"lm_head.weight"}
        if config.get("tie_word_embeddings") and "lm_head.weight" in there:
            needed -= {"embed_tokens.weight"} - there.keys()  # either of the two stands for both
        if missing := sorted(needed - there.keys()):
            return f"the weights lack {_some(missing)}"
        if left_out := sorted(there.keys() - shapes.keys()):
            return f"nothing in a {kind} model of this config.json reads {_some(left_out)}"
    for name in (name for name in shapes if name in there and there[name] != shapes[name]):
        return f"by config.json {name} is {list(shapes[name])}, in the weights it is {list(there[name])}"
    return None


def _sizes(config: Mapping[str, Any]) -> SimpleNamespace | None:
    """The sizes that shapes of layers follow from; None where config.json leaves one to transformers' default."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    found = {name: config.get(name) for name in (*names, "num_key_value_heads", "head_dim")}
    if config.get("model_type") == "llama":
        found["num_key_value_heads"] = found["num_key_value_heads"] or found["num_attention_heads"]
    if config.get("model_type") == "qwen3":
        found["head_dim"] = found["head_dim"] or 128
    if not all(isinstance(size, int) for name, size in found.items() if name != "head_dim"):
        return None
    return SimpleNamespace(**found)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
