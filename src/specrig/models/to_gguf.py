"""Model folders written as GGUF files, the only format that llama.cpp reads; importing this loads no torch.

Text is nobody's business here: prompts and outputs are token ids. So a file's vocabulary is made up, token 17 is called
`<17>`, and the text of an output names its ids. No name is one that llama.cpp takes for an end of sequence, so a
request says itself where to stop, and target and draft share one vocabulary by construction. Keys and tensor names are
those of llama.cpp (gguf-py, `constants.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.heads.shapes import dflash_config
from specrig.models.pair import ModelError

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""dtype -> GGUF's name of it."""
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a Llama's tensors here -> in GGUF."""
EAGLE3 = {"fc": "fc", "norm": "output_norm", "lm_head": "output", "midlayer.hidden_norm": "blk.0.attn_norm_2"}
"""The same of what an EAGLE-3 head has besides its layer."""
BLOCKS = {
    "fc.weight": "fc",
    "hidden_norm.weight": "enc.output_norm",
    "norm.weight": "output_norm",
    "lm_head.weight": "output",
    "embed_tokens.weight": "token_embd",
    "markov_head.markov_w1.weight": "markov_w1",
    "markov_head.markov_w2.weight": "markov_w2",
    "confidence_head.proj.weight": "conf_proj",
    "confidence_head.proj.bias": "conf_proj.bias",
}
"""The same of what a DFlash or DSpark head has besides its layers, which are Qwen3's."""


def token(index: int) -> str:
    """The made-up text of a token."""
    return f"<{index}>"


def refuses(config: dict[str, Any]) -> str | None:
    """Why a model of this config.json is not written; None if it is."""
    kind = config.get("model_type")
    if kind != "llama":
        return (
            f"only Llama's architecture is written as GGUF, this is {kind!r}; name a GGUF file of the model as its "
            "source instead"
        )
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = scaling.get("rope_type", scaling.get("type", "default"))  # `type` in older files
    if (
        rope != "default"
        or config.get("attention_bias")
        or config.get("mlp_bias")
        or config.get("hidden_act", "silu") != "silu"
    ):
        return (
            "scaled rotary positions, biases and other activations are not written as GGUF; name a GGUF file of the "
            "model instead"
        )
    return None


def write_model(model: Any, out: Path, dtype: str) -> None:
    """Write a loaded `LlamaForCausalLM` in `dtype`; norms stay fp32, as llama.cpp wants them. Raises ModelError for
    another model.
    """
    config = model.config
    if (reason := refuses(config.to_dict())) is not None:
        raise ModelError(f"{config.name_or_path}: {reason}")
    tensors = {}
    for name, tensor in model.state_dict().items():
        part = name.removesuffix(".weight")
        if part in TOP:
            if part != "lm_head" or not config.tie_word_embeddings:
                tensors[TOP[part]] = tensor
        else:
            _, _, layer, inner = part.split(".", 3)
            tensors[f"blk.{layer}.{LAYER[inner]}"] = tensor
    _write(out, "llama", config, config.num_hidden_layers, tensors, dtype, {})


def write_eagle3(folder: Path, target: dict[str, Any], out: Path, dtype: str) -> None:
    """Write the EAGLE-3 head in `folder` of a target with the config.json `target`; llama.cpp takes the embedding from
    the target.

    GGUF's `d2t` holds the target's ids themselves, not their distance from the draft's. Raises ModelError for a head of
    another build.
    """
    from transformers import LlamaConfig

    from specrig.heads import shapes

    config, weights, layers = _read_head(folder, "eagle3", LlamaConfig, shapes.read_aux_layers, target)
    weights.pop("embed_tokens.weight", None)
    names = EAGLE3 | {f"midlayer.{ours}": f"blk.0.{theirs}" for ours, theirs in LAYER.items()}
    variants = [key for key in shapes.VARIANTS if getattr(config, key, False)]
    renamed = {f"{ours}.weight": theirs for ours, theirs in names.items()}
    tensors = _renamed(folder, "an EAGLE-3 head", weights, renamed, variants)
    extra = {"target_layers": layers, "target_hidden_size": target["hidden_size"]}
    _write(out, "eagle3", config, 1, tensors, dtype, extra)


def write_blocks(kind: str, folder: Path, target: dict[str, Any], out: Path, dtype: str) -> None:
    """Write the DFlash or DSpark head (`kind`) in `folder`, as `write_eagle3` does. llama.cpp drafts at most as many tokens
    at once as a block has, the last token aside where it drafts none. Raises ModelError for a head of another build.
    """
    from transformers import Qwen3Config

    from specrig.heads import shapes

    config, weights, layers = _read_head(folder, kind, Qwen3Config, shapes.read_target_layers, target)
    inner = LAYER | {f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"}
    names = dict(BLOCKS)
    for index in range(config.num_hidden_layers):
        names |= {f"layers.{index}.{ours}.weight": f"blk.{index}.{theirs}" for ours, theirs in inner.items()}
    tensors = _renamed(folder, "a head", weights, names)
    extra = {
        "target_layers": layers,
        "block_size": int(config.block_size),
        "sample_from_anchor": not shapes.first_drafting(config),
        "attention.causal": False,
        "has_confidence_head": "conf_proj" in tensors,
    }
    _write(out, "dflash", config, config.num_hidden_layers, tensors, dtype, extra)


def _read_head(
    folder: Path,
    kind: str,
    kind_of_config: Any,
    read_layers: Callable[[Any, int], Iterable[int]],
    target: dict[str, Any],
) -> tuple[Any, dict[str, Tensor], list[int]]:
    """Configuration and tensors of the head in a folder, and which layers of the target it reads. Raises ModelError."""
    from specrig.heads import checkpoint
    from specrig.runtime.types import DecodingError

    try:
        keys, weights = checkpoint.read_head(folder, kind)
        config = kind_of_config.from_dict(keys)
        return config, weights, list(read_layers(config, target["num_hidden_layers"]))
    except DecodingError as error:
        raise ModelError(f"{folder}: {error}") from error


def _renamed(
    folder: Path, what: str, weights: dict[str, Tensor], names: dict[str, str], variants: Sequence[str] = ()
) -> dict[str, Tensor]:
    """A head's tensors under GGUF's names, of those that it has. variants: keys of its config.json that GGUF has no form
    of. Raises ModelError for them and for further tensors.
    """
    import torch

    if others := [*variants, *sorted(weights.keys() - names.keys() - {"d2t"})]:
        raise ModelError(f"{folder}: {what} with {', '.join(others)} is not written as GGUF; use another engine")
    tensors = {theirs: weights[ours] for ours, theirs in names.items() if ours in weights}
    if "d2t" in weights:
        tensors["d2t"] = weights["d2t"] + torch.arange(len(weights["d2t"]))
    return tensors


WRITERS: dict[str, Callable[[Path, dict[str, Any], Path, str], None]] = {
    "eagle3": write_eagle3,
    "dflash": partial(write_blocks, "dflash"),
    "dspark": partial(write_blocks, "dspark"),
}
"""Kind of head -> what writes it, of a folder, the target's config.json, the file and the dtype."""


def rename_tokens(file: Path, out: Path) -> None:
    """Copy a GGUF file with its weights as they are and the made-up vocabulary."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(file)
    kind = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, kind)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.")) and name != "general.architecture":
            writer.add_key_value(
                name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        if tensor.name == "token_embd.weight":
            _name_tokens(writer, int(tensor.shape[1]))  # GGUF writes shapes with the width first
    _save(writer)


def _write(
    out: Path, kind: str, config: Any, layers: int, tensors: dict[str, Tensor], dtype: str, extra: dict[str, Any]
) -> None:
    import torch
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = GGUFWriter(out, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    adders: dict[type, Callable[[str, Any], None]] = {
        list: writer.add_array,
        bool: writer.add_bool,
        int: writer.add_uint32,
    }
    for key, value in extra.items():
        adders[type(value)](f"{kind}.{key}", value)
    if (mask := dflash_config(config).get("mask_token_id")) is not None:
        writer.add_mask_token_id(mask)
    _name_tokens(writer, config.vocab_size)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            writer.add_tensor(name, tensor.to(torch.int64).numpy())
            continue
        if kind != "dflash" and name.endswith(("attn_q", "attn_k")):  # of Qwen3 llama.cpp rotates halves too
            tensor = _interleaved(tensor, heads if name.endswith("q") else kv_heads)
        stored = GGMLQuantizationType[TYPES[dtype] if tensor.dim() > 1 else "F32"]
        full = name if name.endswith(".bias") else f"{name}.weight"
        writer.add_tensor(full, quantize(tensor.float().contiguous().numpy(), stored), raw_dtype=stored)
    _save(writer)


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection `[H·W, D]` in llama.cpp's order: it rotates neighbours, where we rotate halves
    of a head.
    """
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _name_tokens(writer: Any, size: int) -> None:
    # Of llama.cpp's tokenizers this is the one that has no special tokens unless a file names them, and that asks for
    # no merges.
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([token(index) for index in range(size)])
    writer.add_token_types([1] * size)


def _save(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
